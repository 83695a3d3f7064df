//! The commit: what lies in a staging folder becomes visible, all of it or nothing.
//!
//! | what is written | how it becomes visible |
//! |---|---|
//! | a file | moved to its name, in place of an earlier one; decided before if the staging folder stays |
//! | a folder that was not there, of a file system | arranged in the staging folder, with `_SUCCESS`, and then renamed as a whole |
//! | any other folder | files are moved one by one; the folder has no `_SUCCESS` until all are there |
//!
//! Folders with partition columns have no `_SUCCESS` but those that had one before.
//!
//! The last of these has no moment at which all is there at once. It is *decided* when the list of what is
//! moved where has been written into the staging folder. What happens after that can be completed by
//! anybody ([`complete`]): if this process does not come so far, `forebay gc` does. If the store refuses to
//! go on, what was moved is taken back, which is decided in the same way first.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use prost::Message;

use super::fence::Passage;
use super::noted::{damaged, note, noted};
use super::staging::{Staging, delete, is_staged, is_there};

/// An empty file that says that all files of a folder are there, as writers of tables have it since Hadoop.
pub(super) const SUCCESS: &str = "_SUCCESS";

/// How a write becomes visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Publication {
    /// As one file of this name.
    File(Path),
    /// As a folder of this name, at once.
    Folder(Path),
    /// In this folder, which is there.
    Into(Path),
}

/// A file that is moved. Names are relative to the folder that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) from: Path,
    pub(super) name: Path,
}

/// What has been decided.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Decided {
    #[prost(message, repeated, tag = "1")]
    moves: Vec<Moved>,
    /// What was moved is moved back.
    #[prost(bool, tag = "2")]
    is_taken_back: bool,
    /// Whether the folder said before that all of it was there.
    #[prost(bool, tag = "3")]
    was_whole: bool,
    /// Whether it is to say so.
    #[prost(bool, tag = "4")]
    says_whole: bool,
    /// Whether it is one file, of which no folder says anything.
    #[prost(bool, tag = "5")]
    is_file: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Moved {
    #[prost(string, tag = "1")]
    from: String,
    #[prost(string, tag = "2")]
    to: String,
}

/// Makes files visible. After an error none is, and the staging folder can be removed; unless it says
/// otherwise ([`PublishError::Halfway`]). If the staging folder `stays`, what has been decided is not taken back:
/// whoever goes on completes it.
pub(super) async fn publish(
    store: &dyn ObjectStore,
    staging: &Staging,
    (publication, passage): (&Publication, &Passage),
    moves: &[Move],
    stays: bool,
) -> Result<(), PublishError> {
    match publication {
        Publication::File(name) if stays => {
            let moved = |file: &Move| Moved { from: file.from.to_string(), to: name.to_string() };
            let moves = moves.iter().map(moved).collect();
            let decided = Decided { moves, is_file: true, ..Decided::default() };
            let done = async {
                decide(store, staging, &decided).await?;
                complete(store, staging, &decided).await
            };
            done.await.map_err(PublishError::Halfway)
        }
        Publication::File(name) => {
            for file in moves {
                store.rename(&file.from, name).await.map_err(DataFusionError::from)?;
            }
            Ok(())
        }
        Publication::Folder(folder) => Ok(rename(store, staging, folder, moves, passage).await?),
        Publication::Into(folder) => move_into(store, staging, folder, moves, stays).await,
    }
}

/// Why a commit failed.
#[derive(Debug)]
pub(super) enum PublishError {
    /// Nothing is visible of it.
    Undone(DataFusionError),
    /// It has been decided, and neither completed nor taken back.
    Halfway(DataFusionError),
    /// Nobody knows whether it is visible; the error says so.
    Unknown(DataFusionError),
}

impl From<DataFusionError> for PublishError {
    fn from(error: DataFusionError) -> Self {
        Self::Undone(error)
    }
}

/// Whether a folder gets [`SUCCESS`]. DataFusion takes it for a file without partition columns, and refuses to read
/// a folder that has such files beside others.
fn says_whole(moves: &[Move]) -> bool {
    moves.iter().all(|file| file.name.parts().count() == 1)
}

