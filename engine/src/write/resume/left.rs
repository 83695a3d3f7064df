//! What an earlier write to a staging folder that stays has left of a commit.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, SystemTime};

use datafusion::common::{Result, exec_err};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::OwnedMutexGuard;

use crate::delta::{Log, Transaction};
use crate::write::noted::{damaged, note, noted, sync_moved};
use crate::write::publish::{Decided, Move, below, complete, decision, undecide};
use crate::write::staging::{Staging, delete, is_there};

/// After which systems have written files of themselves.
const WRITTEN_BY_ITSELF_AFTER: Duration = Duration::from_secs(3600);

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

/// Completes a commit that stands, and takes back one that does not. Says whether all is visible.
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
        if !is_there(store.as_ref(), &staging.committed()).await? {
            if let Some(decided) = decided {
                complete(store.as_ref(), staging, &decided).await?;
            }
            if let Some(moving) = moving(store.as_ref(), staging).await? {
                moving.again(store.as_ref()).await?;
            }
            note_committed(store, staging, place).await?;
        }
        return Ok(true);
    }
    if let Some(decided) = decided {
        complete(store.as_ref(), staging, &decided).await?;
        undecide(store.as_ref(), staging).await?;
    }
    let Some(moving) = moving(store.as_ref(), staging).await? else { return Ok(false) };
    for (from, to) in &moving.moves {
        if !is_there(store.as_ref(), from).await? && is_there(store.as_ref(), to).await? {
            store.rename(to, from).await?;
        }
    }
    // A log that has not answered may take its entry yet: then the files are to be there again.
    if moving.transaction.is_none() {
        delete(store.as_ref(), &staging.moving()).await?;
    }
    Ok(false)
}

/// Ends a commit with which nobody goes on: one that stands is completed, as far as its files are still there, and
/// of another one nothing is visible, also of one that a store has not answered to and may do yet.
///
/// # Errors
/// Those of the store, and if the log of a Delta table cannot be read.
pub(in crate::write) async fn end(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    log: impl FnOnce() -> Result<Log>,
) -> Result<()> {
    if is_there(store.as_ref(), &staging.committed()).await? {
        return Ok(());
    }
    if let Some(decided) = decision(store, staging).await? {
        let decided = decided.of_what_is_left(store.as_ref()).await?;
        complete(store.as_ref(), staging, &decided).await?;
    }
    let Some(moving) = moving(store.as_ref(), staging).await? else { return Ok(()) };
    let Some(transaction) = &moving.transaction else { return Ok(()) };
    let log = log()?;
    if log.exists().await? {
        // Whatever the log takes from now on, nobody takes it for what this write has given.
        delete(store.as_ref(), &staging.resumable()).await?;
        if has_files(log, transaction).await? {
            return moving.again(store.as_ref()).await;
        }
    }
    for (_, to) in &moving.moves {
        delete(store.as_ref(), to).await?;
    }
    Ok(())
}

/// Whether a log has taken a transaction; if not, it never does from then on.
async fn has_files(log: Log, id: &str) -> Result<bool> {
    if log.has_taken(id).await? {
        return Ok(true);
    }
    let version = log.snapshot(None).await?.version();
    match Transaction::begin(log, version, id.to_owned(), false).await {
        Ok(transaction) => Ok(!transaction.close().await?),
        // It is of another kind by now, and takes nothing more of ours.
        Err(_) => Ok(false),
    }
}

/// Notes that a commit stands. Of a file system all of it survives a loss of power then: nothing needs to be known
/// of its job any more.
///
/// # Errors
/// If it might not.
pub(in crate::write) async fn note_committed(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    place: &Path,
) -> Result<()> {
    if staging.is_local() {
        let decided = decision(store, staging).await?;
        let mut files: Vec<Path> = decided.iter().flat_map(Decided::places).collect();
        let mut entries = vec![];
        if let Some(moving) = moving(store.as_ref(), staging).await? {
            if moving.transaction.is_some() {
                entries = new_entries(store.as_ref(), &staging.parent()).await?;
            }
            files.extend(moving.places(staging, place));
        }
        sync_moved(&files, &staging.parent(), entries).await?;
    }
    // Whoever does not find it looks at what was decided.
    store.put(&staging.committed(), PutPayload::new()).await.ok();
    Ok(())
}

