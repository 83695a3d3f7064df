//! How the processes of a cluster reach each other: encrypted if this one has a [`Tls`].

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::ClusterClient;
use super::messages::DescribeRequest;
use crate::protocol::tls::Tls;
use crate::protocol::tls::refusal::{Broken, root_cause};

/// For how long a process tries to reach another.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The port of another process at `host:port`.
///
/// # Errors
/// If the address is none.
pub(crate) fn endpoint(address: &str, tls: Option<&Tls>) -> Result<Endpoint> {
    let no_address = |error| {
        exec_datafusion_err!("'{address}' is not a valid HOST:PORT: {}", root_cause(&error))
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(no_address)?
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_LIMIT);
    match tls {
        Some(tls) => endpoint.tls_config(tls.client()).map_err(no_address),
        None => Ok(endpoint),
    }
}

/// Connects to a scheduler and waits until it has answered once.
///
/// # Errors
/// If nobody answers there, or one of both does not believe the other.
pub(crate) async fn reach_scheduler(
    endpoint: Endpoint,
    address: &str,
    tls: Option<&Tls>,
) -> Result<Channel> {
    let channel = match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => return Err(unreached(address, tls, Broken::by(&error)).await),
    };
    let mut client = ClusterClient::new(channel.clone());
    let greeting = client.describe(DescribeRequest::new());
    match tokio::time::timeout(CONNECT_LIMIT, greeting).await {
        Ok(Ok(_)) => Ok(channel),
        Ok(Err(status)) => match status.source().map(Broken::by) {
            Some(broken) => Err(unreached(address, tls, broken).await),
            None => Err(exec_datafusion_err!("the scheduler at {address}: {}", said(&status))),
        },
        Err(silence) => Err(unreached(address, tls, Broken::by(&silence)).await),
    }
}

async fn unreached(address: &str, tls: Option<&Tls>, broken: Broken) -> DataFusionError {
    match broken.refusal(address, tls).await {
        Some(why) => exec_datafusion_err!("the scheduler at {address} {why}"),
        None => exec_datafusion_err!(
            "no scheduler answers at {address}: {}; start one with `forebay serve`",
            broken.cause
        ),
    }
}

/// Answers on a port for as long as it is polled.
///
/// # Errors
/// If the port fails.
pub(crate) async fn serve(
    routes: Router,
    port: TcpListener,
    tls: Option<Tls>,
) -> Result<(), tonic::transport::Error> {
    let callers = TcpIncoming::from(port).with_nodelay(Some(true));
    // Nothing tells it to stop; with such a future, connections end when this one is dropped.
    let stop = std::future::pending();
    match tls {
        Some(tls) => routes.serve_with_incoming_shutdown(tls.accept(callers), stop).await,
        None => routes.serve_with_incoming_shutdown(callers, stop).await,
    }
}

/// Connections to workers, shared by all that runs in a process.
#[derive(Debug, Default)]
pub struct Peers {
    tls: Option<Tls>,
    /// Those that are used, and when that was last.
    channels: Mutex<HashMap<String, (Channel, Instant)>>,
    /// Addresses where nobody answered, and when that was.
    silent: Mutex<HashMap<String, Instant>>,
}

/// After which time a connection that nobody used is given up: the worker may be gone, and another
/// one is soon made.
const UNUSED_FOR: Duration = Duration::from_secs(300);

/// For how long a worker counts as one that was silent.
const SILENT_FOR: Duration = Duration::from_secs(30);

impl Peers {
    /// No connections yet; each is made when it is first wanted.
    pub fn new(tls: Option<Tls>) -> Self {
        Self { tls, ..Self::default() }
    }

    /// To the worker at `host:port`, which counts as not reached after `patience`.
    ///
    /// # Errors
    /// If the address is none.
    pub(crate) fn channel(&self, address: &str, patience: Duration) -> Result<Channel, Status> {
        let mut channels = self.channels.lock();
        let now = Instant::now();
        channels.retain(|other, (_, used)| other == address || now - *used < UNUSED_FOR);
        if let Some((channel, used)) = channels.get_mut(address) {
            *used = now;
            return Ok(channel.clone());
        }
        let endpoint = endpoint(address, self.tls.as_ref())
            .map_err(|error| Status::invalid_argument(error.strip_backtrace()))?;
        let channel = endpoint.connect_timeout(patience).connect_lazy();
        channels.insert(address.to_owned(), (channel.clone(), now));
        Ok(channel)
    }

    /// The next one who wants it gets a new one.
    pub(crate) fn hang_up(&self, address: &str, was_silent: bool) {
        self.channels.lock().remove(address);
        if was_silent {
            self.silent.lock().insert(address.to_owned(), Instant::now());
        }
    }

    /// Whether nobody answered there a short while ago.
    pub(crate) fn was_silent(&self, address: &str) -> bool {
        let mut silent = self.silent.lock();
        silent.retain(|_, since| since.elapsed() < SILENT_FOR);
        silent.contains_key(address)
    }

    /// Somebody answered there: the next call is waited for as long as any.
    pub(crate) fn answered(&self, address: &str) {
        self.silent.lock().remove(address);
    }
}

/// What people want to know of a call that failed: what the other side said, or why it did not.
pub fn said(status: &Status) -> String {
    let text = status.source().map_or_else(|| status.message().to_owned(), root_cause);
    match status.code() {
        _ if !text.is_empty() => text,
        // gRPC servers answer so to calls of services that they do not have.
        Code::Unimplemented => {
            "it is another kind of server; HOST:PORT is for the port of a scheduler (`forebay serve \
             --bind`), grpc://HOST:PORT for that of Arrow Flight SQL (`--flight-sql`)"
                .to_owned()
        }
        code => format!("{code:?}, without a reason"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_nobody_uses_is_given_up() {
        let peers = Peers::default();
        let call = |address: &str| peers.channel(address, CONNECT_LIMIT).unwrap();
        let addresses = || {
            let mut found: Vec<_> = peers.channels.lock().keys().cloned().collect();
            found.sort();
            found
        };
        call("127.0.0.1:1");
        call("127.0.0.1:2");
        assert_eq!(addresses(), ["127.0.0.1:1", "127.0.0.1:2"]);
        for (_, used) in peers.channels.lock().values_mut() {
            *used = used.checked_sub(UNUSED_FOR).unwrap();
        }
        call("127.0.0.1:2");
        assert_eq!(addresses(), ["127.0.0.1:2"]);
    }
}
