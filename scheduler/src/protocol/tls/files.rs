//! The three files, and what may be wrong with them.

use std::fs;
use std::path::{Path, PathBuf};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, RootCertStore};

/// Where they are.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) authority: PathBuf,
}

/// What is in them.
pub(super) struct Read {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) authority: Vec<u8>,
}

impl Files {
    pub(super) fn read(&self) -> Result<Read> {
        Ok(Read {
            certificate: read(&self.certificate, &self.of_certificate())?,
            key: read(&self.key, &self.of_key())?,
            authority: read(&self.authority, &self.of_authority())?,
        })
    }

    /// This process's certificate and what follows it.
    pub(super) fn chain(&self, read: &Read) -> Result<Vec<CertificateDer<'static>>> {
        certificates(&read.certificate, &self.of_certificate())
    }

    pub(super) fn key(&self, read: &Read) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&read.key).map_err(|_| {
            exec_datafusion_err!(
                "{}: it holds no key that can be read; it must be PEM and not encrypted: \
                 'BEGIN PRIVATE KEY'",
                self.of_key()
            )
        })
    }

    /// Whom this process believes.
    pub(super) fn roots(&self, read: &Read) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&read.authority, &self.of_authority())? {
            roots.add(certificate).map_err(|error| {
                exec_datafusion_err!(
                    "{}: a certificate in it is malformed: {error}",
                    self.of_authority()
                )
            })?;
        }
        Ok(roots)
    }

    /// What rustls says of a certificate and its key.
    pub(super) fn wrong(&self, error: &rustls::Error) -> DataFusionError {
        match error {
            rustls::Error::InconsistentKeys(_) => exec_datafusion_err!(
                "{} is not that of the certificate {}",
                self.of_key(),
                self.certificate.display()
            ),
            other => exec_datafusion_err!("{}: {other}", self.of_certificate()),
        }
    }

    /// Others would hang up on this process.
    pub(super) fn not_believed(&self, host: &str, flaw: &str) -> DataFusionError {
        exec_datafusion_err!(
            "{} {flaw}; others call this process {host}: make a certificate for that, of the \
             authority {}, or give another --host",
            self.of_certificate(),
            self.authority.display()
        )
    }

    pub(super) fn no_certificate(&self) -> DataFusionError {
        no_certificate(&self.of_certificate())
    }

    pub(super) fn of_certificate(&self) -> String {
        format!("the TLS certificate {}", self.certificate.display())
    }

    pub(super) fn of_key(&self) -> String {
        format!("the TLS key {}", self.key.display())
    }

    pub(super) fn of_authority(&self) -> String {
        format!("the TLS authority {}", self.authority.display())
    }
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| exec_datafusion_err!("{what} cannot be read: {error}"))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(no_certificate(what)),
        Ok(found) => Ok(found),
        Err(error) => exec_err!("{what} is not a valid PEM file: {error}"),
    }
}

fn no_certificate(what: &str) -> DataFusionError {
    exec_datafusion_err!("{what} holds no certificate; it must be PEM: 'BEGIN CERTIFICATE'")
}
