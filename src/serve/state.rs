//! The state of a server: how it comes to have it, and that it has it no more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::object_store::ObjectStoreRegistry;
use forebay::stores::Stores;
use forebay_scheduler::journal::{Hold, State};
use object_store::path::Path;
use url::Url;

use crate::args::serve::{ServeArgs, Silence, StatePlace};

/// Waits until no other server has the state, if this one is to have one. `who` is how others are told of it, and
/// `ports` where it will listen.
///
/// # Errors
/// If the state cannot be used.
pub(super) async fn take(
    args: &ServeArgs,
    who: &str,
    ports: Vec<SocketAddr>,
) -> Result<Option<Hold>> {
    let Some(place) = &args.state else { return Ok(None) };
    let Silence(silence) = args.takeover_after;
    let limit = Duration::from_secs(args.scheduler_timeout);
    if silence.is_some_and(|silence| silence >= limit) {
        tracing::info!(
            "workers and clients wait {} s for a server to go on (--scheduler-timeout): too short for one that takes \
             over from a silent one (--takeover-after)",
            limit.as_secs()
        );
    }
    let state = match place {
        StatePlace::Folder(folder) => State::in_folder(folder),
        StatePlace::Store(url) if silence.is_none() => {
            return exec_err!(
                "--takeover-after never is for a folder: in {url} nobody can see that a server is gone, but that it is silent"
            );
        }
        StatePlace::Store(url) => in_store(url)?,
    };
    let state = state.with_who(who).with_ports(ports).with_takeover_after(silence);
    let state = match args.journal_copied_from {
        Some(bytes) => state.with_copied_from(bytes),
        None => state,
    };
    Ok(Some(state.take().await?))
}

fn in_store(url: &Url) -> Result<State> {
    let store = Stores::default().get_store(url)?;
    let prefix = Path::from_url_path(url.path())
        .map_err(|error| exec_datafusion_err!("--state {url}: {error}"))?;
    Ok(State::in_store(Arc::clone(&store), prefix, url.as_str()))
}

/// Waits until this server has the state no more, and says why.
pub(super) async fn lost(hold: Option<&Hold>) -> DataFusionError {
    match hold {
        Some(hold) => hold.lost().await.into(),
        None => std::future::pending().await,
    }
}

/// Whoever waits for the state can have it.
pub(super) async fn let_go(hold: Option<Hold>) {
    if let Some(hold) = hold {
        hold.let_go().await;
    }
}
