//! The limits of an execution's batches, which whoever computes them may change meanwhile.

use forebay_udf::model::BatchLimits;
use parking_lot::Mutex;

/// Limits as they are at this moment. Batches that are not handed out yet follow them.
#[derive(Debug)]
pub(crate) struct LiveLimits {
    /// What the model's device rounds lengths up to.
    length_multiple: u32,
    now: Mutex<BatchLimits>,
}

impl LiveLimits {
    pub(crate) fn new(limits: BatchLimits, length_multiple: u32) -> Self {
        Self { length_multiple, now: Mutex::new(limits) }
    }

    pub(crate) fn length_multiple(&self) -> u32 {
        self.length_multiple
    }

    pub(crate) fn get(&self) -> BatchLimits {
        self.now.lock().clone()
    }

    pub(crate) fn set(&self, limits: BatchLimits) {
        *self.now.lock() = limits;
    }
}
