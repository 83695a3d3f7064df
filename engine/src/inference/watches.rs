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
    /// Has the device looked at while the result is held, into metrics of `partition` if it is the
    /// first to use the device; `None` if it is not measured.
    pub(super) fn watch(
        &self,
        devices: &Devices,
        device: Device,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
    ) -> Option<Arc<Watch>> {
        let mut seen = self.0.lock();
        let seen = seen.entry(device).or_insert_with(|| Seen {
            metrics: Arc::new(DeviceMetrics::new(metrics.clone(), partition)),
            watch: Weak::new(),
        });
        if let Some(watch) = seen.watch.upgrade() {
            return Some(watch);
        }
        let into = Arc::clone(&seen.metrics);
        let watch = Arc::new(devices.watch(device, move |reading| into.add(reading))?);
        seen.watch = Arc::downgrade(&watch);
        Some(watch)
    }
}
