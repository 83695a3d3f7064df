//! SIGTERM and Ctrl-C. The first one is a wish: what runs may end. The second one is an order.

use std::future::Future;
use std::pin::pin;

use datafusion::common::{Result, exec_err};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs what serves others, which ends once the token that it is given is canceled: at the first
/// signal. It is not waited for after a second one.
///
/// # Errors
/// Its own, and if it was not waited for.
pub(crate) async fn obeying<W>(work: impl FnOnce(CancellationToken) -> W) -> Result<()>
where
    W: Future<Output = Result<()>>,
{
    let mut signals = Signals::listen();
    let stop = CancellationToken::new();
    let mut work = pin!(work(stop.clone()));
    tokio::select! {
        ended = &mut work => return ended,
        () = signals.next() => stop.cancel(),
    }
    tokio::select! {
        ended = &mut work => ended,
        () = signals.next() => exec_err!("told to end twice: what still ran was cut off"),
    }
}

struct Signals {
    terminate: Option<Signal>,
    interrupt: Option<Signal>,
}

impl Signals {
    fn listen() -> Self {
        let listen = |kind, name| match signal(kind) {
            Ok(signal) => Some(signal),
            Err(error) => {
                tracing::warn!("{name} ends this process without waiting for what runs: {error}");
                None
            }
        };
        Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM"),
            interrupt: listen(SignalKind::interrupt(), "Ctrl-C"),
        }
    }

    async fn next(&mut self) {
        tokio::select! {
            () = received(&mut self.terminate) => {}
            () = received(&mut self.interrupt) => {}
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
