//! The folder in which a write lies until its commit.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use uuid::Uuid;

/// What names of staging folders begin with: one of the two letters with which names begin that readers
/// of tables leave out.
const PREFIX: &str = "_forebay-";

/// How often a lease is written anew.
const LEASE_EVERY: Duration = Duration::from_secs(60);

/// How long a file system may take to end what nobody waits for any more.
const REMOVED_AGAIN_AFTER: Duration = Duration::from_millis(500);

const LEASE: &str = "lease";
const DECIDED: &str = "decided";
const TAKEN_BACK: &str = "taken_back";
const EMPTY: &str = "empty";
const TABLE: &str = "table";

/// What a write has in its staging folder that stays until it is committed, whatever becomes of its process.
const RESUMABLE: &str = "resumable";
const PARTS: &str = "parts";
const REST: &str = "rest";
const MOVING: &str = "moving";
const COMMITTED: &str = "committed";

/// What a lease says to people who find it.
const LEASE_TEXT: &str = "A write of forebay is at work here, and writes this file anew every minute. What a \
                          write has left that is no more, `forebay gc` removes.\n";

/// A staging folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staging {
    folder: Path,
    is_local: bool,
}

impl Staging {
    /// A new one in this folder.
    pub(super) fn new_in(folder: &Path, is_local: bool) -> Self {
        let name = format!("{PREFIX}{}", Uuid::new_v4().simple());
        Self { folder: folder.clone().join(name), is_local }
    }

    /// One that is there.
    pub(super) fn at(folder: Path, is_local: bool) -> Self {
        Self { folder, is_local }
    }

