//! What one replica's stream is made with, and what the streams of one execution share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use datafusion::common::instant::Instant;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, Gauge, MetricBuilder};
use forebay_udf::model::ModelDeclaration;
use forebay_udf::runtime::Device;

use super::tally::Tally;
use super::watches::Watches;
use crate::carry::Sources;
use crate::device::{Batching, Devices};
use crate::error::EngineError;
use crate::exchange::LiveLimits;

/// What a stream is told by its operator.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) devices: Arc<Devices>,
    pub(super) env: Arc<RuntimeEnv>,
    pub(super) model: Arc<ModelDeclaration>,
    pub(super) device: Device,
    /// How large batches are there.
    pub(super) batching: Batching,
    pub(super) partition: usize,
    /// How long one batch may take.
    pub(super) no_progress_limit: Option<Duration>,
    /// Where the prepared columns are in the input.
    pub(super) prepared: Vec<usize>,
    /// Where the numbers of equal inputs are, if these are shared.
    pub(super) groups: Option<usize>,
    /// Where the transform's row errors are, if rows may fail.
    pub(super) row_errors: Option<usize>,
    pub(super) execution: Arc<Execution>,
    /// Where metrics go that appear only once something was measured.
    pub(super) metrics: ExecutionPlanMetricsSet,
    /// Which input column each output column is.
    pub(super) sources: Sources,
    /// Which of the model's output columns are in the schema.
    pub(super) is_output_kept: Vec<bool>,
    pub(super) schema: SchemaRef,
}

/// What the streams of one execution share.
#[derive(Debug)]
pub(super) struct Execution {
    /// Of its batches: the exchange below forms them so.
    pub(super) limits: Arc<LiveLimits>,
    /// The size of batches that is looked for, where it is.
    pub(super) batch_size: OnceLock<Gauge>,
    /// Rows that failed.
    pub(super) tally: Tally,
    /// The devices that are looked at meanwhile.
    pub(super) watches: Watches,
}

impl Execution {
    pub(super) fn new(partitions: usize, limits: Arc<LiveLimits>) -> Self {
        let (tally, watches) = (Tally::new(partitions), Watches::default());
        Self { limits, batch_size: OnceLock::new(), tally, watches }
    }
}

impl Setup {
    /// Has batches from now on formed as it was learned from those so far.
    pub(super) fn follow_batches(&self) {
        self.execution.limits.set(self.batching.limits());
        if let Some(size) = self.batching.size() {
            // One for all replicas: those of several would be added up.
            let gauge = self
                .execution
                .batch_size
                .get_or_init(|| MetricBuilder::new(&self.metrics).global_gauge("batch_size"));
            gauge.set(usize::try_from(size).unwrap_or(usize::MAX));
        }
    }

    pub(super) fn no_progress(&self, since: Instant, waits_for: impl Into<String>) -> EngineError {
        EngineError::NoProgress {
            operator: format!("InferenceExec of model '{}'", self.model.name),
            seconds: since.elapsed().as_secs(),
            waits_for: waits_for.into(),
        }
    }

    pub(super) fn stuck_batch(&self, since: Instant, computes: bool) -> EngineError {
        let device = self.device;
        self.no_progress(
            since,
            if computes {
                format!("a batch on {device} has not returned")
            } else {
                format!("a batch has not got its share of {device}, which others hold")
            },
        )
    }
}
