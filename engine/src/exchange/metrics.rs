//! What an exchange measures: who waited for whom, what was held, how full the batches are.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory,
    RatioMetrics, Time,
};

/// One producer's side.
#[derive(Debug)]
pub(super) struct ProducerMetrics {
    /// How long it waited because the exchange was full.
    pub(super) blocked_time: Time,
}

impl ProducerMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self {
            blocked_time: MetricBuilder::new(metrics)
                .subset_time("producer_blocked_time", partition),
        }
    }
}

/// One replica's side.
#[derive(Debug)]
pub(super) struct ReplicaMetrics {
    /// Rows, batches, time to gather them.
    pub(super) baseline: BaselineMetrics,
    /// Batches that the replica took.
    pub(super) batches: Count,
    /// How long it waited for rows.
    pub(super) idle_time: Time,
    /// Tokens of the rows among the tokens that the device computes.
    pub(super) useful_tokens: RatioMetrics,
    /// Rows whose inputs another row of their batch has as well.
    pub(super) shared_rows: Count,
    /// Bytes of the rows that it took. The baseline's bytes are those of the arrays that the rows are
    /// a slice of, again for each slice.
    pub(super) moved_bytes: Count,
    /// The most bytes that the exchange held, all partitions together.
    pub(super) held_bytes_peak: Gauge,
}

impl ReplicaMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            batches: MetricBuilder::new(metrics)
                .with_category(MetricCategory::Rows)
                .counter("batches", partition),
            shared_rows: MetricBuilder::new(metrics)
                .with_category(MetricCategory::Rows)
                .counter("shared_rows", partition),
            idle_time: MetricBuilder::new(metrics).subset_time("replica_idle_time", partition),
            useful_tokens: MetricBuilder::new(metrics).ratio_metrics("useful_tokens", partition),
            moved_bytes: MetricBuilder::new(metrics)
                .with_category(MetricCategory::Bytes)
                .counter("moved_bytes", partition),
            held_bytes_peak: MetricBuilder::new(metrics)
                .with_category(MetricCategory::Bytes)
                .gauge("held_bytes_peak", partition),
        }
    }
}
