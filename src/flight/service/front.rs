//! What every call passes: who calls, in which session; and the calls that are Flight's own.

use std::sync::Arc;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use futures::StreamExt;
use futures::stream::{BoxStream, empty, iter};
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use super::Service;
use super::client::Client;
use super::clients::set_cookie;
use crate::flight::protocol::actions::{CLOSE_STREAM, PROGRESS};
use crate::flight::protocol::answers::encoded;
use crate::flight::statements::session::Session;
use crate::flight::stream;

/// Finds the client of each call and hands the call to [`Service`].
#[derive(Clone)]
pub(in crate::flight) struct Front(pub(in crate::flight) Service);

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = BoxStream<'static, Result<T, Status>>;

impl Front {
    async fn entered<T>(
        &self,
        mut request: Request<T>,
    ) -> Result<(Request<T>, Arc<Client>), Status> {
        let clients = &self.0.clients;
        let client = clients.of(request.metadata(), request.extensions()).await?;
        request.extensions_mut().insert(Arc::clone(&client));
        Ok((request, client))
    }
}

/// For clients without a library for Flight SQL: the path `sql`, followed by a statement, stands for
/// the command that has it.
fn as_command(descriptor: FlightDescriptor) -> Result<FlightDescriptor, Status> {
    match descriptor.path.as_slice() {
        [] => Ok(descriptor),
        [kind, statement] if kind == "sql" => {
            let command = CommandStatementQuery { query: statement.clone(), transaction_id: None };
            Ok(FlightDescriptor::new_cmd(command.as_any().encode_to_vec()))
        }
        path => Err(Status::not_found(format!(
            "there is no flight {path:?}; expected a Flight SQL command, or the path ['sql', \
             statement] or ['{}', definition]",
            stream::PATH
        ))),
    }
}

fn with_cookie<T>(session: &Session, mut response: Response<T>) -> Response<T> {
    if let Ok(value) = MetadataValue::try_from(set_cookie(session)) {
        response.metadata_mut().insert("set-cookie", value);
    }
    response
}

#[tonic::async_trait]
impl FlightService for Front {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;
    type DoExchangeStream = Answers<FlightData>;

    async fn handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        let login = &self.0.clients.login;
        let token = login.greet(request.metadata(), request.extensions()).await?;
        let answer =
            HandshakeResponse { protocol_version: 0, payload: token.clone().into_bytes().into() };
        let mut response = Response::new(iter([Ok(answer)]).boxed());
        let bearer = MetadataValue::try_from(format!("Bearer {token}"))
            .map_err(|error| Status::internal(error.to_string()))?;
        response.metadata_mut().insert("authorization", bearer);
        Ok(response)
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        Ok(Response::new(empty().boxed()))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        let (request, client) = self.entered(request).await?;
        let (metadata, extensions, descriptor) = request.into_parts();
        if let [kind, definition] = descriptor.path.as_slice()
            && kind == stream::PATH
        {
            let definition = definition.clone();
            let flight = self.0.stream(&client.session, descriptor, &definition).await?;
            return Ok(with_cookie(&client.session, Response::new(flight)));
        }
        let request = Request::from_parts(metadata, extensions, as_command(descriptor)?);
        let response = self.0.get_flight_info(request).await?;
        Ok(with_cookie(&client.session, response))
    }

    async fn poll_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<PollInfo> {
        let (request, client) = self.entered(request).await?;
        let (flight, query) = self.0.polled(&client, as_command(request.into_inner())?).await?;
        let is_ready = query.begin(&client.session).await?;
        // What to poll for next is what will be read: its ticket.
        let ticket = flight.endpoint.first().and_then(|endpoint| endpoint.ticket.clone());
        let next = ticket.map(|ticket| FlightDescriptor::new_cmd(ticket.ticket));
        let info = PollInfo {
            info: Some(flight),
            flight_descriptor: next.filter(|_| !is_ready),
            progress: query.progress(),
            expiration_time: None,
        };
        Ok(with_cookie(&client.session, Response::new(info)))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        let (request, client) = self.entered(request).await?;
        let (metadata, extensions, descriptor) = request.into_parts();
        let request = Request::from_parts(metadata, extensions, as_command(descriptor)?);
        let schema = match self.0.schema(&client, request.get_ref()).await? {
            Some(schema) => encoded(&schema)?,
            None => self.0.get_flight_info(request).await?.into_inner().schema,
        };
        Ok(with_cookie(&client.session, Response::new(SchemaResult { schema })))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Answer<Self::DoGetStream> {
        let (request, client) = self.entered(request).await?;
        let response = self.0.do_get(request).await?;
        Ok(with_cookie(&client.session, response))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        let (request, client) = self.entered(request).await?;
        let response = self.0.do_put(request).await?;
        Ok(with_cookie(&client.session, response))
    }

    async fn do_action(&self, request: Request<Action>) -> Answer<Self::DoActionStream> {
        let (request, client) = self.entered(request).await?;
        let response = self.0.do_action(request).await?;
        Ok(with_cookie(&client.session, response))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        let actions = [
            ("CreatePreparedStatement", "Parses and plans a statement, for many executions"),
            ("ClosePreparedStatement", "Forgets a prepared statement"),
            ("CancelQuery", "Ends a query"),
            ("CancelFlightInfo", "Ends a query"),
            ("SetSessionOptions", "Sets options of the session, as SET does"),
            ("GetSessionOptions", "Lists the options of the session"),
            ("CloseSession", "Ends the session and its queries"),
            (PROGRESS, "Tells how much of the session's query is done"),
            (CLOSE_STREAM, "Ends the stream of this name, in all its epochs"),
        ];
        let action = |(kind, text): (&str, &str)| {
            Ok(ActionType { r#type: kind.to_owned(), description: text.to_owned() })
        };
        Ok(Response::new(iter(actions.map(action)).boxed()))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        Err(Status::unimplemented("exchanges of rows are not supported; use DoPut and DoGet"))
    }
}
