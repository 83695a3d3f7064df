//! Arrow Flight SQL: the door for all clients that are not Forebay's own.
//!
//! ```text
//!  client ─▶ front: who is it, which session ─▶ service: which call
//!                                                  │
//!            rows ◀── query: runs, is read ◀── statement: parsed, checked, planned
//! ```
//!
//! - [`FlightServer`]: a port, and what is behind it
//! - `service`: the calls; `protocol`: their messages; `status`: errors as gRPC has them
//! - `access`: who calls, and what that one may do; `limits`: what one of many may take
//! - `statements`: from text to rows; `jobs`: statements that run on when their client is gone
//! - `stream`: the rows of one query for many training clients
//!
//! Knows nothing of the command line. Queries run where the given [`ForebayContext`] runs them.

mod access;
mod jobs;
mod limits;
mod opaque;
mod protocol;
mod service;
mod statements;
mod status;
mod stream;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::ForebayContext;
use access::login::Directory;
use access::rights::Roots;
pub use access::users::{Role, Users};
use forebay_scheduler::journal::Hold;
use forebay_scheduler::protocol::tls::choose_crypto;
pub use limits::Limits;
use service::Service;
use service::clients::Clients;
use service::front::Front;

/// Messages from clients may be so long: rows to write, and texts of statements.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// How often a silent client is asked whether it is there, and for how long it may think.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(20);

/// How often it is looked for sessions that nobody uses any more, and users that have been removed.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// Files of the certificate that clients see (PEM).
#[derive(Clone, Debug)]
pub struct FlightTls {
    /// The certificate, and others that its authority needs.
    pub certificate: Vec<u8>,
    /// The private key of the first certificate.
    pub key: Vec<u8>,
    /// The authority that clients must have certificates from, if they must have one.
    pub clients: Option<Vec<u8>>,
}

/// A Flight SQL server.
///
/// ```no_run
/// # async fn example() -> datafusion::error::Result<()> {
/// use forebay::flight::FlightServer;
/// use forebay::ForebayContext;
///
/// let context = ForebayContext::builder().without_url_tables().build()?;
/// let mut server = FlightServer::new(context).bind(([127, 0, 0, 1], 50051).into()).await?;
/// println!("grpc://{}", server.address());
/// server.stopped().await
/// # }
/// ```
#[derive(Clone)]
pub struct FlightServer {
    context: ForebayContext,
    directory: Option<Directory>,
    roots: Roots,
    limits: Limits,
    state: Option<Hold>,
    tls: Option<FlightTls>,
}

impl FlightServer {
    /// Sessions are made after `context`: they share its tables and models, and where its queries
    /// run. Everyone who can reach the port may do everything, unless [`Self::with_users`] says who.
    pub fn new(context: ForebayContext) -> Self {
        let (roots, limits) = (Roots::Anything, Limits::default());
        Self { context, directory: None, roots, limits, state: None, tls: None }
    }

    /// Only these may connect, and do what their roles allow.
    #[must_use]
    pub fn with_users(mut self, users: Users) -> Self {
        self.directory = Some(Directory::of(users));
        self
    }

    /// Only those may connect whom this file names, and do what their roles allow. It is read again
    /// when it has changed: sessions of those who are removed end.
    ///
    /// # Errors
    /// If it cannot be read or is no such file.
    pub fn with_users_file(mut self, path: &Path) -> Result<Self> {
        self.directory = Some(Directory::open(path)?);
        Ok(self)
    }

    /// Clients may name files and packages below these folders and URLs only.
    ///
    /// # Errors
    /// If one is neither.
    pub fn with_roots(mut self, roots: &[String]) -> Result<Self> {
        self.roots = Roots::below(roots)?;
        Ok(self)
    }

    /// What clients may have at a time.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Keeps what is needed to resume jobs in this state, and commits nothing once another server has it.
    #[must_use]
    pub fn with_state(mut self, state: Hold) -> Self {
        self.state = Some(state);
        self
    }

    /// Encrypts all connections; without this, passwords and tokens can be read on the way.
    #[must_use]
    pub fn with_tls(mut self, tls: FlightTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Listens; port 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken, or the certificate is none, or the state cannot be used.
    pub async fn bind(self, address: SocketAddr) -> Result<Listening> {
        let said = |problem: &dyn fmt::Display| {
            exec_datafusion_err!("Flight SQL cannot listen on {address}: {problem}")
        };
        let incoming = TcpIncoming::bind(address).map_err(|error| said(&error))?;
        let incoming = incoming.with_nodelay(Some(true));
        let address = incoming.local_addr().map_err(|error| said(&error))?;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE_EVERY))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_LIMIT));
        if let Some(tls) = &self.tls {
            choose_crypto();
            let identity = Identity::from_pem(&tls.certificate, &tls.key);
            let limit = forebay_scheduler::protocol::tls::HANDSHAKE_LIMIT;
            let mut config = ServerTlsConfig::new().identity(identity).timeout(limit);
            if let Some(clients) = &tls.clients {
                config = config.client_ca_root(Certificate::from_pem(clients));
            }
            server = server.tls_config(config).map_err(|error| said(&error))?;
        }
        let state = self.state.as_ref();
        let clients = Clients::new(self.context, self.directory, self.roots, self.limits, state);
        let clients = Arc::new(clients.await?);
        let service = Front(Service { clients: Arc::clone(&clients) });
        let service = FlightServiceServer::new(service)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(usize::MAX);
        let stop = CancellationToken::new();
        let router = server.add_service(service);
        let serving = router.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        let serving = SpawnedTask::spawn(async move {
            serving.await.map_err(|error| exec_datafusion_err!("Flight SQL stopped: {error}"))
        });
        let sweeping = SpawnedTask::spawn(sweep(Arc::clone(&clients)));
        let jobs = clients.jobs.guard();
        Ok(Listening { address, clients, stop, serving, _sweeping: sweeping, _jobs: jobs })
    }
}

impl fmt::Debug for FlightServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightServer").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A server that listens, until it is dropped.
pub struct Listening {
    address: SocketAddr,
    clients: Arc<Clients>,
    stop: CancellationToken,
    serving: SpawnedTask<Result<()>>,
    _sweeping: SpawnedTask<()>,
    _jobs: DropGuard,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listening {
    /// Where it listens: with the port that was free, if it was told to take one.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it listens no more.
    ///
    /// # Errors
    /// Why it had to stop.
    pub async fn stopped(&mut self) -> Result<()> {
        let ended = (&mut self.serving).await;
        ended.map_err(|error| exec_datafusion_err!("Flight SQL: {error}"))?
    }

    /// Begins no more queries, and waits until those that run have ended and their rows were sent.
    /// Who asks for another one meanwhile is told; then it listens no more. Detached jobs are not waited
    /// for, but canceled.
    ///
    /// # Errors
    /// Why it had to stop before that.
    pub async fn drain(mut self) -> Result<()> {
        self.clients.jobs.end().await;
        self.clients.slots.drain().await;
        self.clients.jobs.forget_all();
        // The last rows are still on their way.
        self.stop.cancel();
        self.stopped().await
    }
}

async fn sweep(clients: Arc<Clients>) {
    let mut every = tokio::time::interval(SWEEP_EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        clients.sweep();
    }
}
