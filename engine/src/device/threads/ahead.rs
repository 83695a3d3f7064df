//! A model on a device that takes two batches at a time.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::ArrayRef;
use forebay_udf::RuntimeError;
use forebay_udf::runtime::{Held, Lane, Prepared, Replica, Usage};

/// What lanes did, and do.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) made: AtomicUsize,
    pub(crate) alive: AtomicUsize,
    /// Batches that were started and are not finished.
    pub(crate) started: AtomicUsize,
    pub(crate) started_max: AtomicUsize,
}

/// An emulated replica whose device takes two batches at a time. What becomes of a batch depends on its rows, if it
/// is faulty.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) inner: Arc<dyn Replica>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) is_faulty: bool,
}

pub(super) const NOT_STARTED: usize = 5;
pub(super) const NOT_FINISHED: usize = 6;
pub(super) const PANICS_AT_START: usize = 7;
pub(super) const PANICS_AT_END: usize = 8;

impl Replica for Ahead {
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError> {
        self.inner.prepare(columns)
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        self.inner.forward(batch)
    }

    fn depth(&self) -> usize {
        2
    }

    fn lane(&self) -> Result<Box<dyn Lane + '_>, RuntimeError> {
        self.seen.made.fetch_add(1, Ordering::SeqCst);
        self.seen.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(LaneOfTwo { replica: self, batches: VecDeque::new() }))
    }
}

impl Ahead {
    /// What is to become of a batch: 0, or one of the numbers above.
    fn outcome(&self, batch: &Prepared) -> usize {
        if self.is_faulty { batch.rows } else { 0 }
    }
}

struct LaneOfTwo<'a> {
    replica: &'a Ahead,
    batches: VecDeque<Prepared>,
}

fn failure(rows: usize) -> RuntimeError {
    RuntimeError::OutOfMemory { model: "m".to_owned(), rows, problem: "made up".to_owned() }
}

impl Lane for LaneOfTwo<'_> {
    fn start(&mut self, batch: Prepared) -> Result<(), RuntimeError> {
        match self.replica.outcome(&batch) {
            NOT_STARTED => return Err(failure(batch.rows)),
            // Without a word from the panic hook.
            PANICS_AT_START => resume_unwind(Box::new("a bug in a model")),
            _ => {}
        }
        self.batches.push_back(batch);
        let Seen { started, started_max, .. } = &*self.replica.seen;
        started_max.fetch_max(started.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Ok(())
    }

    fn finish(&mut self) -> Option<Result<Vec<ArrayRef>, RuntimeError>> {
        let batch = self.batches.pop_front()?;
        self.replica.seen.started.fetch_sub(1, Ordering::SeqCst);
        Some(match self.replica.outcome(&batch) {
            NOT_FINISHED => Err(failure(batch.rows)),
            PANICS_AT_END => resume_unwind(Box::new("a bug in a model")),
            _ => self.replica.forward(batch),
        })
    }

    fn usage(&self, rows: usize, padded: usize) -> Usage {
        self.replica.inner.usage(rows, padded)
    }

    fn held(&self) -> Option<Held> {
        let pinned = self.batches.iter().map(|batch| batch.rows as u64).sum();
        Some(Held { pinned, reserved: 1000 })
    }
}

impl Drop for LaneOfTwo<'_> {
    fn drop(&mut self) {
        self.replica.seen.alive.fetch_sub(1, Ordering::SeqCst);
        self.replica.seen.started.fetch_sub(self.batches.len(), Ordering::SeqCst);
    }
}
