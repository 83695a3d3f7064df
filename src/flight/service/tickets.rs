//! What a ticket stands for. All are signed, and worth nothing to another user.

use std::sync::Arc;

use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use arrow_flight::{FlightDescriptor, FlightInfo};
use prost::Message;
use tonic::Status;
use uuid::Uuid;

use super::Service;
use super::client::Client;
use crate::flight::access::seal::{QueryTicket, Sealed, StreamTicket};
use crate::flight::protocol::answers::info;
use crate::flight::statements::query::Query;
use crate::flight::statements::session::Session;
use crate::flight::stream::{Definition, Stream};

/// A stream, and which of its readers a ticket is for.
type ToRead = (Arc<Stream>, Option<u32>);

impl Service {
    /// The ticket of a query: signed, for this session.
    pub(super) fn ticket(&self, session: &Session, query: Uuid) -> TicketStatementQuery {
        let (session, query) = (session.id.into_bytes().to_vec(), query.into_bytes().to_vec());
        self.sealed(Sealed::Query(QueryTicket { session, query }))
    }

    fn sealed(&self, sealed: Sealed) -> TicketStatementQuery {
        TicketStatementQuery { statement_handle: self.clients.seal.close(sealed).into() }
    }

    /// What a reader of a stream is to read: its ticket is the stream, and which reader it is.
    pub(super) async fn stream(
        &self,
        session: &Session,
        descriptor: FlightDescriptor,
        definition: &str,
    ) -> Result<FlightInfo, Status> {
        let definition = Definition::parse(definition)?;
        let stream = self.clients.stream(&session.who, &definition).await?;
        let id = stream.id.into_bytes().to_vec();
        let ticket =
            self.sealed(Sealed::Stream(StreamTicket { stream: id, reader: definition.reader }));
        info(ticket.as_any().encode_to_vec().into(), stream.schema(), descriptor)
    }

    /// The stream of a ticket, and which reader it is for, if it is a ticket for a stream.
    pub(super) fn stream_of(
        &self,
        caller: &Session,
        handle: &[u8],
    ) -> Result<Option<ToRead>, Status> {
        let Some(Sealed::Stream(ticket)) = self.clients.seal.open(handle) else { return Ok(None) };
        let found = Uuid::from_slice(&ticket.stream).ok();
        let stream = found.and_then(|id| self.clients.streams.by_id(id, &caller.who));
        let stream =
            stream.ok_or_else(|| Status::not_found("the stream of this ticket is gone"))?;
        Ok(Some((stream, ticket.reader)))
    }

    /// What a ticket stands for, if it is ours and this client's.
    pub(super) fn by_ticket(
        &self,
        caller: &Session,
        handle: &[u8],
    ) -> Result<(Arc<Client>, Uuid, Arc<Query>), Status> {
        let forged = || Status::permission_denied("this ticket was not given by this server");
        let Some(Sealed::Query(ticket)) = self.clients.seal.open(handle) else {
            return Err(forged());
        };
        let session = Uuid::from_slice(&ticket.session).map_err(|_| forged())?;
        let id = Uuid::from_slice(&ticket.query).map_err(|_| forged())?;
        let client = self.clients.by_id(session, &caller.who);
        let client =
            client.ok_or_else(|| Status::not_found("the session of this ticket has ended"))?;
        let query = client.query(id);
        let query = query.ok_or_else(|| {
            Status::not_found("this ticket is good no more: it was not read in time, or closed")
        })?;
        Ok((client, id, query))
    }
}
