//! Encrypted connections between the processes of a cluster, who prove to each other who they are.
//!
//! In: three PEM files: a certificate, its key, and the authority by which peers' certificates must
//! be signed. Out: [`Tls`], by which a process calls others and answers them. Whoever has a
//! certificate of the authority is trusted as a session, as a worker and as the scheduler.
//!
//! - `files`: reads them, and says what is wrong with one
//! - `accept`: the side that is called
//! - `refusal`: why one side did not want the other, for people
//!
//! Names rustls and tonic, no `ballista_*` and nothing of what is said on a connection.

mod accept;
mod files;
pub(crate) mod refusal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use files::Files;

/// For how long a peer may take until a connection is encrypted; one that takes longer is hung up on.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Who a process is to the others of its cluster, and whom it believes. Clones share.
///
/// ```no_run
/// # fn main() -> datafusion::error::Result<()> {
/// let tls = forebay_scheduler::Tls::open("gpu-1.pem", "gpu-1.key", "authority.pem")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tls(Arc<Opened>);

struct Opened {
    files: Files,
    /// Of this process, and what its authority needs to see besides.
    chain: Vec<CertificateDer<'static>>,
    believed: Arc<RootCertStore>,
    server: Arc<ServerConfig>,
    /// What tonic makes its own configuration of.
    client: ClientTlsConfig,
    /// The same for a connection without tonic.
    raw_client: Arc<ClientConfig>,
}

impl Tls {
    /// Reads PEM files: this process's certificate (others that its authority needs may follow it),
    /// the certificate's key, and the certificates of the authorities that peers may have theirs
    /// from. They are read once.
    ///
    /// # Errors
    /// If one cannot be read or is no such file, or if the key is another certificate's.
    pub fn open(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        authority: impl Into<PathBuf>,
    ) -> Result<Self> {
        let files =
            Files { certificate: certificate.into(), key: key.into(), authority: authority.into() };
        let read = files.read()?;
        let believed = Arc::new(files.roots(&read)?);
        let chain = files.chain(&read)?;
        let wrong = |error: rustls::Error| files.wrong(&error);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&believed), crypto())
            .build()
            .map_err(|error| exec_datafusion_err!("{}: {error}", files.of_authority()))?;
        let mut server = ServerConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), files.key(&read)?)
            .map_err(wrong)?;
        server.alpn_protocols = accept::PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let raw_client = ClientConfig::builder_with_provider(crypto())
            .with_safe_default_protocol_versions()
            .map_err(wrong)?
            .with_root_certificates(Arc::clone(&believed))
            .with_client_auth_cert(chain.clone(), files.key(&read)?)
            .map_err(wrong)?;
        let client = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&read.authority))
            .identity(Identity::from_pem(&read.certificate, &read.key))
            .timeout(HANDSHAKE_LIMIT);
        let (server, raw_client) = (Arc::new(server), Arc::new(raw_client));
        Ok(Self(Arc::new(Opened { files, chain, believed, server, client, raw_client })))
    }

    /// For calling others.
    pub(crate) fn client(&self) -> ClientTlsConfig {
        self.0.client.clone()
    }

    /// Checks that others, who believe the same authority, will believe this process when they call
    /// it `host`.
    pub(crate) fn check_host(&self, host: &str) -> Result<()> {
        let named = server_name(host)?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&self.0.believed), crypto())
                .build()
                .map_err(|error| {
                    exec_datafusion_err!("{}: {error}", self.0.files.of_authority())
                })?;
        let [own, others @ ..] = self.0.chain.as_slice() else {
            return Err(self.0.files.no_certificate());
        };
        let checked = verifier.verify_server_cert(own, others, &named, &[], UnixTime::now());
        match checked {
            Ok(_) => Ok(()),
            Err(error) => Err(self.0.files.not_believed(host, &refusal::flaw(&error))),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

/// Chooses this crate's cryptography for the process, unless that has a choice already. For
/// configurations that cannot be told which one to use, before the first of them is made: with more
/// than one linked in they panic otherwise.
pub fn choose_crypto() {
    // An error says that there is one.
    ring::default_provider().install_default().ok();
}

/// Chosen here: what else is linked in may bring another one.
fn crypto() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn server_name(host: &str) -> Result<ServerName<'static>, DataFusionError> {
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(plain.to_owned())
        .map_err(|error| exec_datafusion_err!("'{host}' is not a valid name of a host: {error}"))
}
