//! Flight SQL's calls, each in its session.

use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, CommandGetCatalogs,
    CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys, CommandGetImportedKeys,
    CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes, CommandGetTables,
    CommandGetXdbcTypeInfo, CommandPreparedStatementQuery, CommandPreparedStatementUpdate,
    CommandStatementIngest, CommandStatementQuery, CommandStatementUpdate,
    DoPutPreparedStatementResult, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{Action, CancelStatus, FlightDescriptor, FlightInfo, Ticket};
use futures::{StreamExt, stream};
use prost::bytes::Bytes;
use tonic::{Extensions, Request, Response, Status};

use super::Service;
use super::actions::decoded;
use super::client::Client;
use super::ingest;
use crate::flight::protocol::answers::{empty, encoded, metadata_info, rows};
use crate::flight::protocol::delivery::Messages;
use crate::flight::protocol::{metadata, sql_info};
use crate::flight::statements::plan::Kind;
use crate::flight::statements::query::{self, Query};
use crate::flight::statements::session::Session;
use crate::flight::statements::statement::Prepared;
use crate::flight::status;

/// The client of a call, which [`super::front`] has found.
fn client(extensions: &Extensions) -> Result<Arc<Client>, Status> {
    let found = extensions.get::<Arc<Client>>().cloned();
    found.ok_or_else(|| Status::internal("a call came without its session"))
}

fn session(extensions: &Extensions) -> Result<Arc<Session>, Status> {
    client(extensions).map(|client| Arc::clone(&client.session))
}

fn or_status<T>(result: datafusion::common::Result<T>) -> Result<T, Status> {
    result.map_err(|error| status::of(&error))
}

#[tonic::async_trait]
impl FlightSqlService for Service {
    type FlightService = Self;

    async fn get_flight_info_statement(
        &self,
        command: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let client = client(request.extensions())?;
        let prepared = Arc::new(Prepared::new(&client.session, &command.query).await?);
        Ok(Response::new(self.offer(&client, prepared, request.into_inner()).await?.0))
    }

