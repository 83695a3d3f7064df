//! What a plan with inference has done, from the metrics of its operators: for `EXPLAIN ANALYZE`,
//! for the shell's progress and summary, and for programs.
//!
//! Everything is measured by the operators while they run. What a replica does is told apart by its
//! own clock: it computes, waits for its share of the device, or waits for rows; what is left went to
//! the operators above it.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};

use crate::exchange::StreamingExchangeExec;
use crate::inference::{InferenceExec, OPERATIONS, PINNED_PEAK, RESERVED_PEAK};

/// A share of the time from which on it counts as the cause.
const DOMINANT: f64 = 0.85;
/// A share of the time from which on it is worth naming.
const NOTABLE: f64 = 0.25;

/// A share of the time from which on a device has nothing left to give.
const UTILIZED: f64 = 0.6;

/// What the operators of a plan have done so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunReport {
    /// Each model in the plan, the topmost first.
    pub inferences: Vec<InferenceReport>,
    /// Rows that came out of the plan's sources.
    pub rows_read: usize,
}

/// What one model's operator has done so far, all replicas together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferenceReport {
    /// The model's name in the catalog; several reports of a plan may have the same.
    pub model: String,
    /// Where it runs, as in `EXPLAIN`.
    pub device: String,
    /// Replicas that took part.
    pub replicas: usize,
    /// Rows that have left.
    pub rows: usize,
    /// Rows that the model computed.
    pub rows_inferred: usize,
    /// Rows whose equal inputs were computed for another row.
    pub rows_shared: usize,
    /// Rows whose inference failed.
    pub rows_failed: usize,
    /// Batches that the model computed.
    pub batches: usize,
    /// How full they were, of what the limits allow: 0 to 1.
    pub batch_fill: f64,
    /// Share of the computed tokens that are padding: 0 to 1; 0 for models without tokens.
    pub padding: f64,
    /// Batches that were halved because they did not fit into memory.
    pub oom_splits: usize,
    /// The most bytes that waited in the exchange.
    pub held_bytes_peak: usize,
    /// How long the replicas were in use, summed over them.
    pub active: Duration,
    /// Of that: the model computed.
    pub busy: Duration,
    /// Of that: batches waited for their share of the device.
    pub lease_wait: Duration,
    /// Of that: there were no rows.
    pub starved: Duration,
    /// Of that: the model was loaded.
    pub load: Duration,
    /// Share of the time that the devices computed, by their driver's account: 0 to 1; `None` where
    /// that is not measured. Other processes count too.
    pub device_utilization: Option<f64>,
    /// The most bytes that were in use on the devices, by their driver's account.
    pub device_memory_peak: Option<usize>,
    /// The most bytes of pinned host memory that batches had on their way to the devices and back; `None` on
    /// CPUs.
    pub pinned_memory_peak: Option<usize>,
    /// The most bytes of the devices' memory that this process had for tensors, in use or kept for later ones.
    pub reserved_memory_peak: Option<usize>,
    /// Floating point operations of the batches; `None` where they are not counted, as on GPUs.
    pub operations: Option<usize>,
    /// How long producers waited because the exchange was full, summed over them.
    pub producers_blocked: Duration,
    /// The operator below that computed longest, up to the next model.
    pub heaviest_below: Option<String>,
}

impl RunReport {
    /// Reads the metrics of a plan, which may still run.
    pub fn of(plan: &dyn ExecutionPlan) -> Self {
        let mut report = Self::default();
        report.add(plan);
        report
    }

    fn add(&mut self, plan: &dyn ExecutionPlan) {
        let children = plan.children();
        if let Some(inference) = plan.downcast_ref::<InferenceExec>() {
            self.inferences.push(InferenceReport::of(inference));
        } else if children.is_empty() {
            self.rows_read += plan.metrics().and_then(|m| m.output_rows()).unwrap_or(0);
        }
        for child in children {
            self.add(child.as_ref());
        }
    }

    /// Names the bottleneck and what to do about it; `None` without inference.
    pub fn verdict(&self) -> Option<String> {
        // The model that computed longest is the one to look at: no plan is faster than it.
        let model = self.inferences.iter().max_by_key(|inference| inference.busy)?;
        let rate =
            model.gigaflops().map(|rate| format!("; while it computed, at {rate:.1} GFLOP/s"));
        Some(model.verdict() + &rate.unwrap_or_default())
    }
}

impl InferenceReport {
    fn of(inference: &InferenceExec) -> Self {
        let own = inference.metrics().unwrap_or_default();
        let exchange = inference.input();
        let (below, below_metrics) = if exchange.is::<StreamingExchangeExec>() {
            (exchange.children(), exchange.metrics().unwrap_or_default())
        } else {
            (vec![exchange], MetricsSet::new())
        };
        let heaviest_below = below
            .into_iter()
            .filter_map(|p| heaviest(p.as_ref()))
            .max_by_key(|(time, _)| *time)
            .map(|(_, name)| name);
        Self::measured(inference, &own, &below_metrics, heaviest_below)
    }

