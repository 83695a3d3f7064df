//! What a worker tells Prometheus.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_executor::executor::Executor;
use datafusion::common::Result;
use forebay_engine::device::Utilization;
use forebay_engine::{Accelerator, Devices};
use forebay_udf::runtime::Device;

use crate::block::BlockStore;
use crate::metrics::Page;

/// What a worker's figures are made of.
pub(crate) struct WorkerFigures {
    pub(crate) executor: Arc<Executor>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) accelerators: Vec<Accelerator>,
    /// Of those that tell.
    pub(crate) utilizations: Vec<(Device, Utilization)>,
}

impl WorkerFigures {
    /// Looks at the accelerators from now on.
    pub(crate) fn new(
        executor: Arc<Executor>,
        store: Arc<BlockStore>,
        devices: Arc<Devices>,
    ) -> Self {
        let accelerators = accelerators(&devices);
        let all = accelerators.iter().map(|found| found.device);
        let look = |device| Some((device, devices.utilization(device)?));
        let utilizations = all.filter_map(look).collect();
        Self { executor, store, devices, accelerators, utilizations }
    }
}

/// All that a worker offers.
pub(crate) fn accelerators(devices: &Devices) -> Vec<Accelerator> {
    let cuda = devices.cuda().unwrap_or_default();
    cuda.into_iter().chain(devices.inventory().emulated().iter().cloned()).collect()
}

/// How many accelerators compute, on average since this was last asked, in thousandths.
pub(crate) struct BusyMeter {
    devices: Arc<Devices>,
    accelerators: Vec<Accelerator>,
    before: (Instant, Duration),
}

impl BusyMeter {
    pub(crate) fn new(devices: Arc<Devices>) -> Self {
        let accelerators = accelerators(&devices);
        let mut meter = Self { devices, accelerators, before: (Instant::now(), Duration::ZERO) };
        meter.before.1 = meter.busy_time();
        meter
    }

    fn busy_time(&self) -> Duration {
        let each = self.accelerators.iter().map(|found| self.devices.busy_time(found.device));
        each.sum()
    }

    pub(crate) fn milli(&mut self) -> u32 {
        let now = (Instant::now(), self.busy_time());
        let (elapsed, busy) = (now.0 - self.before.0, now.1.saturating_sub(self.before.1));
        self.before = now;
        let milli = 1000.0 * busy.as_secs_f64() / elapsed.as_secs_f64().max(f64::EPSILON);
        // What was asked of one device before another may add up to a little more than there is.
        (milli.round() as u32).min(1000 * self.accelerators.len() as u32)
    }
}

/// The figures of a worker.
pub(crate) fn of_worker(worker: &WorkerFigures, page: &Page) -> Result<()> {
    let tasks = worker.executor.active_task_count() as f64;
    page.gauge("forebay_worker_tasks", "Tasks that run here.", tasks)?;
    let bytes = worker.store.bytes() as f64;
    page.gauge("forebay_worker_block_bytes", "Bytes of the block files here.", bytes)?;
    let cpus = f64::from(worker.devices.inventory().cpus);
    page.gauge("forebay_worker_cpus", "Cores that this worker offers.", cpus)?;
    let loaded = worker.devices.loaded() as f64;
    page.gauge("forebay_worker_models_loaded", "Models on devices of this worker.", loaded)?;
    let leased = |found: &Accelerator| {
        let share = worker.devices.leased_millis(found.device) as f64 / 1000.0;
        (found.device.to_string(), share)
    };
    let leased: Vec<_> = worker.accelerators.iter().map(leased).collect();
    let help = "Share of an accelerator that replicas hold.";
    page.gauges("forebay_worker_accelerator_leased", help, "device", &leased)?;
    let busy = |found: &Accelerator| {
        (found.device.to_string(), worker.devices.busy_time(found.device).as_secs_f64())
    };
    let busy: Vec<_> = worker.accelerators.iter().map(busy).collect();
    let help = "Time in which an accelerator computed a batch or several.";
    page.counters("forebay_worker_accelerator_busy_seconds_total", help, "device", &busy)?;
    let told = worker.utilizations.iter();
    let told = told.filter_map(|(device, found)| Some((device.to_string(), found.share()?)));
    let told: Vec<_> = told.collect();
    let help = "Share of the time that an accelerator computes, by its driver's account.";
    page.gauges("forebay_worker_accelerator_utilization", help, "device", &told)
}
