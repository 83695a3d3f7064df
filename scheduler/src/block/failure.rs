//! What a reader says of a block that it cannot have.

use std::error::Error;
use std::fmt;

use datafusion::error::DataFusionError;

use super::location::{BlockId, BlockLocation};

/// A block that cannot be had. It is made again; the task that wanted it starts again.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockError {
    /// The block.
    pub id: BlockId,
    /// The worker that should have it.
    pub worker: String,
    /// What is wrong.
    pub problem: String,
}

impl BlockError {
    /// `location` cannot be had because of `problem`.
    pub fn new(location: &BlockLocation, problem: impl fmt::Display) -> Self {
        Self { id: location.id, worker: location.worker.clone(), problem: problem.to_string() }
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

/// A block cannot be written: the disk is full, or the part of it that blocks may take.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskFull {
    /// What is full, and what to do.
    pub problem: String,
}

impl fmt::Display for DiskFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl Error for DiskFull {}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn it_is_found_however_deep() {
        let id = BlockId { stage: 1, task: 2, seq: 3 };
        let error = BlockError { id, worker: "w".to_owned(), problem: "gone".to_owned() };
        let deep = DataFusionError::from(error.clone()).context("reading");
        let deep = DataFusionError::Shared(Arc::new(deep));
        assert_eq!(BlockError::find(&deep), Some(&error));
        assert_eq!(BlockError::find(&DataFusionError::Execution("no".to_owned())), None);
    }
}
