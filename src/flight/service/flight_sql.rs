//! Flight SQL's calls, each in its session.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any,
    CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys,
    CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes,
    CommandGetTables, CommandGetXdbcTypeInfo, CommandPreparedStatementQuery,
    CommandPreparedStatementUpdate, CommandStatementIngest, CommandStatementQuery,
    CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo,
    TicketStatementQuery,
};
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightDescriptor,
    FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket,
};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Extensions, Request, Response, Status};

use super::client::Client;
use super::clients::Clients;
use super::ingest;
use crate::flight::protocol::actions::{
    CLOSE_STREAM, CloseSessionResult, CloseStatus, GetSessionOptionsResult, OptionError,
    OptionErrorValue, OptionValue, PROGRESS, SetSessionOptionsRequest, SetSessionOptionsResult,
};
use crate::flight::protocol::encode::encode;
use crate::flight::protocol::{metadata, sql_info};
use crate::flight::statements::plan::Kind;
use crate::flight::statements::query::{self, Query};
use crate::flight::statements::session::Session;
use crate::flight::statements::statement::Prepared;
use crate::flight::status;

/// Answers Flight SQL. Every request has its client in its extensions.
#[derive(Clone)]
pub(in crate::flight) struct Service {
    pub(in crate::flight) clients: Arc<Clients>,
}

type Rows = <Service as FlightService>::DoGetStream;

fn client(extensions: &Extensions) -> Result<Arc<Client>, Status> {
    let found = extensions.get::<Arc<Client>>().cloned();
    found.ok_or_else(|| Status::internal("a call came without its session"))
}

fn session(extensions: &Extensions) -> Result<Arc<Session>, Status> {
    client(extensions).map(|client| Arc::clone(&client.session))
}

/// What a metadata request gives, with the request as its own ticket.
fn metadata_info<M: ProstMessageExt>(
    command: M,
    schema: &Schema,
    descriptor: FlightDescriptor,
) -> Result<Response<FlightInfo>, Status> {
    info(command.as_any().encode_to_vec().into(), schema, descriptor).map(Response::new)
}

pub(super) fn info(
    ticket: Bytes,
    schema: &Schema,
    descriptor: FlightDescriptor,
) -> Result<FlightInfo, Status> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket { ticket });
    let info = FlightInfo::new().try_with_schema(schema);
    let info = info.map_err(|error| Status::internal(error.to_string()))?;
    Ok(info.with_endpoint(endpoint).with_descriptor(descriptor))
}

fn rows(batch: RecordBatch) -> Response<Rows> {
    let batches = stream::iter([Ok(batch.clone())]);
    let encoded = encode(batch.schema(), batches);
    Response::new(Box::pin(encoded.map_err(status::of_flight)))
}

fn empty(schema: SchemaRef) -> Result<Response<Rows>, Status> {
    Ok(rows(RecordBatch::new_empty(schema)))
}

fn or_status<T>(result: datafusion::common::Result<T>) -> Result<T, Status> {
    result.map_err(|error| status::of(&error))
}

pub(super) fn encoded(schema: &Schema) -> Result<Bytes, Status> {
    let options = IpcWriteOptions::default();
    let message: Result<IpcMessage, _> = SchemaAsIpc::new(schema, &options).try_into();
    Ok(message.map_err(|error| Status::internal(error.to_string()))?.0)
}

impl Service {
    /// A query that is to be read.
    async fn offer(
        &self,
        client: &Client,
        prepared: Arc<Prepared>,
        descriptor: FlightDescriptor,
    ) -> Result<(FlightInfo, Arc<Query>), Status> {
        let query = Query::new(&client.session, prepared).await?;
        let id = client.keep_query(Arc::clone(&query));
        let ticket = self.ticket(&client.session, id).as_any().encode_to_vec();
        Ok((info(ticket.into(), query.schema(), descriptor)?, query))
    }

    /// What a statement gives, without running it.
    pub(super) async fn schema(
        &self,
        client: &Client,
        descriptor: &FlightDescriptor,
    ) -> Result<Option<SchemaRef>, Status> {
        let Ok(any) = Any::decode(&*descriptor.cmd) else { return Ok(None) };
        let unknown = |_| Status::invalid_argument("the command of the descriptor is damaged");
        if let Some(command) = any.unpack::<CommandStatementQuery>().map_err(unknown)? {
            return Ok(Some(Prepared::new(&client.session, &command.query).await?.schema));
        }
        if let Some(command) = any.unpack::<CommandPreparedStatementQuery>().map_err(unknown)? {
            let prepared = client.prepared(&command.prepared_statement_handle)?;
            return Ok(Some(Arc::clone(&prepared.schema)));
        }
        Ok(None)
    }

