//! Which connections a process of a cluster encrypts, and which ports it dares to open.

use std::net::SocketAddr;

use datafusion::common::{Result, exec_err};
use forebay::Tls;

use crate::args::cluster::{ListenArgs, TlsArgs};

impl TlsArgs {
    /// What the files say, if there are any.
    pub(crate) fn open(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (Some(certificate), Some(key), Some(authority)) => {
                Tls::open(certificate, key, authority).map(Some)
            }
            (None, None, None) => Ok(None),
            _ => exec_err!("--tls-cert, --tls-key and --tls-ca are given together or not at all"),
        }
    }
}

impl ListenArgs {
    /// Refuses to let anyone in who can reach this machine, unless told to: a scheduler and its
    /// workers do what they are told, with all that their user may read.
    pub(crate) fn check(&self, ports: &[(&str, SocketAddr)], tls: Option<&Tls>) -> Result<()> {
        let is_open = |(_, address): &&(&str, SocketAddr)| !address.ip().is_loopback();
        match ports.iter().find(is_open) {
            Some((flag, address)) if tls.is_none() && !self.insecure => exec_err!(
                "{flag} {} can be reached from other machines, by anyone: give --tls-cert, \
                 --tls-key and --tls-ca, or --insecure on a network that you trust",
                address.ip()
            ),
            _ => Ok(()),
        }
    }
}
