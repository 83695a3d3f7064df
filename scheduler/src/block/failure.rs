//! What a reader says of a block that it cannot have.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use datafusion::error::DataFusionError;

use crate::protocol::location::{BlockLocation, FileId};

/// A block that cannot be had. It is made again; the task that wanted it starts again.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockError {
    /// The block, within its job.
    pub id: FileId,
    /// The worker that should have it.
    pub worker: String,
    /// What is wrong, for people; nothing is decided by it.
    pub problem: String,
    /// It is a segment of a hash shuffle, and its worker cannot be reached: neither can the many others be that it has
    /// of the same stage.
    pub is_one_of_many: bool,
}

impl BlockError {
    /// `location` cannot be had because of `problem`.
    pub fn new(location: &BlockLocation, problem: impl fmt::Display) -> Self {
        let (worker, problem) = (location.worker.clone(), problem.to_string());
        Self { id: location.id, worker, problem, is_one_of_many: false }
    }

    /// The worker of `location` cannot be reached, because of `problem`.
    pub(crate) fn unreached(location: &BlockLocation, problem: impl fmt::Display) -> Self {
        let is_one_of_many = location.segment_at.is_some();
        Self { is_one_of_many, ..Self::new(location, problem) }
    }

    /// The error in `error` that is about a block, however deep.
    pub fn find(error: &DataFusionError) -> Option<&Self> {
        let mut cause: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            cause = match error.downcast_ref::<DataFusionError>() {
                Some(DataFusionError::Shared(inner)) => Some(inner.as_ref()),
                Some(DataFusionError::External(inner)) => Some(inner.as_ref()),
                _ => error.source(),
            };
        }
        None
    }
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} on worker {}: {}", self.id, self.worker, self.problem)
    }
}

impl Error for BlockError {}

impl From<BlockError> for DataFusionError {
    fn from(error: BlockError) -> Self {
        Self::External(Box::new(error))
    }
}

impl BlockLocation {
    /// # Errors
    /// If its file, of so many bytes, has another size than when it was sealed, or is too short for the segment.
    pub(super) fn check_file(&self, bytes: u64) -> Result<(), BlockError> {
        match self.segment_at {
            None => self.check_size(bytes),
            Some(at) => self.check_part(at, bytes),
        }
    }

    /// # Errors
    /// If a file of so many bytes has not all of what begins there.
    pub(super) fn check_part(&self, at: u64, bytes: u64) -> Result<(), BlockError> {
        if at.saturating_add(self.bytes) <= bytes {
            return Ok(());
        }
        let part = self.bytes;
        let problem = format!("{bytes} bytes, and {part} that begin at {at} are wanted");
        Err(BlockError::new(self, problem))
    }

    /// # Errors
    /// If so many bytes were read, and others were sealed.
    pub(super) fn check_size(&self, bytes: u64) -> Result<(), BlockError> {
        if bytes == self.bytes {
            Ok(())
        } else {
            Err(BlockError::new(self, format!("{bytes} bytes instead of {}", self.bytes)))
        }
    }

    /// # Errors
    /// If its bytes are not those that were sealed.
    pub(super) fn check_sum(&self, checksum: u32) -> Result<(), BlockError> {
        if checksum == self.checksum {
            Ok(())
        } else {
            Err(BlockError::new(
                self,
                format!("checksum {checksum:08x} instead of {:08x}", self.checksum),
            ))
        }
    }
}

/// What a task writes cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskError {
    /// The disk is full, or the part of it that blocks may take: what is full, and what to do. Once
    /// others have made room, another attempt succeeds on the same worker.
    Full(String),
    /// The disk fails, or the folder on it is not as it was: another attempt on the same worker would
    /// fail as well.
    Broken(String),
}

impl DiskError {
    /// What the file system said of `path`, or our own limit, which says itself what to do.
    pub fn new(path: &Path, error: &io::Error) -> Self {
        if let Some(ours) = error.get_ref().and_then(|error| error.downcast_ref::<Self>()) {
            return ours.clone();
        }
        let path = path.display();
        if says_full(error) {
            return Self::Full(format!(
                "{path}: {error}; make room on that disk, or start the worker with another --work-dir"
            ));
        }
        Self::Broken(format!(
            "{path}: {error}; see what is wrong with that disk, or start the worker with another \
             --work-dir"
        ))
    }
}

/// Whether a file system, or a limit of our own, has no room for more.
pub fn says_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Full(problem) | Self::Broken(problem)) = self;
        f.write_str(problem)
    }
}

impl Error for DiskError {}

impl From<DiskError> for DataFusionError {
    fn from(error: DiskError) -> Self {
        Self::External(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn it_is_found_however_deep() {
        let id = FileId { stage: 1, task: 2, seq: 3 };
        let location = BlockLocation { id, worker: "w".to_owned(), ..BlockLocation::default() };
        let error = BlockError::new(&location, "gone");
        let deep = DataFusionError::from(error.clone()).context("reading");
        let deep = DataFusionError::Shared(Arc::new(deep));
        assert_eq!(BlockError::find(&deep), Some(&error));
        assert_eq!(BlockError::find(&DataFusionError::Execution("no".to_owned())), None);
    }
}
