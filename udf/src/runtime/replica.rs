//! What a runtime gives: a model that is loaded on a device and runs batches.

use std::any::Any;
use std::collections::VecDeque;
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

    /// Batches that a lane takes before the first of them is finished. 1 where the calling thread computes; more
    /// where a device does, which then has the next batch when it is done with one.
    fn depth(&self) -> usize {
        1
    }

    /// What the calling thread runs its batches through. Making one may take as long as a batch; a thread keeps
    /// it from one query to the next if [`depth`](Self::depth) is more than 1.
    ///
    /// # Errors
    /// [`RuntimeError::Device`].
    fn lane(&self) -> Result<Box<dyn Lane + '_>, RuntimeError> {
        Ok(Box::new(Direct::new(self)))
    }

    /// Floating point operations that a batch of so many rows and so large a padded size takes, as far as
    /// they are counted: those of a program's matrices. `None` where they are not.
    fn operations(&self, _rows: usize, _padded: usize) -> Option<f64> {
        None
    }
}

/// The way of one thread into a replica: what it has started it finishes in the same order.
pub trait Lane {
    /// Starts a batch, and does not wait for it where a device computes.
    ///
    /// # Errors
    /// As [`Replica::forward`]; then the batch is over, and those before it are not affected.
    fn start(&mut self, batch: Prepared) -> Result<(), RuntimeError>;

    /// Waits for the oldest batch that was started: its results, as of [`Replica::forward`]. `None` if there is
    /// none.
    fn finish(&mut self) -> Option<Result<Vec<ArrayRef>, RuntimeError>>;

    /// What the batch took that was finished last, or could not be started: as [`Replica::usage`].
    fn usage(&self, rows: usize, padded: usize) -> Usage;

    /// The memory that batches hold at this moment; `None` where that is not counted.
    fn held(&self) -> Option<Held> {
        None
    }
}

/// Memory that batches hold at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of pinned host memory, of all batches of the replica.
    pub pinned: u64,
    /// Bytes of the device's memory that this process has for tensors, in use or kept for later ones, weights
    /// and other models included.
    pub reserved: u64,
}

/// Batches one after the other, computed by the calling thread when they are finished.
pub(super) struct Direct<'a, R: ?Sized> {
    replica: &'a R,
    started: VecDeque<Prepared>,
}

impl<'a, R: Replica + ?Sized> Direct<'a, R> {
    pub(super) fn new(replica: &'a R) -> Self {
        Self { replica, started: VecDeque::new() }
    }
}

impl<R: Replica + ?Sized> Lane for Direct<'_, R> {
    fn start(&mut self, batch: Prepared) -> Result<(), RuntimeError> {
        self.started.push_back(batch);
        Ok(())
    }

    fn finish(&mut self) -> Option<Result<Vec<ArrayRef>, RuntimeError>> {
        self.started.pop_front().map(|batch| self.replica.forward(batch))
    }

    fn usage(&self, rows: usize, padded: usize) -> Usage {
        self.replica.usage(rows, padded)
    }
}
