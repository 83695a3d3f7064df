//! What crashes have left: `forebay gc`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;

use super::publish::{Decided, complete, decision};
use super::staging::{Staging, is_named_so, is_there};

/// A staging folder that was found.
#[derive(Debug)]
pub struct Left {
    /// Where it is.
    pub folder: Path,
    /// Its files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// How long ago anything of it was written last.
    pub age: Duration,
    /// What becomes of it, or became; or why that is not known, or was not done.
    pub fate: Result<Fate>,
}

/// What becomes of a staging folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A write may be at work in it.
    Kept,
    /// A job may be resumed that has left it.
    Resumable,
    /// Its commit had not been decided: nothing of it is visible, and it is removed.
    Removed,
    /// Its commit had been decided: it is completed, if it was not, and the folder removed.
    Completed,
}

/// How old what crashes have left must be to be removed.
#[derive(Clone, Copy, Debug)]
pub struct OlderThan {
    /// Since something was last written there.
    pub left: Duration,
    /// The same of what jobs have left that can be resumed.
    pub resumable: Duration,
}

/// Looks for staging folders in a folder and in all that are in it. Those in which nothing was written for
/// so long are removed, or their commit completed; nothing changes if `only_looks`. What is wrong with one keeps no
/// other from its end.
///
/// # Errors
/// If the store does not say which there are.
pub async fn clean(
    store: &Arc<dyn ObjectStore>,
    folder: &Path,
    is_local: bool,
    older_than: OlderThan,
    only_looks: bool,
) -> Result<Vec<Left>> {
    let found = match is_local {
        true => {
            let folder = std::path::Path::new("/").join(folder.as_ref());
            let walk = SpawnedTask::spawn_blocking(move || walked(&folder)).join().await;
            walk.map_err(|error| DataFusionError::External(Box::new(error)))??
        }
        false => listed(store.as_ref(), folder).await?,
    };
    let mut left = vec![];
    for (folder, Found { files, bytes, newest }) in found {
        // A clock that is behind the store's takes files for new.
        let age = newest.and_then(|newest| newest.elapsed().ok()).unwrap_or_default();
        let staging = Staging::at(folder.clone(), is_local);
        let fate = match age >= older_than.left {
            true => end(store, &staging, age >= older_than.resumable, only_looks).await,
            false => Ok(Fate::Kept),
        };
        left.push(Left { folder, files, bytes, age, fate });
    }
    Ok(left)
}

#[derive(Default)]
struct Found {
    files: usize,
    bytes: u64,
    newest: Option<SystemTime>,
}

impl Found {
    fn add(&mut self, bytes: Option<u64>, written: SystemTime) {
        self.files += usize::from(bytes.is_some());
        self.bytes += bytes.unwrap_or(0);
        self.newest = self.newest.max(Some(written));
    }
}

/// The staging folders of a store.
async fn listed(store: &dyn ObjectStore, folder: &Path) -> Result<BTreeMap<Path, Found>> {
    let mut found: BTreeMap<Path, Found> = BTreeMap::new();
    let mut listed = store.list(Some(folder));
    while let Some(file) = listed.try_next().await? {
        if let Some(staging) = Staging::of(&file.location, false) {
            let found = found.entry(staging.folder().clone()).or_default();
            found.add(Some(file.size), file.last_modified.into());
        }
    }
    Ok(found)
}

/// The same of a file system, where listings leave out folders without files, and files that were begun.
fn walked(folder: &std::path::Path) -> Result<BTreeMap<Path, Found>> {
    let mut found: BTreeMap<Path, Found> = BTreeMap::new();
    let mut folders = vec![(folder.to_owned(), None)];
    while let Some((folder, staging)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            // It has been removed meanwhile; or it is another one's, who may not be asked.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                continue;
            }
            entries => entries?,
        };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let path = entry.path();
            let staging = match &staging {
                None if meta.is_dir() && is_named_so(&entry.file_name()) => {
                    Some(Path::from_absolute_path(&path).map_err(object_store::Error::from)?)
                }
                staging => staging.clone(),
            };
            if let Some(staging) = &staging {
                let bytes = meta.is_file().then_some(meta.len());
                let written = meta.modified().unwrap_or_else(|_| SystemTime::now());
                found.entry(staging.clone()).or_default().add(bytes, written);
            }
            if meta.is_dir() {
                folders.push((path, staging));
            }
        }
    }
    Ok(found)
}

/// Ends one in which nobody is at work; one that can be resumed only if that `is_old`, too.
async fn end(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    is_old: bool,
    only_looks: bool,
) -> Result<Fate> {
    if !is_old && staging.is_resumable(store.as_ref()).await? {
        return Ok(Fate::Resumable);
    }
    // What stands is its owner's since then, who may have made other files of it.
    let stands = is_there(store.as_ref(), &staging.committed()).await?;
    let decided = if stands { None } else { decision(store, staging).await? };
    let fate = match stands || decided.as_ref().is_some_and(Decided::stays) {
        true => Fate::Completed,
        false => Fate::Removed,
    };
    if only_looks {
        return Ok(fate);
    }
    if let Some(decided) = decided {
        complete(store.as_ref(), staging, &decided).await?;
    }
    staging.remove(store).await?;
    Ok(fate)
}