    /// What a client polls for: a new query, or one that it was told of before.
    pub(super) async fn polled(
        &self,
        client: &Client,
        descriptor: FlightDescriptor,
    ) -> Result<(FlightInfo, Arc<Query>), Status> {
        let unknown = |_| Status::invalid_argument("polled for what is no Flight SQL command");
        let any = Any::decode(&*descriptor.cmd)
            .map_err(|_| Status::invalid_argument("the command of the descriptor is damaged"))?;
        if let Some(ticket) = any.unpack::<TicketStatementQuery>().map_err(unknown)? {
            let (_, _, query) = self.by_ticket(&client.session, &ticket.statement_handle)?;
            return Ok((info(descriptor.cmd.clone(), query.schema(), descriptor)?, query));
        }
        if let Some(command) = any.unpack::<CommandStatementQuery>().map_err(unknown)? {
            let prepared = Arc::new(Prepared::new(&client.session, &command.query).await?);
            return self.offer(client, prepared, descriptor).await;
        }
        if let Some(command) = any.unpack::<CommandPreparedStatementQuery>().map_err(unknown)? {
            let prepared = client.prepared(&command.prepared_statement_handle)?;
            return self.offer(client, prepared, descriptor).await;
        }
        Err(Status::invalid_argument(format!("{} cannot be polled", any.type_url)))
    }

    /// Ends the queries of a flight. Says whether there were any.
    fn cancel(&self, session: &Session, flight: &FlightInfo) -> Result<bool, Status> {
        let mut found = false;
        for endpoint in &flight.endpoint {
            let ticket = endpoint.ticket.as_ref().and_then(|t| Any::decode(&*t.ticket).ok());
            let ticket = ticket.and_then(|any| any.unpack::<TicketStatementQuery>().ok().flatten());
            let Some(ticket) = ticket else { continue };
            if let Ok((owner, id, query)) = self.by_ticket(session, &ticket.statement_handle) {
                query.cancel();
                owner.forget_query(id);
                found = true;
            }
        }
        Ok(found)
    }

    async fn set_options(
        &self,
        session: &Session,
        request: SetSessionOptionsRequest,
    ) -> SetSessionOptionsResult {
        let mut errors = std::collections::HashMap::new();
        for (key, value) in request.session_options {
            let name = match key.as_str() {
                "catalog" => "datafusion.catalog.default_catalog",
                "schema" => "datafusion.catalog.default_schema",
                key => key,
            };
            let is_ours = name.starts_with("datafusion.") || name.starts_with("forebay.");
            let done = match value.as_text() {
                Some(value) if is_ours && !name.starts_with("datafusion.runtime.") => {
                    session.set(name, &value).await.map_err(|_| OptionErrorValue::InvalidValue)
                }
                _ => Err(OptionErrorValue::InvalidName),
            };
            if let Err(error) = done {
                errors.insert(key, OptionError { value: error as i32 });
            }
        }
        SetSessionOptionsResult { errors }
    }
}

/// All options of a session.
fn options(session: &Session) -> GetSessionOptionsResult {
    let entries = session.context.session().state().config_options().entries();
    let set = entries.into_iter().filter_map(|entry| Some((entry.key, entry.value?)));
    let session_options = set.map(|(key, value)| (key, OptionValue::text(value))).collect();
    GetSessionOptionsResult { session_options }
}

fn decoded<M: Message + Default>(body: &[u8], what: &str) -> Result<M, Status> {
    M::decode(body).map_err(|error| Status::invalid_argument(format!("{what}: {error}")))
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
            Kind::Query => encoded(&prepared.schema)?,
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
        let session = &client.session;
        let action = request.into_inner();
        let body = match action.r#type.as_str() {
            "CancelFlightInfo" => {
                let request = decoded::<CancelFlightInfoRequest>(&action.body, &action.r#type)?;
                let found = request.info.map(|flight| self.cancel(session, &flight)).transpose()?;
                let status = match found {
                    Some(true) => CancelStatus::Cancelled,
                    _ => CancelStatus::NotCancellable,
                };
                CancelFlightInfoResult { status: status as i32 }.encode_to_vec()
            }
            "CloseSession" => {
                self.clients.close(session.id);
                CloseSessionResult { status: CloseStatus::Closed as i32 }.encode_to_vec()
            }
            "SetSessionOptions" => {
                let request = decoded(&action.body, &action.r#type)?;
                self.set_options(session, request).await.encode_to_vec()
            }
            "GetSessionOptions" => options(session).encode_to_vec(),
            PROGRESS => {
                client.progress().map_or_else(Vec::new, |done| done.to_string().into_bytes())
            }
            CLOSE_STREAM => {
                let name = String::from_utf8_lossy(&action.body);
                if !self.clients.streams.close(&session.who, &name) {
                    return Err(Status::not_found(format!("there is no stream '{name}'")));
                }
                vec![]
            }
            other => {
                return Err(Status::unimplemented(format!("there is no action '{other}'")));
            }
        };
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
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
    ) -> Result<Response<Rows>, Status> {
        empty(metadata::foreign_keys())
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