/// What was written to the log of a Delta table lately, with its folder. What is older has long survived.
async fn new_entries(store: &dyn ObjectStore, table: &Path) -> Result<Vec<Path>> {
    let log = table.clone().join("_delta_log");
    let mut entries = vec![log.clone()];
    let mut found = store.list(Some(&log));
    while let Some(entry) = found.try_next().await? {
        let age = SystemTime::from(entry.last_modified).elapsed();
        if age.is_ok_and(|age| age > WRITTEN_BY_ITSELF_AFTER) {
            continue;
        }
        entries.push(entry.location);
    }
    Ok(entries)
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
    let Some(moving) = moving(store.as_ref(), staging).await? else { return Ok(false) };
    for (from, to) in &moving.moves {
        if is_there(store.as_ref(), from).await? || is_there(store.as_ref(), to).await? {
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
    /// With which the log of a Delta table takes them.
    #[prost(string, optional, tag = "3")]
    transaction: Option<String>,
}

/// What a commit was about to move.
struct Moving {
    moves: Vec<(Path, Path)>,
    transaction: Option<String>,
}

impl Moving {
    /// Moves there what has been moved back, of a Delta table whose log has come to have it all the same.
    async fn again(&self, store: &dyn ObjectStore) -> Result<()> {
        if self.transaction.is_none() {
            return Ok(());
        }
        for (from, to) in &self.moves {
            if is_there(store, from).await? {
                store.rename(from, to).await?;
            }
        }
        Ok(())
    }

    /// Where files are when the commit stands: a folder may have been renamed as a whole.
    fn places(&self, staging: &Staging, place: &Path) -> Vec<Path> {
        let table = staging.table();
        let at = |to: &Path| match to.prefix_match(&table) {
            Some(name) => place.parts().chain(name).collect(),
            None => to.clone(),
        };
        self.moves.iter().map(|(_, to)| at(to)).collect()
    }
}

/// Writes down what a commit is about to move to this folder, so that it can be moved back, and there again.
///
/// # Errors
/// Those of the store, and if the log of a Delta table has taken an earlier commit meanwhile, of other files.
pub(in crate::write) async fn note_moves(
    store: &dyn ObjectStore,
    staging: &Staging,
    folder: &Path,
    moves: &[Move],
    transaction: Option<&Transaction>,
) -> Result<()> {
    let of = |moved: &Move| (moved.from.clone(), below(folder, &moved.name));
    let all: Vec<(Path, Path)> = moves.iter().map(of).collect();
    if let Some(transaction) = transaction
        && let Some(earlier) = moving(store, staging).await?
        && earlier.moves != all
        && transaction.is_done().await?
    {
        return exec_err!(
            "the log of the table in '{folder}' had not answered to an earlier commit of this job, and took it only \
             after some of its files had been made anew: restore the version before that, FORGET JOB, and submit \
             the statement again"
        );
    }
    let noted = Moves {
        from: all.iter().map(|(from, _)| from.to_string()).collect(),
        to: all.iter().map(|(_, to)| to.to_string()).collect(),
        transaction: transaction.map(|transaction| transaction.id().to_owned()),
    };
    note(store, &staging.moving(), staging.is_local(), &noted).await
}

async fn moving(store: &dyn ObjectStore, staging: &Staging) -> Result<Option<Moving>> {
    let path = staging.moving();
    let Some(Moves { from, to, transaction }) = noted(store, &path).await? else { return Ok(None) };
    if from.len() != to.len() {
        return Err(damaged(&path, &"it does not say where all of it goes"));
    }
    let moved = |(from, to): (&String, &String)| {
        let (from, to) = (Path::parse(from).ok()?, Path::parse(to).ok()?);
        // Anybody may have put it there.
        let is_own = from.prefix_matches(staging.folder())
            && to.prefix_matches(&staging.parent())
            && to.filename().is_some_and(|name| name.contains(staging.id()));
        is_own.then_some((from, to))
    };
    let moves: Option<Vec<_>> = from.iter().zip(&to).map(moved).collect();
    let moves = moves.ok_or_else(|| damaged(&path, &"it moves what is not the write's"))?;
    Ok(Some(Moving { moves, transaction }))
}
