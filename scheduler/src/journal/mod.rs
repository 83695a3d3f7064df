//! What a scheduler must not forget, in a folder: an append-only log of records, each under a key.
//!
//! Somebody else's record ends with its key: what is known of a job is a list of records under the
//! job's key, and gone when the job is. What a record says is not known here.
//!
//! # What is promised
//!
//! - Records come back in the order in which they were appended, without a gap: what is there when it
//!   is opened again is a beginning of what was appended, and contains all that was
//!   [flushed](Journal::flushed).
//! - A record that was being written when the machine stopped is cut off, with a warning. Anything else that is
//!   wrong with a file is an error, and nothing is changed.
//! - One process writes at a time: the others wait until it is gone ([`Folder::lock`]). Should a file
//!   system not keep locks, whoever opens the journal later has a greater **term**; the one before
//!   finds that out before it says that anything is written.
//!
//! # Files
//!
//! `<term>-<number>.journal` is all there is; its records are written in groups, and each
//! group was on the disk before the next one was begun. When most of it is of keys that have ended, the
//! rest is copied to a new file, which takes its place by being renamed: so its size is at most twice what
//! is needed, and 16 MiB. That is also done at the start. Beside it lies `lock`.
//!
//! What could not be written is not tried again: after a failed `fsync` nobody knows what is there. The journal
//! has failed then, and whoever has it open must end.

mod disk;
mod error;
mod frame;
mod log;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::JournalError;
pub use writer::Journal;

use disk::RealDisk;
use log::Log;

/// The version of this process, which must read what it wrote.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const LOCK_FILE: &str = "lock";

/// How often a process looks whether the one before it has gone.
const LOCK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The records of each key that has not ended, in their order.
pub type Records = BTreeMap<String, Vec<Vec<u8>>>;

/// A folder that this process alone may write to, until it is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Waits until no other process has this folder, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be used.
    pub async fn lock(path: &Path) -> Result<Self, JournalError> {
        let failed = |error| JournalError::io(path, "use", &error);
        // Plans have values of their statements.
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK_FILE))
            .map_err(failed)?;
        let mut waits = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), _lock: lock }),
                Err(TryLockError::WouldBlock) if !waits => {
                    waits = true;
                    tracing::info!(
                        "another scheduler has {}; this one waits until that is gone",
                        path.display()
                    );
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            tokio::time::sleep(LOCK_AGAIN_AFTER).await;
        }
    }

    /// Reads what is there, and goes on behind it.
    ///
    /// # Errors
    /// If what is there is broken or of another version, or cannot be read or written.
    pub fn open(self) -> Result<(Journal, Records), JournalError> {
        let place = self.path.display().to_string();
        let disk = Box::new(RealDisk::new(self.path.clone()));
        let (log, records) = Log::open(disk, place, VERSION)?;
        Ok((Journal::start(log, self)?, records))
    }
}
