//! Looking at the devices that one execution uses: once each, however many of its streams use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use forebay_udf::runtime::Device;
use parking_lot::Mutex;

use super::metrics::DeviceMetrics;
use crate::device::{Devices, Watch};

/// The devices that are watched for one execution of an operator.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<BTreeMap<Device, Seen>>);

/// A device of the execution; its metrics outlive the streams that use it.
#[derive(Debug)]
struct Seen {
    metrics: Arc<DeviceMetrics>,
    watch: Weak<Watch>,
}

impl Watches {
    /// Has the device looked at while the first result is held, into the second: metrics of `partition` if it is
    /// the first to use the device. No watch if it cannot be looked at.
    pub(super) fn watch(
        &self,
        devices: &Devices,
        device: Device,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
    ) -> (Option<Arc<Watch>>, Arc<DeviceMetrics>) {
        let mut seen = self.0.lock();
        let seen = seen.entry(device).or_insert_with(|| Seen {
            metrics: Arc::new(DeviceMetrics::new(metrics.clone(), partition)),
            watch: Weak::new(),
        });
        let (watch, into) = (seen.watch.upgrade(), Arc::clone(&seen.metrics));
        let watch = watch.or_else(|| {
            let into = Arc::clone(&into);
            let watch = Arc::new(devices.watch(device, move |reading| into.add(reading))?);
            seen.watch = Arc::downgrade(&watch);
            Some(watch)
        });
        (watch, into)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebay_udf::runtime::Replica;
    use futures::StreamExt;
    use tempfile::TempDir;

    use super::super::tests::{Shape, infer, pool};
    use super::*;
    use crate::device::{Ahead, Meter, Reading, Samplers};
    use crate::testing::{
        collect_all, context, context_of, emulated_model, numbers, table, with_package,
    };
    use crate::{InferenceReport, Inventory, RunReport};

    /// A query over two batches that runs until `until` is true of its plan's metrics.
    async fn run_until(
        devices: Devices,
        replicas: usize,
        until: impl Fn() -> bool,
    ) -> InferenceReport {
        let dir = TempDir::new().unwrap();
        let model = with_package(emulated_model("m"), dir.path());
        let context = context_of(Arc::new(devices), pool());
        let input = table(&[vec![numbers(0..100, |_| false)]], numbers(0..0, |_| false).schema());
        let plan = infer(input, &model, "digest", Shape::Exchange, replicas, 1 << 20);
        let mut streams: Vec<_> = (0..replicas)
            .map(|partition| plan.execute(partition, Arc::clone(&context)).unwrap())
            .collect();
        for stream in &mut streams {
            stream.next().await.transpose().unwrap();
        }
        while !until() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        drop(streams);
        RunReport::of(plan.as_ref()).inferences.remove(0)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_device_was_measured_to_do_is_told_once_however_many_replicas_use_it() {
        let readings = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&readings);
        let find = move |_| {
            let counted = Arc::clone(&counted);
            let meter = move || {
                let at = counted.fetch_add(1, Ordering::SeqCst);
                // 30% and 50% in turn; the second look sees most memory.
                let busy_percent = Some(if at.is_multiple_of(2) { 30 } else { 50 });
                Reading { busy_percent, used_bytes: Some(if at == 1 { 7 << 30 } else { 1 << 30 }) }
            };
            Some(Box::new(meter) as Meter)
        };
        let samplers = Samplers::new(|_| true, find).every(std::time::Duration::from_millis(1));
        let inventory = Inventory::detect().with_cpus(2).with_emulated(1, 1 << 30);
        let devices = Devices::new(inventory).with_samplers(samplers);
        // The fourth look begins when the third one has been told.
        let report = run_until(devices, 2, || readings.load(Ordering::SeqCst) >= 4).await;
        let share = report.device_utilization.unwrap();
        assert!((0.3..0.5).contains(&share), "{share}");
        assert_eq!(report.device_memory_peak, Some(7 << 30));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_not_measured_is_not_told() {
        for can_be_looked_at in [false, true] {
            let looked_for = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&looked_for);
            let find = move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                None
            };
            let measures: fn(Device) -> bool = if can_be_looked_at { |_| true } else { |_| false };
            let inventory = Inventory::detect().with_cpus(2).with_emulated(1, 1 << 30);
            let devices = Devices::new(inventory).with_samplers(Samplers::new(measures, find));
            let expected = usize::from(can_be_looked_at);
            let until = || looked_for.load(Ordering::SeqCst) == expected;
            let report = run_until(devices, 1, until).await;
            assert_eq!((report.device_utilization, report.device_memory_peak), (None, None));
            assert_eq!(report.device_text(), None);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_memory_that_batches_hold_is_told_where_it_is_counted() {
        let dir = TempDir::new().unwrap();
        let model = with_package(emulated_model("m"), dir.path());
        let context = context(1, pool());
        let devices = Devices::from_context(&context).unwrap();
        let batch = numbers(0..100, |_| false);
        let report = async || {
            let input = table(&[vec![batch.clone()]], batch.schema());
            let plan = infer(input, &model, "digest", Shape::Exchange, 2, 1 << 20);
            collect_all(&plan, &context).await.unwrap();
            RunReport::of(plan.as_ref()).inferences.remove(0)
        };
        let found = report().await;
        assert_eq!((found.pinned_memory_peak, found.reserved_memory_peak), (None, None));
        let ahead = |inner| -> Arc<dyn Replica> {
            Arc::new(Ahead { inner, seen: Arc::default(), is_faulty: false })
        };
        devices.replace_replica(&model, Device::Emulated(0), ahead).await;
        let found = report().await;
        // Told once, however many replicas use the device, and never more than two batches of eight rows.
        assert_eq!(found.reserved_memory_peak, Some(1000));
        assert!((1..=16).contains(&found.pinned_memory_peak.unwrap()), "{found:?}");
    }
}
