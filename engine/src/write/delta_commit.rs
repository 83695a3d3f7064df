//! The commit of a write to a Delta table: its log says from now on that the files count.

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::attempt::Written;
use super::delta::{DeltaWrite, WriteId};
use super::fence::Passage;
use super::publish::{Move, PublishError, below};
use super::staging::{Staging, is_there};
use super::target::Target;
use crate::delta::{CommitError, Log, NewFile, Transaction};

/// Begins the transaction of a write, if it is one to a Delta table.
///
/// # Errors
/// If the table cannot be read or written.
pub(super) async fn begin(
    target: &Target,
    staging: &Staging,
    context: &TaskContext,
) -> Result<Option<Transaction>> {
    let Some(DeltaWrite { version, overwrites }) = target.delta.clone() else { return Ok(None) };
    let log = Log::new(&context.runtime_env(), target.url())?;
    let given = context.session_config().get_extension::<WriteId>();
    let id = given.map_or_else(|| staging.id().to_owned(), |given| given.0.clone());
    Transaction::begin(log, version, id, overwrites).await.map(Some)
}

/// Moves files to where they stay, and has the log name them. After an error none counts; what was moved is
/// removed, unless nobody knows whether it counts, or will, or the staging folder `stays`: then whoever goes on
/// moves it back.
pub(super) async fn commit(
    store: &dyn ObjectStore,
    folder: &Path,
    (transaction, passage): (&Transaction, &Passage),
    written: &[Written],
    moves: &[Move],
    stays: bool,
) -> Result<(), PublishError> {
    if transaction.is_done().await? {
        // What is staged goes with the staging folder; but for what an earlier commit had moved and somebody has
        // moved back, before the log took it.
        for moved in moves.iter().filter(|_| stays) {
            if is_there(store, &moved.from).await? {
                move_one(store, folder, moved).await?;
            }
        }
        return Ok(());
    }
    let files = written.iter().zip(moves).map(|(file, moved)| NewFile {
        path: moved.name.clone(),
        folder: file.folder.clone(),
        bytes: file.bytes,
        stats: file.stats.clone(),
    });
    let files: Vec<NewFile> = files.collect();
    let moved = async {
        move_all(store, folder, moves).await?;
        passage.pass().await
    };
    let done = match moved.await {
        Ok(()) => transaction.commit(&files).await,
        Err(error) => Err(CommitError::Undone(error)),
    };
    match done {
        Ok(()) => Ok(()),
        Err(CommitError::Unknown(error)) => Err(PublishError::Unknown(error)),
        Err(CommitError::Undone(error)) => {
            for moved in moves.iter().filter(|_| !stays) {
                // Nobody sees what is left; VACUUM of any engine removes it.
                store.delete(&below(folder, &moved.name)).await.ok();
            }
            Err(PublishError::Undone(error))
        }
    }
}

async fn move_all(store: &dyn ObjectStore, folder: &Path, moves: &[Move]) -> Result<()> {
    for moved in moves {
        move_one(store, folder, moved).await?;
    }
    Ok(())
}

async fn move_one(store: &dyn ObjectStore, folder: &Path, moved: &Move) -> Result<()> {
    let to = below(folder, &moved.name);
    store.rename(&moved.from, &to).await.map_err(DataFusionError::from)
}
