//! What a runtime gives: a model that is loaded on a device and runs batches.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use arrow::array::ArrayRef;

use crate::error::RuntimeError;

/// A device of this process that a replica can be loaded on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// The CPU cores of this process, which replicas share.
    Cpu,
    /// A CUDA device by ordinal.
    Cuda(u16),
    /// An emulated accelerator by ordinal.
    Emulated(u16),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Emulated(ordinal) => write!(f, "emulated:{ordinal}"),
        }
    }
}

/// A batch in the form that its replica's device takes.
pub struct Prepared {
    /// Rows in the batch.
    pub rows: usize,
    /// Padded size of the batch: rows times the longest row, in tokens; `rows` without tokens.
    pub padded: usize,
    pub(crate) inputs: Box<dyn Any + Send>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("rows", &self.rows).field("padded", &self.padded).finish()
    }
}

/// What a batch took, as far as its runtime knows better than a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// For how long the device computed, by its own account.
    pub busy: Option<Duration>,
    /// The most bytes of the device's memory that it took, the model not included.
    pub bytes: Option<u64>,
    /// Bytes of the device's memory that it could have taken.
    pub free: Option<u64>,
}

/// One loaded copy of a model on one device. Shared: calls from several threads are independent.
pub trait Replica: fmt::Debug + Send + Sync {
    /// Turns prepared columns (the transform's output, at least one row, no NULLs) into device
    /// inputs. Cheap and without the device's compute.
    ///
    /// # Errors
    /// [`RuntimeError::Program`] or [`RuntimeError::OutOfMemory`].
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError>;

    /// Runs the model: one array per declared output, of the declared type, `rows` long.
    /// Blocks the calling thread until the results are in host memory.
    ///
    /// # Errors
    /// [`RuntimeError::Program`], [`RuntimeError::OutOfMemory`], or [`RuntimeError::Output`] if
    /// the results disagree with the declaration.
    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError>;

    /// What the batch took that the calling thread ran last, whether it fitted or not: one of so many rows and
    /// so large a padded size.
    fn usage(&self, _rows: usize, _padded: usize) -> Usage {
        Usage::default()
    }

    /// Floating point operations that a batch of so many rows and so large a padded size takes, as far as
    /// they are counted: those of a program's matrices. `None` where they are not.
    fn operations(&self, _rows: usize, _padded: usize) -> Option<f64> {
        None
    }
}