    /// From metrics that were taken elsewhere: the operator's, and those of the exchange below it.
    pub fn measured(
        inference: &InferenceExec,
        own: &MetricsSet,
        below_metrics: &MetricsSet,
        heaviest_below: Option<String>,
    ) -> Self {
        let tokens = ratio(below_metrics, "useful_tokens");
        Self {
            model: inference.model().name.clone(),
            device: inference.placement().to_string(),
            replicas: count(own, "replicas"),
            rows: own.output_rows().unwrap_or(0),
            rows_inferred: count(own, "rows_inferred"),
            rows_shared: count(below_metrics, "shared_rows"),
            rows_failed: count(own, "rows_failed"),
            batches: count(own, "batches"),
            batch_fill: ratio(own, "batch_fill").unwrap_or(0.0),
            padding: tokens.map_or(0.0, |useful| 1.0 - useful),
            oom_splits: count(own, "oom_splits"),
            held_bytes_peak: peak(below_metrics, "held_bytes_peak"),
            active: time(own, "active_time"),
            busy: time(own, "busy_time"),
            lease_wait: time(own, "lease_wait_time"),
            starved: time(own, "starved_time"),
            load: time(own, "load_time"),
            device_utilization: ratio(own, "device_utilization"),
            device_memory_peak: own.sum_by_name("device_memory_peak").map(|bytes| bytes.as_usize()),
            pinned_memory_peak: own.sum_by_name(PINNED_PEAK).map(|bytes| bytes.as_usize()),
            reserved_memory_peak: own.sum_by_name(RESERVED_PEAK).map(|bytes| bytes.as_usize()),
            operations: own.sum_by_name(OPERATIONS).map(|operations| operations.as_usize()),
            producers_blocked: time(below_metrics, "producer_blocked_time"),
            heaviest_below,
        }
    }

    /// Share of the replicas' time that the model computed: 0 to 1.
    pub fn busy_share(&self) -> f64 {
        self.share(self.busy)
    }

    /// Thousands of millions of floating point operations in a second, as one replica does them while it
    /// computes; `None` where they are not counted.
    pub fn gigaflops(&self) -> Option<f64> {
        let operations = self.operations.filter(|_| !self.busy.is_zero())?;
        Some(operations as f64 / self.busy.as_secs_f64() / 1e9)
    }

    fn share(&self, part: Duration) -> f64 {
        if self.active.is_zero() {
            0.0
        } else {
            (part.as_secs_f64() / self.active.as_secs_f64()).min(1.0)
        }
    }

    /// One sentence: the bottleneck, and what to do about it.
    fn verdict(&self) -> String {
        let Self { model, device, .. } = self;
        let percent = |part| format!("{:.0}%", 100.0 * self.share(part));
        if self.rows_inferred == 0 {
            return format!("model '{model}' had no rows to compute");
        }
        if self.share(self.busy) >= DOMINANT {
            return format!(
                "model '{model}' on {device} computed {} of the time{}: {}",
                percent(self.busy),
                self.device_text().map(|text| format!(" ({text})")).unwrap_or_default(),
                self.how_to_compute_faster()
            );
        }
        let waits =
            [(self.starved, Wait::Rows), (self.lease_wait, Wait::Device), (self.load, Wait::Load)];
        let longest = waits.into_iter().max_by_key(|(time, _)| *time);
        match longest.filter(|(time, _)| self.share(*time) >= NOTABLE) {
            Some((time, Wait::Rows)) => {
                let below = self.heaviest_below.as_deref().unwrap_or("its input");
                format!(
                    "model '{model}' on {device} was idle {} of the time waiting for {below}: give \
                     it more CPU cores or partitions (datafusion.execution.target_partitions), or \
                     use fewer replicas",
                    percent(time)
                )
            }
            Some((time, Wait::Device)) => format!(
                "model '{model}' waited {} of the time for its share of {device}, which other \
                 models or queries held: lower their `gpus` or `cpus`, or run them one by one",
                percent(time)
            ),
            Some((time, Wait::Load)) => format!(
                "loading model '{model}' took {} of the time: more rows per query, or queries in \
                 one process, load it once",
                percent(time)
            ),
            None => format!(
                "model '{model}' on {device} computed {} of the time; the rest went to the \
                 operators above it",
                percent(self.busy)
            ),
        }
    }

