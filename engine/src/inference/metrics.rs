//! What inference measures: was the device busy, and if not, what for did it wait.

use std::sync::OnceLock;

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory,
    RatioMetrics, Time,
};

use forebay_udf::runtime::Held;

use crate::device::Reading;

/// The metrics of what batches held.
pub(crate) const PINNED_PEAK: &str = "pinned_memory_peak";
pub(crate) const RESERVED_PEAK: &str = "reserved_memory_peak";

/// The metric of what the batches took.
pub(crate) const OPERATIONS: &str = "operations";

/// One replica's stream.
#[derive(Debug)]
pub(super) struct InferenceMetrics {
    /// Rows and batches that left, time on the async side.
    pub(super) baseline: BaselineMetrics,
    /// Batches that the model computed, retries included.
    pub(super) batches: Count,
    /// Rows that the model computed: those without NULL.
    pub(super) rows_inferred: Count,
    /// How full they were, of what the limits allow.
    pub(super) batch_fill: RatioMetrics,
    /// How long the stream was in use, from its first poll on.
    pub(super) active_time: Time,
    /// How long there was nothing to compute because no rows had come.
    pub(super) starved_time: Time,
    /// How long the model computed.
    pub(super) busy_time: Time,
    /// How long batches waited for their share of the device.
    pub(super) lease_wait_time: Time,
    /// How long it took to make device inputs.
    pub(super) prepare_time: Time,
    /// How long it took until the model was loaded.
    pub(super) load_time: Time,
    /// Batches that were halved because they did not fit into memory.
    oom_splits: Count,
    /// Batches that were halved to find the row at fault.
    error_splits: Count,
    /// Rows without outputs because their inference failed.
    pub(super) rows_failed: Count,
    /// 1 for each replica that took part.
    pub(super) replicas: Gauge,
    /// Floating point operations of the batches; there where they are counted.
    operations: OnceLock<Count>,
    all: ExecutionPlanMetricsSet,
    partition: usize,
}

/// What one device was measured to do while an execution used it. The metrics appear with the first
/// reading, so that nothing is shown where nothing is measured.
#[derive(Debug)]
pub(super) struct DeviceMetrics {
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
    /// Share of the time that the device computed anything, for whomever.
    utilization: OnceLock<RatioMetrics>,
    /// The most bytes of the device's memory that were in use, by whomever.
    memory_peak: OnceLock<Gauge>,
    /// The most bytes of pinned host memory that batches on their way to the device and back had.
    pinned_peak: OnceLock<Gauge>,
    /// The most bytes of the device's memory that this process had for tensors.
    reserved_peak: OnceLock<Gauge>,
}

impl DeviceMetrics {
    pub(super) fn new(metrics: ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self {
            metrics,
            partition,
            utilization: OnceLock::new(),
            memory_peak: OnceLock::new(),
            pinned_peak: OnceLock::new(),
            reserved_peak: OnceLock::new(),
        }
    }

    fn raise(&self, peak: &OnceLock<Gauge>, name: &'static str, bytes: u64) {
        let metric = peak.get_or_init(|| {
            MetricBuilder::new(&self.metrics).peak_memory_usage(name, self.partition)
        });
        metric.set_max(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// What batches held when one was started.
    pub(super) fn add_held(&self, Held { pinned, reserved }: Held) {
        self.raise(&self.pinned_peak, PINNED_PEAK, pinned);
        self.raise(&self.reserved_peak, RESERVED_PEAK, reserved);
    }

    pub(super) fn add(&self, Reading { busy_percent, used_bytes }: Reading) {
        if let Some(percent) = busy_percent {
            let metric = self.utilization.get_or_init(|| {
                MetricBuilder::new(&self.metrics)
                    .ratio_metrics("device_utilization", self.partition)
            });
            metric.add_part(percent as usize);
            metric.add_total(100);
        }
        if let Some(bytes) = used_bytes {
            self.raise(&self.memory_peak, "device_memory_peak", bytes);
        }
    }
}

impl InferenceMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let rows = || MetricBuilder::new(metrics).with_category(MetricCategory::Rows);
        let time = |name: &'static str| MetricBuilder::new(metrics).subset_time(name, partition);
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            batches: rows().counter("batches", partition),
            rows_inferred: rows().counter("rows_inferred", partition),
            batch_fill: MetricBuilder::new(metrics).ratio_metrics("batch_fill", partition),
            active_time: time("active_time"),
            starved_time: time("starved_time"),
            busy_time: time("busy_time"),
            lease_wait_time: time("lease_wait_time"),
            prepare_time: time("prepare_time"),
            load_time: time("load_time"),
            oom_splits: rows().counter("oom_splits", partition),
            error_splits: rows().counter("error_splits", partition),
            rows_failed: rows().counter("rows_failed", partition),
            replicas: rows().gauge("replicas", partition),
            operations: OnceLock::new(),
            all: metrics.clone(),
            partition,
        }
    }

    /// Adds what a batch took.
    pub(super) fn add_operations(&self, operations: f64) {
        let new = || MetricBuilder::new(&self.all).counter(OPERATIONS, self.partition);
        self.operations.get_or_init(new).add(operations as usize);
    }

    /// Batches that were halved, for want of memory or because of a row.
    pub(super) fn splits(&self, is_oom: bool) -> &Count {
        if is_oom { &self.oom_splits } else { &self.error_splits }
    }
}
