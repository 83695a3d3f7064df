//! The side that is called.

use std::io;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::TcpIncoming;

use super::{HANDSHAKE_LIMIT, Tls, refusal};

/// What is spoken on an encrypted connection; what reads metrics may know HTTP/1.1 only.
pub(super) const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Callers at a time who have not shown their certificate yet.
const HANDSHAKES_MAX: usize = 1024;

impl Tls {
    /// Those of `callers` who have a certificate of the authority.
    pub(crate) fn accept(
        self,
        callers: TcpIncoming,
    ) -> impl Stream<Item = io::Result<TlsStream<TcpStream>>> + Send {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.0.server));
        callers
            .map(move |caller| greet(acceptor.clone(), caller))
            .buffer_unordered(HANDSHAKES_MAX)
            .filter_map(std::future::ready)
    }
}

/// Nobody, if the caller is refused. Errors are those of the port.
async fn greet(
    acceptor: TlsAcceptor,
    caller: io::Result<TcpStream>,
) -> Option<io::Result<TlsStream<TcpStream>>> {
    let caller = match caller {
        Ok(caller) => caller,
        Err(error) => return Some(Err(error)),
    };
    let who = caller.peer_addr().map_or_else(|_| "a caller".to_owned(), |peer| peer.to_string());
    match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(caller)).await {
        Ok(Ok(greeted)) => return Some(Ok(greeted)),
        // Ballista's scheduler tries without encryption whether a new worker's port is there.
        Ok(Err(error)) => match refusal::of_caller(&error) {
            Some(flaw) => tracing::warn!("{who} was refused: it {flaw}"),
            None => tracing::info!("{who} hung up or does not speak TLS: {error}"),
        },
        Err(_) => tracing::info!("{who} was refused: it said nothing for {HANDSHAKE_LIMIT:?}"),
    }
    None
}
