//! How many rows of one execution failed, against what the model may fail at most.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datafusion::common::{DataFusionError, Result};
use forebay_udf::model::ModelDeclaration;

use crate::error::EngineError;

/// Counted by all partitions. Judged when the last one ends, so that the verdict depends neither on
/// the order of the rows nor on who computed them.
#[derive(Debug)]
pub(super) struct Tally {
    rows: AtomicU64,
    failed: AtomicU64,
    running: AtomicUsize,
}

impl Tally {
    pub(super) fn new(partitions: usize) -> Self {
        let (rows, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { rows, failed, running: AtomicUsize::new(partitions) }
    }

    /// Some rows are done.
    pub(super) fn add(&self, rows: usize, failed: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.failed.fetch_add(failed as u64, Ordering::Relaxed);
    }

    /// A partition has no more rows.
    ///
    /// # Errors
    /// If it is the last one, and more rows failed than the model may fail.
    pub(super) fn finish(&self, model: &ModelDeclaration) -> Result<(), DataFusionError> {
        // Orders the other partitions' counts before the last one's judgement.
        if self.running.fetch_sub(1, Ordering::AcqRel) != 1 {
            return Ok(());
        }
        let (rows, failed) =
            (self.rows.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        // Divided, so that a ratio that is met exactly is met: 29 / 100 is the number 0.29.
        if failed == 0 || failed as f64 / rows as f64 <= model.max_error_ratio {
            return Ok(());
        }
        let (model, max_error_ratio) = (model.name.clone(), model.max_error_ratio);
        Err(EngineError::TooManyErrors { model, failed, rows, max_error_ratio }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::emulated_model;

    #[test]
    fn only_the_last_partition_judges() {
        let mut model = emulated_model("m");
        model.max_error_ratio = 0.1;
        let tally = Tally::new(2);
        tally.add(10, 2);
        tally.finish(&model).unwrap();
        tally.add(9, 0);
        let error = tally.finish(&model).unwrap_err().to_string();
        assert!(error.contains("2 of 19 rows failed"), "{error}");
        for (failed, ratio) in [(2, 0.02), (29, 0.29), (57, 0.57), (0, 0.0)] {
            model.max_error_ratio = ratio;
            let tally = Tally::new(1);
            tally.add(100, failed);
            tally.finish(&model).unwrap();
        }
    }
}