    async fn get_flight_info_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let client = client(request.extensions())?;
        let prepared = client.prepared(&command.prepared_statement_handle)?;
        Ok(Response::new(self.offer(&client, prepared, request.into_inner()).await?.0))
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let caller = session(request.extensions())?;
        if let Some((stream, reader)) = self.stream_of(&caller, &ticket.statement_handle)? {
            return Ok(Response::new(stream.read(reader)?));
        }
        let (client, id, query) = self.by_ticket(&caller, &ticket.statement_handle)?;
        let session = Arc::clone(&client.session);
        // Its plan is of no use any more then, and clients ask for many.
        let forget = move || drop(client.forget_query(id));
        Ok(Response::new(query.read(&session, forget).await?))
    }

    async fn do_get_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let client = client(request.extensions())?;
        let prepared = client.prepared(&command.prepared_statement_handle)?;
        let query = Query::new(&client.session, prepared).await?;
        Ok(Response::new(query.read(&client.session, || ()).await?))
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let client = client(request.extensions())?;
        let prepared = Prepared::new(&client.session, &query.query).await?;
        // Those of JDBC take a statement that has columns for a query. How many rows an update
        // changed, which are its rows for others, is told apart.
        let dataset_schema = match prepared.kind {
            Kind::Query | Kind::Act => encoded(&prepared.schema)?,
            Kind::Definition | Kind::Update => encoded(&Schema::empty())?,
        };
        let parameter_schema = encoded(&prepared.asked_parameters())?;
        let id = client.keep_prepared(prepared)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: Bytes::copy_from_slice(id.as_bytes()),
            dataset_schema,
            parameter_schema,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        query: ActionClosePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<(), Status> {
        client(request.extensions())?.close_prepared(&query.prepared_statement_handle);
        Ok(())
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let client = client(request.extensions())?;
        let prepared = client.prepared(&query.prepared_statement_handle)?;
        let values = ingest::all(request.into_inner()).await?;
        or_status(prepared.bind(&values))?;
        Ok(DoPutPreparedStatementResult {
            prepared_statement_handle: Some(query.prepared_statement_handle),
        })
    }

    async fn do_put_prepared_statement_update(
        &self,
        query: CommandPreparedStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let client = client(request.extensions())?;
        let prepared = client.prepared(&query.prepared_statement_handle)?;
        let values = ingest::all(request.into_inner()).await?;
        if values.iter().any(|batch| batch.num_rows() > 0) {
            or_status(prepared.bind(&values))?;
        }
        query::count_changed(&client.session, &prepared).await
    }

    async fn do_put_statement_update(
        &self,
        command: CommandStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let session = session(request.extensions())?;
        let prepared = Prepared::new(&session, &command.query).await?;
        query::count_changed(&session, &prepared).await
    }

    async fn do_put_statement_ingest(
        &self,
        command: CommandStatementIngest,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let session = session(request.extensions())?;
        ingest::into_table(&session, command, request.into_inner()).await
    }

    async fn do_action_cancel_query(
        &self,
        query: ActionCancelQueryRequest,
        request: Request<Action>,
    ) -> Result<ActionCancelQueryResult, Status> {
        let session = session(request.extensions())?;
        let flight = decoded::<FlightInfo>(&query.info, "the flight to cancel")?;
        let is_over = self.cancel(&session, &flight)?;
        let result = if is_over { CancelStatus::Cancelled } else { CancelStatus::NotCancellable };
        // The older action has the same numbers.
        Ok(ActionCancelQueryResult { result: result as i32 })
    }

    async fn do_action_fallback(
        &self,
        request: Request<Action>,
    ) -> Result<Response<<Self as FlightService>::DoActionStream>, Status> {
        let client = client(request.extensions())?;
        let body = self.act(&client, request.get_ref()).await?;
        let result = arrow_flight::Result { body: body.into() };
        Ok(Response::new(stream::iter([Ok(result)]).boxed()))
    }

    async fn get_flight_info_catalogs(
        &self,
        command: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        metadata_info(command, &command.into_builder().schema(), request.into_inner())
    }

    async fn do_get_catalogs(
        &self,
        command: CommandGetCatalogs,
        request: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let session = session(request.extensions())?;
        or_status(metadata::catalogs(session.context.session(), command)).map(rows)
    }

    async fn get_flight_info_schemas(
        &self,
        command: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let schema = command.clone().into_builder().schema();
        metadata_info(command, &schema, request.into_inner())
    }

    async fn do_get_schemas(
        &self,
        command: CommandGetDbSchemas,
        request: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let session = session(request.extensions())?;
        or_status(metadata::schemas(session.context.session(), command)).map(rows)
    }

    async fn get_flight_info_tables(
        &self,
        command: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let schema = command.clone().into_builder().schema();
        metadata_info(command, &schema, request.into_inner())
    }

    async fn do_get_tables(
        &self,
        command: CommandGetTables,
        request: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let session = session(request.extensions())?;
        or_status(metadata::tables(session.context.session(), command).await).map(rows)
    }

    async fn get_flight_info_table_types(
        &self,
        command: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        metadata_info(command, &command.into_builder().schema(), request.into_inner())
    }

    async fn do_get_table_types(
        &self,
        command: CommandGetTableTypes,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        or_status(metadata::table_types(command)).map(rows)
    }

    async fn get_flight_info_sql_info(
        &self,
        command: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let schema = arrow_flight::sql::metadata::SqlInfoDataBuilder::schema();
        metadata_info(command, schema, request.into_inner())
    }

    async fn do_get_sql_info(
        &self,
        command: CommandGetSqlInfo,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let info = sql_info::SQL_INFO.as_ref();
        let info = info.ok_or_else(|| Status::internal("there is no SqlInfo"))?;
        let batch = command.into_builder(info).build();
        batch.map(rows).map_err(status::of_flight)
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        command: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let types = metadata::TYPES.as_ref();
        let types = types.ok_or_else(|| Status::internal("there are no types"))?;
        metadata_info(command, &types.schema(), request.into_inner())
    }

    async fn do_get_xdbc_type_info(
        &self,
        command: CommandGetXdbcTypeInfo,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        let types = metadata::TYPES.as_ref();
        let types = types.ok_or_else(|| Status::internal("there are no types"))?;
        command.into_builder(types).build().map(rows).map_err(status::of_flight)
    }

    async fn get_flight_info_primary_keys(
        &self,
        command: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        metadata_info(command, &metadata::primary_keys(), request.into_inner())
    }

    async fn do_get_primary_keys(
        &self,
        _: CommandGetPrimaryKeys,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        empty(metadata::primary_keys())
    }

    async fn get_flight_info_exported_keys(
        &self,
        command: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        metadata_info(command, &metadata::foreign_keys(), request.into_inner())
    }

    async fn do_get_exported_keys(
        &self,
        _: CommandGetExportedKeys,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        empty(metadata::foreign_keys())
    }

    async fn get_flight_info_imported_keys(
        &self,
        command: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        metadata_info(command, &metadata::foreign_keys(), request.into_inner())
    }

    async fn do_get_imported_keys(
        &self,
        _: CommandGetImportedKeys,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        empty(metadata::foreign_keys())
    }

    async fn get_flight_info_cross_reference(
        &self,
        command: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        metadata_info(command, &metadata::foreign_keys(), request.into_inner())
    }

    async fn do_get_cross_reference(
        &self,
        _: CommandGetCrossReference,
        _: Request<Ticket>,
    ) -> Result<Response<Messages>, Status> {
        empty(metadata::foreign_keys())
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