    /// The one that a path lies in.
    pub(super) fn of(path: &Path, is_local: bool) -> Option<Self> {
        let parts: Vec<_> = path.parts().collect();
        let at = parts.iter().position(|part| part.as_ref().starts_with(PREFIX))?;
        // A file of this name is nobody's.
        (at + 1 < parts.len())
            .then(|| Self { folder: parts.into_iter().take(at + 1).collect(), is_local })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Where files go that are to be seen.
    pub(super) fn parent(&self) -> Path {
        self.folder.parent().unwrap_or_default()
    }

    /// Tells writes apart that add files to one folder.
    pub(super) fn id(&self) -> &str {
        self.folder.filename().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default()
    }

    pub(super) fn lease(&self) -> Path {
        self.folder.clone().join(LEASE)
    }

    pub(super) fn decided(&self) -> Path {
        self.folder.clone().join(DECIDED)
    }

    /// In place of what was decided, which is not written over: a loss of power could take both.
    pub(super) fn taken_back(&self) -> Path {
        self.folder.clone().join(TAKEN_BACK)
    }

    pub(super) fn empty(&self) -> Path {
        self.folder.clone().join(EMPTY)
    }

    pub(super) fn table(&self) -> Path {
        self.folder.clone().join(TABLE)
    }

    /// Says that all of it stays until somebody goes on with it.
    pub(super) fn resumable(&self) -> Path {
        self.folder.clone().join(RESUMABLE)
    }

    /// The records of parts that are complete.
    pub(super) fn parts(&self) -> Path {
        self.folder.clone().join(PARTS)
    }

    /// The record of what was made of all parts together.
    pub(super) fn rest(&self) -> Path {
        self.folder.clone().join(REST)
    }

    /// What is moved where by a commit that can be taken back by moving it again.
    pub(super) fn moving(&self) -> Path {
        self.folder.clone().join(MOVING)
    }

    /// Says that the write has been committed.
    pub(super) fn committed(&self) -> Path {
        self.folder.clone().join(COMMITTED)
    }

    /// Whether a file of the folder is none that an attempt has written.
    pub(super) fn is_own(&self, path: &Path) -> bool {
        let own = [LEASE, DECIDED, TAKEN_BACK, EMPTY, RESUMABLE, REST, MOVING, COMMITTED];
        path.prefix_matches(&self.parts())
            || own.iter().any(|name| *path == self.folder.clone().join(*name))
    }

    /// The folder of a new attempt.
    pub(super) fn attempt(&self) -> Path {
        self.folder.clone().join(Uuid::new_v4().simple().to_string())
    }

    /// Says that the write is at work.
    pub(super) async fn renew(&self, store: &dyn ObjectStore) -> Result<()> {
        store.put(&self.lease(), PutPayload::from_static(LEASE_TEXT.as_bytes())).await?;
        Ok(())
    }

    /// The same again and again, for as long as the task is held.
    pub(super) fn keep(&self, store: Arc<dyn ObjectStore>) -> SpawnedTask<()> {
        let staging = self.clone();
        SpawnedTask::spawn(async move {
            loop {
                tokio::time::sleep(LEASE_EVERY).await;
                // One that a store refuses is written by the next minute, long before its age counts.
                staging.renew(store.as_ref()).await.ok();
            }
        })
    }

    /// Whether the lease is there: it is removed first of all.
    pub(super) async fn is_leased(&self, store: &dyn ObjectStore) -> Result<bool> {
        is_there(store, &self.lease()).await
    }

    /// Whether all of it stays until somebody goes on with it.
    pub(super) async fn is_resumable(&self, store: &dyn ObjectStore) -> Result<bool> {
        is_there(store, &self.resumable()).await
    }

    /// Removes all of it. First what others go by, in this order: nobody goes on with what is left of a folder,
    /// and nobody does again what was decided in it.
    pub(super) async fn remove(&self, store: &Arc<dyn ObjectStore>) -> Result<()> {
        for first in [self.lease(), self.resumable(), self.decided()] {
            delete(store.as_ref(), &first).await?;
        }
        remove(store, &self.folder, self.is_local).await
    }
}

pub(super) async fn is_there(store: &dyn ObjectStore, path: &Path) -> Result<bool> {
    match store.head(path).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes a file, if it is there.
pub(super) async fn delete(store: &dyn ObjectStore, path: &Path) -> Result<()> {
    match store.delete(path).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes a folder of a staging folder, or all of it. Of a file system also what no listing shows: files
/// that were begun, and folders.
pub(super) async fn remove(
    store: &Arc<dyn ObjectStore>,
    folder: &Path,
    is_local: bool,
) -> Result<()> {
    let found = store.list(Some(folder)).map_ok(|meta| meta.location).boxed();
    let mut removed = store.delete_stream(found);
    while let Some(one) = removed.next().await {
        match one {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if is_local {
        let folder = folder.clone();
        let removed = SpawnedTask::spawn_blocking(move || remove_now(&folder)).join().await;
        removed.map_err(|error| DataFusionError::External(Box::new(error)))??;
    }
    Ok(())
}

/// The same of a file system, at once.
pub(super) fn remove_now(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(std::path::Path::new("/").join(folder.as_ref())) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a folder later, of a file system also at once: for whoever cannot wait, as it is dropped. What is
/// left is removed by `forebay gc`; nobody is there to be told.
pub(super) fn abandon(store: Arc<dyn ObjectStore>, folder: Path, is_local: bool) {
    if is_local {
        remove_now(&folder).ok();
    }
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        if is_local {
            // What the file system was asked before may yet make a file, and its folder anew.
            tokio::time::sleep(REMOVED_AGAIN_AFTER).await;
        }
        remove(&store, &folder, is_local).await.ok();
    });
}

/// Whether a folder of this name is one.
pub(super) fn is_named_so(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX))
}

/// Whether a path lies in a staging folder: it is no file of anybody's until it has been moved.
pub fn is_staged(path: &Path) -> bool {
    Staging::of(path, false).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_staging_folder_is_known_by_its_path() {
        let staging = Staging::new_in(&Path::from("a/b"), false);
        assert!(is_staged(&staging.lease()) && is_staged(&staging.attempt().join("0")));
        assert_eq!(Staging::of(&staging.empty(), false), Some(staging.clone()));
        assert_eq!(staging.parent(), Path::from("a/b"));
        for other in ["a/b", "_forebay-x", "a/_forebay-x", "a/x_forebay-/y", "_forebay/y"] {
            assert!(!is_staged(&Path::from(other)), "{other}");
        }
    }
}