async fn rename(
    store: &dyn ObjectStore,
    staging: &Staging,
    folder: &Path,
    moves: &[Move],
    passage: &Passage,
) -> Result<()> {
    let table = staging.table();
    for file in moves {
        store.rename(&file.from, &below(&table, &file.name)).await?;
    }
    if says_whole(moves) {
        store.put(&table.clone().join(SUCCESS), PutPayload::new()).await?;
    }
    passage.pass().await?;
    // Of a file system: a folder as a whole, unless there is one with files by now.
    Ok(store.rename(&table, folder).await?)
}

async fn move_into(
    store: &dyn ObjectStore,
    staging: &Staging,
    folder: &Path,
    moves: &[Move],
    stays: bool,
) -> Result<(), PublishError> {
    let moved = |file: &Move| Moved {
        from: file.from.to_string(),
        to: below(folder, &file.name).to_string(),
    };
    let was_whole = is_there(store, &folder.clone().join(SUCCESS)).await?;
    let says_whole = says_whole(moves);
    let moves = moves.iter().map(moved).collect();
    let decided = Decided { moves, was_whole, says_whole, ..Decided::default() };
    // A decision that the store refused may have been written all the same.
    let done = async {
        decide(store, staging, &decided).await?;
        complete(store, staging, &decided).await
    };
    let Err(error) = done.await else { return Ok(()) };
    if stays {
        return Err(PublishError::Halfway(error));
    }
    let decided = Decided { is_taken_back: true, ..decided };
    let taken_back = async {
        decide(store, staging, &decided).await?;
        complete(store, staging, &decided).await
    };
    match taken_back.await {
        Ok(()) => Err(PublishError::Undone(error)),
        Err(_) => Err(PublishError::Halfway(error)),
    }
}

async fn decide(store: &dyn ObjectStore, staging: &Staging, decided: &Decided) -> Result<()> {
    let path = if decided.is_taken_back { staging.taken_back() } else { staging.decided() };
    note(store, &path, staging.is_local(), decided).await
}

/// What has been decided of a write, if it came so far.
///
/// # Errors
/// If it cannot be read, or would touch what is not the write's: anybody may have put it there.
pub(super) async fn decision(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
) -> Result<Option<Decided>> {
    for path in [staging.taken_back(), staging.decided()] {
        if let Some(decided) = noted::<Decided>(store.as_ref(), &path).await? {
            decided.check(staging).map_err(|problem| damaged(&path, &problem))?;
            return Ok(Some(decided));
        }
    }
    Ok(None)
}

/// Nothing is decided any more.
pub(super) async fn undecide(store: &dyn ObjectStore, staging: &Staging) -> Result<()> {
    // What was taken back is not decided again by half of this.
    delete(store, &staging.decided()).await?;
    delete(store, &staging.taken_back()).await
}

/// Does what has been decided, however much of it was done before.
///
/// # Errors
/// Those of the store, and if a file is nowhere any more.
pub(super) async fn complete(
    store: &dyn ObjectStore,
    staging: &Staging,
    decided: &Decided,
) -> Result<()> {
    let success = staging.parent().join(SUCCESS);
    if !decided.is_file {
        delete(store, &success).await?;
    }
    for file in &decided.moves {
        let (from, to) = file.paths()?;
        if decided.is_taken_back {
            delete(store, &to).await?;
        } else if is_there(store, &from).await? {
            store.rename(&from, &to).await?;
        } else if !is_there(store, &to).await? {
            let folder = staging.folder();
            return exec_err!(
                "the write that is left in '{folder}' cannot be completed: '{to}' has been removed by somebody, and                  so has what is moved there; if it is of no use any more, FORGET JOB if a job wrote it, or remove                  '{folder}' by hand"
            );
        }
    }
    if decided.was_whole || (decided.says_whole && !decided.is_taken_back) {
        store.put(&success, PutPayload::new()).await?;
    }
    Ok(())
}

impl Moved {
    fn paths(&self) -> Result<(Path, Path)> {
        let path = |text: &str| Path::parse(text).map_err(|error| exec_datafusion_err!("{error}"));
        Ok((path(&self.from)?, path(&self.to)?))
    }
}

