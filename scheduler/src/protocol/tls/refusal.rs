//! Why one side did not want the other.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ClientConfig;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, RootCertStore};

use super::{Tls, crypto, server_name};

/// For how long a peer is asked again why it hung up.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// What is known of a connection that broke or never stood.
pub(crate) struct Broken {
    /// For people.
    pub(crate) cause: String,
    tls: Option<rustls::Error>,
}

impl Broken {
    /// Broken by an error.
    pub(crate) fn by(error: &(dyn Error + 'static)) -> Self {
        Self { cause: root_cause(error), tls: find(error).cloned() }
    }

    /// What is wrong with the peer at `address`, if it has to do with encryption.
    ///
    /// A peer that does not like a certificate says so after the connection stands, and what is
    /// said on it by then hides why it broke. So the peer is asked again, with nothing else to say.
    pub(crate) async fn refusal(&self, address: &str, tls: Option<&Tls>) -> Option<String> {
        if let Some(error) = &self.tls {
            return explain(error, tls);
        }
        let asked = tokio::time::timeout(ASK_LIMIT, ask(address, tls)).await.ok()?;
        let error = asked.err()?;
        match (tls, find(&error)?) {
            (Some(tls), error) => explain(error, Some(tls)),
            // It answered with a certificate, which nobody has said to believe.
            (None, rustls::Error::InvalidCertificate(_)) => {
                Some(format!("wants TLS; give {FILES}"))
            }
            (None, _) => None,
        }
    }
}

/// The end of a chain of errors. What `io::Error` wraps is not among its sources.
pub(crate) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = inner(cause) {
        cause = inner;
    }
    cause.to_string()
}

fn inner<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// What rustls said, however deep.
pub(super) fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        next = inner(error);
    }
    None
}

/// What is wrong with a caller, if it speaks TLS.
pub(super) fn of_caller(error: &io::Error) -> Option<String> {
    match find(error)? {
        rustls::Error::InvalidMessage(_) => None,
        rustls::Error::NoCertificatesPresented => Some("shows no certificate".to_owned()),
        rustls::Error::AlertReceived(alert) => {
            Some(format!("does not believe this process's certificate ({alert:?})"))
        }
        error => Some(format!("shows a certificate that {}", flaw(error))),
    }
}

/// What is wrong with a certificate, said of it.
pub(super) fn flaw(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(error) = error else {
        return format!("is not accepted: {error}");
    };
    match error {
        // A key that only has the authority's name gives bad signatures.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by the authority".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names = match presented.as_slice() {
                [] => "no host".to_owned(),
                names => names.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
            };
            format!("does not name {} but {names}", expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is for other purposes; its extendedKeyUsage must be serverAuth and clientAuth"
                .to_owned()
        }
        other => format!("is not accepted: {other}"),
    }
}

/// `DnsName("gpu-1.example")` without what is around the name.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

const FILES: &str = "--tls-cert, --tls-key and --tls-ca";

/// Said of the peer that was called.
fn explain(error: &rustls::Error, tls: Option<&Tls>) -> Option<String> {
    let files = tls.map(|tls| &tls.0.files)?;
    let own = files.certificate.display();
    match error {
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => Some(format!(
            "has a certificate that is not signed by the authority {}",
            files.authority.display()
        )),
        rustls::Error::InvalidCertificate(_) => {
            Some(format!("has a certificate that {}", flaw(error)))
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            Some(format!("refuses the certificate {own}: it has expired, or is not valid yet"))
        }
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::DecryptError,
        ) => Some(format!(
            "refuses the certificate {own}: it is not signed by the authority that counts there"
        )),
        rustls::Error::AlertReceived(alert) => {
            Some(format!("refuses the certificate {own} ({alert:?})"))
        }
        rustls::Error::InvalidMessage(_) => {
            Some(format!("does not speak TLS; start it with {FILES}, or leave them out here"))
        }
        other => Some(format!("cannot be reached with TLS: {other}")),
    }
}

/// Shows a peer the certificate, and listens.
async fn ask(address: &str, tls: Option<&Tls>) -> io::Result<()> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = server_name(host).map_err(io::Error::other)?;
    let config = match tls {
        Some(tls) => Arc::clone(&tls.0.raw_client),
        None => believes_nobody().map_err(io::Error::other)?,
    };
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(config).connect(name, stream).await?;
    stream.read_u8().await.map(drop)
}

fn believes_nobody() -> Result<Arc<ClientConfig>, rustls::Error> {
    let config = ClientConfig::builder_with_provider(crypto())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(Arc::new(config))
}
