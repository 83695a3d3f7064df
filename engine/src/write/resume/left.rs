//! What an earlier write to a staging folder that stays has left of a commit.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use datafusion::common::{Result, exec_err};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::OwnedMutexGuard;

use crate::delta::Transaction;
use crate::write::noted::{damaged, note, noted};
use crate::write::publish::{Decided, Move, below, complete, decision, undecide};
use crate::write::staging::{Staging, delete, is_there};

/// Whose turn it is, by staging folders.
type Turns = HashMap<Path, Weak<tokio::sync::Mutex<()>>>;

/// Staging folders in which somebody of this process is at work, or waits to be.
static AT_WORK: LazyLock<Mutex<Turns>> = LazyLock::new(Mutex::default);

/// Waits until nobody else is at work in this staging folder: a commit that nobody waits for may be.
pub(in crate::write) async fn alone(staging: &Staging) -> OwnedMutexGuard<()> {
    let turn = {
        let mut all = AT_WORK.lock();
        all.retain(|_, turn| turn.strong_count() > 0);
        match all.get(staging.folder()).and_then(Weak::upgrade) {
            Some(turn) => turn,
            None => {
                let turn = Arc::default();
                all.insert(staging.folder().clone(), Arc::downgrade(&turn));
                turn
            }
        }
    };
    turn.lock_owned().await
}

/// # Errors
/// If it has been removed: then nobody knows whether its files were committed before.
pub(in crate::write) async fn check_is_there(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
) -> Result<()> {
    if staging.is_resumable(store.as_ref()).await? {
        return Ok(());
    }
    exec_err!(
        "the staging folder '{}' of the job is gone, removed by `forebay gc` or by hand, and nobody knows whether \
         its files had been committed: look whether the rows are there, FORGET JOB, and submit the statement \
         again if they are not",
        staging.folder()
    )
}

/// Completes a commit that was decided, and takes back one that was not. Says whether all is visible.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn is_committed(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    place: &Path,
    transaction: Option<&Transaction>,
) -> Result<bool> {
    let decided = decision(store, staging).await?;
    if stands(store, staging, place, transaction, decided.as_ref()).await? {
        let is_noted = is_there(store.as_ref(), &staging.committed()).await?;
        if let Some(decided) = decided.filter(|_| !is_noted) {
            complete(store.as_ref(), staging, &decided).await?;
        }
        return Ok(true);
    }
    if let Some(decided) = decided {
        complete(store.as_ref(), staging, &decided).await?;
        undecide(store.as_ref(), staging).await?;
    }
    let Some(moves) = noted_moves(store.as_ref(), staging).await? else { return Ok(false) };
    for (from, to) in moves {
        if !is_there(store.as_ref(), &from).await? && is_there(store.as_ref(), &to).await? {
            store.rename(&to, &from).await?;
        }
    }
    delete(store.as_ref(), &staging.moving()).await?;
    Ok(false)
}

/// Whether a commit has come so far that nothing takes it back; changes nothing.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn stands(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    place: &Path,
    transaction: Option<&Transaction>,
    decided: Option<&Decided>,
) -> Result<bool> {
    if is_there(store.as_ref(), &staging.committed()).await? {
        return Ok(true);
    }
    if let Some(transaction) = transaction {
        return transaction.is_done().await;
    }
    if let Some(decided) = decided {
        return Ok(decided.stays());
    }
    // A folder that was renamed as a whole.
    let on_disk = std::path::Path::new("/").join(place.as_ref());
    if !staging.is_local() || !on_disk.is_dir() {
        return Ok(false);
    }
    let Some(moves) = noted_moves(store.as_ref(), staging).await? else { return Ok(false) };
    for (from, to) in moves {
        if is_there(store.as_ref(), &from).await? || is_there(store.as_ref(), &to).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[derive(Clone, PartialEq, Message)]
struct Moves {
    #[prost(string, repeated, tag = "1")]
    from: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    to: Vec<String>,
}

/// Writes down what a commit is about to move to this folder, so that it can be moved back.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn note_moves(
    store: &dyn ObjectStore,
    staging: &Staging,
    folder: &Path,
    moves: &[Move],
) -> Result<()> {
    let noted = Moves {
        from: moves.iter().map(|moved| moved.from.to_string()).collect(),
        to: moves.iter().map(|moved| below(folder, &moved.name).to_string()).collect(),
    };
    note(store, &staging.moving(), staging.is_local(), &noted).await
}

async fn noted_moves(
    store: &dyn ObjectStore,
    staging: &Staging,
) -> Result<Option<Vec<(Path, Path)>>> {
    let path = staging.moving();
    let Some(Moves { from, to }) = noted(store, &path).await? else { return Ok(None) };
    if from.len() != to.len() {
        return Err(damaged(&path, &"it does not say where all of it goes"));
    }
    let moved = |(from, to): (&String, &String)| {
        let (from, to) = (Path::parse(from).ok()?, Path::parse(to).ok()?);
        // Anybody may have put it there.
        let is_own = from.prefix_matches(staging.folder()) && to.prefix_matches(&staging.parent());
        is_own.then_some((from, to))
    };
    let moves: Option<Vec<_>> = from.iter().zip(&to).map(moved).collect();
    moves.map(Some).ok_or_else(|| damaged(&path, &"it moves what is not the write's"))
}
