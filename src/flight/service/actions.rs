//! Actions that are not Flight SQL's: those of Flight itself, and our own.

use std::collections::HashMap;

use arrow_flight::{Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus};
use prost::Message;
use tonic::Status;

use super::Service;
use super::client::Client;
use crate::flight::protocol::actions::{
    CLOSE_STREAM, CloseSessionResult, CloseStatus, GetSessionOptionsResult, OptionError,
    OptionErrorValue, OptionValue, PROGRESS, SetSessionOptionsRequest, SetSessionOptionsResult,
};
use crate::flight::statements::session::Session;

impl Service {
    /// Does what a client asks for; gives back the body of the answer.
    pub(super) async fn act(&self, client: &Client, action: &Action) -> Result<Vec<u8>, Status> {
        let session = &client.session;
        Ok(match action.r#type.as_str() {
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
                set_options(session, request).await.encode_to_vec()
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
        })
    }
}

async fn set_options(
    session: &Session,
    request: SetSessionOptionsRequest,
) -> SetSessionOptionsResult {
    let mut errors = HashMap::new();
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

/// All options of a session.
fn options(session: &Session) -> GetSessionOptionsResult {
    let entries = session.context.session().state().config_options().entries();
    let set = entries.into_iter().filter_map(|entry| Some((entry.key, entry.value?)));
    let session_options = set.map(|(key, value)| (key, OptionValue::text(value))).collect();
    GetSessionOptionsResult { session_options }
}

/// What a client sent as the body of an action.
pub(super) fn decoded<M: Message + Default>(body: &[u8], what: &str) -> Result<M, Status> {
    M::decode(body).map_err(|error| Status::invalid_argument(format!("{what}: {error}")))
}
