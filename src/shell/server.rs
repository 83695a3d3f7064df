//! A server of Arrow Flight SQL, which runs the statements of this shell in a session of its own.

use std::fs;
use std::path::Path;
use std::time::Duration;

use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{FlightClient, FlightDescriptor, FlightInfo, Ticket};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{exec_datafusion_err, exec_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use forebay_scheduler::protocol::connection;
use forebay_scheduler::protocol::tls::choose_crypto;
use futures::TryStreamExt;
use prost::Message;
use tokio::sync::watch;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::args::shell::ShellArgs;

/// How often a server is asked how far a query is.
const ASKED_EVERY: Duration = Duration::from_millis(500);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The secrets of whoever connects, which do not belong on a command line.
const PASSWORD: &str = "FOREBAY_PASSWORD";
const TOKEN: &str = "FOREBAY_TOKEN";

/// Whether an address is that of a Flight SQL server, not of a scheduler.
pub(super) fn is_server(address: &str) -> bool {
    address.starts_with("grpc://") || address.starts_with("grpc+tls://")
}

/// A session on a server.
pub(super) struct Server {
    channel: Channel,
    metadata: MetadataMap,
}

/// A query on a server. Dropping its rows ends it.
pub(super) struct Answer {
    pub(super) rows: SendableRecordBatchStream,
    /// How much of it is done, from 0 to 1, as far as the server knows.
    pub(super) done: watch::Receiver<Option<f64>>,
}

impl Server {
    /// Connects, and logs in if there is a user or a token.
    ///
    /// # Errors
    /// If nobody answers there, or the user is not believed.
    pub(super) async fn connect(uri: &str, args: &ShellArgs) -> Result<Self> {
        let channel = channel(uri, args).await?;
        let mut client = FlightClient::new(channel.clone());
        match (&args.user, std::env::var(TOKEN)) {
            (Some(user), _) => {
                let secret = BASE64_STANDARD.encode(format!("{user}:{}", password(user)?));
                authorize(client.metadata_mut(), &format!("Basic {secret}"))?;
            }
            (None, Ok(token)) => authorize(client.metadata_mut(), &format!("Bearer {token}"))?,
            (None, Err(_)) => {}
        }
        // Its token stands for a session, whatever becomes of the connection.
        let token = client.handshake("").await.map_err(|error| of_flight(uri, error))?;
        let token = String::from_utf8_lossy(&token).into_owned();
        authorize(client.metadata_mut(), &format!("Bearer {token}"))?;
        Ok(Self { channel, metadata: client.metadata().clone() })
    }

    fn client(&self) -> FlightClient {
        // A row may be larger than the 4 MB that gRPC takes by itself.
        let client = FlightServiceClient::new(self.channel.clone());
        let client = client.max_decoding_message_size(usize::MAX);
        let mut client = FlightClient::new_from_inner(client);
        client.metadata_mut().clone_from(&self.metadata);
        client
    }

    /// Runs one statement.
    ///
    /// # Errors
    /// Those of the server; those of the query come with its rows.
    pub(super) async fn run(&self, statement: &str) -> Result<Answer> {
        let command = CommandStatementQuery { query: statement.to_owned(), transaction_id: None };
        let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        let mut client = self.client();
        let flight = client.get_flight_info(descriptor).await.map_err(of_query)?;
        let ticket = ticket(&flight)?;
        let schema = flight.try_decode_schema()?;
        let rows = client.do_get(ticket.clone()).await.map_err(of_query)?;
        let (sender, done) = watch::channel(None);
        let asking = SpawnedTask::spawn(ask(self.client(), ticket, sender));
        let rows = watched(rows, asking);
        Ok(Answer { rows: Box::pin(RecordBatchStreamAdapter::new(schema.into(), rows)), done })
    }
}

/// Rows, and with them whoever asks how far they are.
fn watched(
    rows: FlightRecordBatchStream,
    asking: SpawnedTask<()>,
) -> impl futures::Stream<Item = Result<arrow::array::RecordBatch>> {
    rows.map_err(of_query).inspect_ok(move |_| {
        let _ = &asking;
    })
}

/// Asks until nobody wants to know any more, or the server does not say.
async fn ask(mut client: FlightClient, ticket: Ticket, done: watch::Sender<Option<f64>>) {
    let descriptor = FlightDescriptor::new_cmd(ticket.ticket);
    while !done.is_closed() {
        tokio::time::sleep(ASKED_EVERY).await;
        let Ok(poll) = client.poll_flight_info(descriptor.clone()).await else { return };
        done.send_replace(poll.progress);
    }
}

fn ticket(flight: &FlightInfo) -> Result<Ticket> {
    let ticket = flight.endpoint.first().and_then(|endpoint| endpoint.ticket.clone());
    ticket.ok_or_else(|| exec_datafusion_err!("the server gave no ticket for the rows"))
}

async fn channel(uri: &str, args: &ShellArgs) -> Result<Channel> {
    let is_secret = uri.starts_with("grpc+tls://");
    let (_, host) = uri.split_once("://").unwrap_or_default();
    let scheme = if is_secret { "https" } else { "http" };
    let said = |error: &dyn std::fmt::Display| {
        exec_datafusion_err!("there is no Flight SQL server at {uri}: {error}")
    };
    let endpoint = Endpoint::try_from(format!("{scheme}://{host}"));
    let mut endpoint = endpoint.map_err(|error| said(&error))?.connect_timeout(CONNECT_LIMIT);
    if is_secret {
        endpoint = endpoint.tls_config(tls(args)?).map_err(|error| said(&error))?;
    }
    endpoint.connect().await.map_err(|error| said(&deepest(&error)))
}

/// What a transport says last is why.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

fn tls(args: &ShellArgs) -> Result<ClientTlsConfig> {
    let Some(authority) = args.server_ca.as_ref().or(args.tls.tls_ca.as_ref()) else {
        return exec_err!(
            "grpc+tls:// needs --server-ca with the certificate of the server's authority (PEM)"
        );
    };
    choose_crypto();
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(authority)?));
    if let (Some(certificate), Some(key)) = (&args.tls.tls_cert, &args.tls.tls_key) {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| exec_datafusion_err!("{}: {error}", path.display()))
}

fn password(user: &str) -> Result<String> {
    match std::env::var(PASSWORD) {
        Ok(password) => Ok(password),
        Err(_) => rpassword::prompt_password(format!("password of {user}: ")).map_err(|_| {
            exec_datafusion_err!("the password of {user}: there is no terminal; set {PASSWORD}")
        }),
    }
}

fn authorize(metadata: &mut MetadataMap, header: &str) -> Result<()> {
    let value = MetadataValue::try_from(header).map_err(|_| {
        exec_datafusion_err!("the password or token has characters that cannot be sent")
    })?;
    metadata.insert("authorization", value);
    Ok(())
}

fn of_flight(uri: &str, error: FlightError) -> DataFusionError {
    exec_datafusion_err!("{uri}: {}", message(error))
}

fn of_query(error: FlightError) -> DataFusionError {
    DataFusionError::Execution(message(error))
}

fn message(error: FlightError) -> String {
    match error {
        FlightError::Tonic(status) => connection::said(&status),
        other => other.to_string(),
    }
}
