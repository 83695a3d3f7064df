//! Queries that clients are offered, poll for, and cancel.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_flight::sql::{
    Any, CommandPreparedStatementQuery, CommandStatementQuery, ProstMessageExt,
    TicketStatementQuery,
};
use arrow_flight::{FlightDescriptor, FlightInfo};
use prost::Message;
use tonic::Status;

use super::Service;
use super::client::Client;
use crate::flight::protocol::answers::info;
use crate::flight::statements::query::Query;
use crate::flight::statements::session::Session;
use crate::flight::statements::statement::Prepared;

impl Service {
    /// A query that is to be read.
    pub(super) async fn offer(
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
        let unknown = |_| Status::invalid_argument("polled for what is not a Flight SQL command");
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
    pub(super) fn cancel(&self, session: &Session, flight: &FlightInfo) -> Result<bool, Status> {
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
}