impl Decided {
    fn check(&self, staging: &Staging) -> Result<(), String> {
        for file in &self.moves {
            let (from, to) = file.paths().map_err(|error| error.to_string())?;
            if !from.prefix_matches(staging.folder())
                || !to.prefix_matches(&staging.parent())
                || is_staged(&to)
            {
                return Err(format!("it moves '{from}' to '{to}'"));
            }
        }
        Ok(())
    }

    /// Whether files stay.
    pub(super) fn stays(&self) -> bool {
        !self.is_taken_back
    }

    /// Where files are moved to.
    pub(super) fn places(&self) -> impl Iterator<Item = Path> {
        self.moves.iter().filter_map(|file| Path::parse(&file.to).ok())
    }

    /// The same without files that are nowhere any more.
    pub(super) async fn of_what_is_left(self, store: &dyn ObjectStore) -> Result<Self> {
        let mut left = vec![];
        for file in &self.moves {
            let (from, to) = file.paths()?;
            if is_there(store, &from).await? || is_there(store, &to).await? {
                left.push(file.clone());
            }
        }
        let says_whole = self.says_whole && left.len() == self.moves.len();
        Ok(Self { moves: left, says_whole, ..self })
    }
}

/// A path of several names below a folder.
pub(super) fn below(folder: &Path, name: &Path) -> Path {
    folder.parts().chain(name.parts()).collect()
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn what_somebody_else_has_decided_is_not_done() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let staging = Staging::new_in(&Path::from("a/t"), false);
        let own = |name: &str| staging.folder().clone().join(name).to_string();
        for (from, to, is_own) in [
            (own("0"), "a/t/x=1/part-0.csv".to_owned(), true),
            ("a/other".to_owned(), "a/t/part-0.csv".to_owned(), false),
            (own("0"), "a/other".to_owned(), false),
            (own("0"), own("1"), false),
            (own("0"), "a/t/../other".to_owned(), false),
        ] {
            let moves = vec![Moved { from, to }];
            let decided = Decided { moves, says_whole: true, ..Decided::default() };
            decide(store.as_ref(), &staging, &decided).await.unwrap();
            let found = decision(&store, &staging).await;
            assert_eq!(found.is_ok(), is_own, "{decided:?}: {found:?}");
        }
        // A loss of power has left no bytes of it, and nothing was moved.
        undecide(store.as_ref(), &staging).await.unwrap();
        assert_eq!(decision(&store, &staging).await.unwrap(), None);
        store.put(&staging.decided(), PutPayload::new()).await.unwrap();
        assert_eq!(decision(&store, &staging).await.unwrap(), None);
        store.put(&staging.decided(), PutPayload::from_static(b"\xff")).await.unwrap();
        let error = decision(&store, &staging).await.unwrap_err().to_string();
        assert!(error.contains("is damaged") && error.contains("remove it by hand"), "{error}");
    }

    #[tokio::test]
    async fn what_is_taken_back_was_decided_until_that_is_written() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let staging = Staging::new_in(&Path::from("t"), false);
        let (from, to) = (staging.folder().clone().join("0"), Path::from("t/part-0.csv"));
        let moves = vec![Moved { from: from.to_string(), to: to.to_string() }];
        let decided = Decided { moves, says_whole: true, ..Decided::default() };
        let taken_back = Decided { is_taken_back: true, ..decided.clone() };
        store.put(&to, PutPayload::from_static(b"n")).await.unwrap();
        decide(store.as_ref(), &staging, &decided).await.unwrap();
        decide(store.as_ref(), &staging, &taken_back).await.unwrap();
        assert_eq!(decision(&store, &staging).await.unwrap(), Some(taken_back.clone()));
        // What a loss of power may leave of it, before anything was removed.
        store.put(&staging.taken_back(), vec![0; 9].into()).await.unwrap();
        assert_eq!(decision(&store, &staging).await.unwrap(), Some(decided.clone()));
        complete(store.as_ref(), &staging, &decided).await.unwrap();
        decide(store.as_ref(), &staging, &taken_back).await.unwrap();
        complete(store.as_ref(), &staging, &taken_back).await.unwrap();
        assert!(!is_there(store.as_ref(), &to).await.unwrap());
    }
}
