//! The folder in which a worker keeps what its tasks write.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use datafusion::common::{Result, exec_datafusion_err};

/// The folder of one process, gone with it. Those of processes that crashed go at the next start.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Locked as long as the process lives.
    _lock: File,
}

/// In each process's folder.
const LOCK_FILE: &str = "lock";

impl Folder {
    pub(super) fn create(parent: &Path, id: &str) -> Result<Self> {
        let failed = |error| {
            exec_datafusion_err!("the work folder {} cannot be used: {error}", parent.display())
        };
        fs::create_dir_all(parent).map_err(failed)?;
        // Neighbours open files by this path, from folders of their own.
        let parent = std::path::absolute(parent).map_err(failed)?;
        for entry in fs::read_dir(&parent).map_err(failed)?.flatten() {
            remove_if_left(&entry.path());
        }
        let path = parent.join(id);
        fs::create_dir(&path).map_err(failed)?;
        let lock = File::create(path.join(LOCK_FILE)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn text(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

fn remove_if_left(folder: &Path) {
    let Ok(lock) = File::open(folder.join(LOCK_FILE)) else { return };
    if lock.try_lock().is_ok()
        && let Err(error) = fs::remove_dir_all(folder)
    {
        tracing::warn!("what a crashed worker left in {} stays: {error}", folder.display());
    }
}