    /// `device 73% utilized, 12.3 GiB of its memory in use`, if that was measured.
    pub fn device_text(&self) -> Option<String> {
        let utilization =
            self.device_utilization.map(|share| format!("device {:.0}% utilized", 100.0 * share));
        let memory = self
            .device_memory_peak
            .map(|bytes| format!("{} of its memory in use", ByteSize(bytes as u64)));
        let parts: Vec<String> = utilization.into_iter().chain(memory).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    fn how_to_compute_faster(&self) -> &'static str {
        match () {
            () if self.batch_fill < 0.5 => {
                "its batches are less than half full, so more rows at a time would help most"
            }
            () if self.padding > 0.3 => {
                "much of that is padding; a larger `batch_window_rows` groups lengths better"
            }
            () if self.device_utilization.is_some_and(|share| share < UTILIZED) => {
                "the device had time left, so larger batches or more replicas on it (a lower \
                 `gpus`) would use more of it"
            }
            () => "more replicas or devices, or a lower `precision`, would make the query faster",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    Rows,
    Device,
    Load,
}

/// `4,096 rows inferred, model busy 93%`
impl fmt::Display for InferenceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "model '{}': {} rows, {} computed in {} batches, {} shared, {} failed, batches {:.0}% \
             full, {:.0}% padding, busy {:.0}%",
            self.model,
            self.rows,
            self.rows_inferred,
            self.batches,
            self.rows_shared,
            self.rows_failed,
            100.0 * self.batch_fill,
            100.0 * self.padding,
            100.0 * self.busy_share(),
        )
    }
}

/// The operator that computed longest, models and what is below them aside.
fn heaviest(plan: &dyn ExecutionPlan) -> Option<(usize, String)> {
    if plan.is::<InferenceExec>() {
        return None;
    }
    let metrics = plan.metrics().unwrap_or_default();
    let computed = metrics.elapsed_compute().unwrap_or(0);
    // Files are read in tasks with metrics of their own.
    let own = computed.max(count(&metrics, "time_elapsed_processing"));
    let children = plan.children().into_iter().filter_map(|child| heaviest(child.as_ref()));
    children.chain([(own, plan.name().to_owned())]).max_by_key(|(time, _)| *time)
}

fn count(metrics: &MetricsSet, name: &str) -> usize {
    metrics.sum_by_name(name).map_or(0, |value| value.as_usize())
}

fn time(metrics: &MetricsSet, name: &str) -> Duration {
    Duration::from_nanos(count(metrics, name) as u64)
}

fn peak(metrics: &MetricsSet, name: &str) -> usize {
    let values = metrics.iter().filter(|metric| metric.value().name() == name);
    values.map(|metric| metric.value().as_usize()).max().unwrap_or(0)
}

fn ratio(metrics: &MetricsSet, name: &str) -> Option<f64> {
    let (mut part, mut total) = (0, 0);
    for metric in metrics.iter() {
        if let MetricValue::Ratio { name: found, ratio_metrics } = metric.value()
            && found == name
        {
            part += ratio_metrics.part();
            total += ratio_metrics.total();
        }
    }
    (total > 0).then(|| part as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_computed_is_stated_as_a_rate() {
        let mut inference = report();
        inference.busy = Duration::from_secs(4);
        assert_eq!(inference.gigaflops(), None);
        inference.operations = Some(372_000_000_000);
        assert_eq!(inference.gigaflops(), Some(93.0));
        let report = RunReport { inferences: vec![inference.clone()], rows_read: 10 };
        let verdict = report.verdict().unwrap();
        assert!(verdict.ends_with("; while it computed, at 93.0 GFLOP/s"), "{verdict}");
        inference.busy = Duration::ZERO;
        assert_eq!(inference.gigaflops(), None);
    }

    fn report() -> InferenceReport {
        InferenceReport {
            model: "m".to_owned(),
            device: "cpu".to_owned(),
            rows_inferred: 10,
            batch_fill: 1.0,
            active: Duration::from_secs(10),
            heaviest_below: Some("SortExec".to_owned()),
            ..InferenceReport::default()
        }
    }

    fn verdict(change: impl FnOnce(&mut InferenceReport)) -> String {
        let mut report = report();
        change(&mut report);
        RunReport { inferences: vec![report], rows_read: 0 }.verdict().unwrap()
    }

    #[test]
    fn each_bottleneck_is_named_with_a_remedy() {
        let seconds = Duration::from_secs;
        for (text, expected) in [
            (verdict(|r| r.busy = seconds(9)), "computed 90% of the time: more replicas"),
            (verdict(|r| (r.busy, r.batch_fill) = (seconds(9), 0.2)), "less than half full"),
            (
                verdict(|r| (r.busy, r.device_utilization) = (seconds(9), Some(0.4))),
                "computed 90% of the time (device 40% utilized): the device had time left",
            ),
            (
                verdict(|r| {
                    (r.busy, r.device_utilization) = (seconds(9), Some(0.97));
                    r.device_memory_peak = Some(3 << 30);
                }),
                "(device 97% utilized, 3.0 GiB of its memory in use): more replicas",
            ),
            (verdict(|r| (r.busy, r.padding) = (seconds(9), 0.5)), "batch_window_rows"),
            (verdict(|r| r.starved = seconds(7)), "idle 70% of the time waiting for SortExec"),
            (verdict(|r| r.lease_wait = seconds(5)), "waited 50% of the time for its share of cpu"),
            (verdict(|r| r.load = seconds(5)), "loading model 'm' took 50%"),
            (verdict(|r| r.busy = seconds(5)), "computed 50% of the time; the rest went to"),
            (verdict(|r| r.rows_inferred = 0), "had no rows"),
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(RunReport::default().verdict(), None);
    }
}
