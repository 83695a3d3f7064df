//! A batch between being handed over to a device and being done.

use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::instant::Instant;

use super::batch::ModelRows;
use super::setup::Setup;
use crate::device::{BatchError, Outcome, Submitted};

/// A batch that was handed over, or has no need to be.
pub(super) struct InFlight {
    pub(super) batch: RecordBatch,
    /// The rows of it that the model is to see.
    pub(super) model_rows: ModelRows,
    /// `None` if there is none.
    pub(super) outcome: Option<Pending>,
}

pub(super) enum Pending {
    Computes(Submitted),
    /// Computed, or failed before it reached the device.
    Done(Outcome),
}

impl InFlight {
    /// Waits for the outcome; `None` if the model had nothing to do. May be dropped and called
    /// again.
    pub(super) async fn wait(&mut self, since: Instant, setup: &Setup) -> Result<Option<Outcome>> {
        match &mut self.outcome {
            None => Ok(None),
            Some(Pending::Computes(submitted)) => received(submitted, since, setup).await.map(Some),
            done => Ok(match done.take() {
                Some(Pending::Done(outcome)) => Some(outcome),
                _ => None,
            }),
        }
    }
}

/// The outcome of a batch.
///
/// # Errors
/// If it has not come within the limit.
pub(super) async fn received(
    submitted: &mut Submitted,
    since: Instant,
    setup: &Setup,
) -> Result<Outcome> {
    let left = setup.no_progress_limit.map(|limit| limit.saturating_sub(since.elapsed()));
    tokio::select! {
        // A batch that is done is done, however late its outcome is asked for.
        biased;
        outcome = &mut submitted.outcome => Ok(outcome.unwrap_or_else(|_| {
            Outcome::failed(BatchError::Panic("its thread has ended".to_owned()))
        })),
        () = after(left) => Err(setup.stuck_batch(since, submitted.computes()).into()),
    }
}

/// Returns after a time, if there is one.
pub(super) async fn after(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
