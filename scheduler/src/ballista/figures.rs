//! What a scheduler and a worker tell Prometheus.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_executor::executor::Executor;
use datafusion::common::Result;
use forebay_engine::device::Utilization;
use forebay_engine::{Accelerator, Devices};
use forebay_udf::runtime::Device;

use super::observe::job_state;
use super::registry::Registry;
use super::running::RunningJob;
use crate::block::BlockStore;
use crate::metrics::Page;
use crate::tables::rows::{WorkerRow, task_state};

/// What jobs have done, summed over them.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    jobs: BTreeMap<&'static str, u64>,
    tasks: BTreeMap<&'static str, u64>,
    failures: u64,
    recomputed: u64,
    stale_reports: u64,
    rows_written: u64,
    bytes_written: u64,
}

impl Totals {
    /// Of one job until now.
    pub(super) fn of(job: &RunningJob) -> Self {
        let mut found = Self::default();
        found.jobs.insert(job_state(job), 1);
        for task in job.graph.task_rows() {
            *found.tasks.entry(task_state(&task)).or_default() += 1;
        }
        for stage in job.graph.stage_rows() {
            found.failures += u64::from(stage.failures);
            found.rows_written += stage.rows;
            found.bytes_written += stage.bytes;
        }
        found.recomputed = job.graph.recomputed().len() as u64;
        found.stale_reports = job.graph.stale_reports();
        found
    }

    pub(super) fn add(&mut self, other: &Self) {
        other.jobs.iter().for_each(|(state, n)| *self.jobs.entry(state).or_default() += n);
        other.tasks.iter().for_each(|(state, n)| *self.tasks.entry(state).or_default() += n);
        self.failures += other.failures;
        self.recomputed += other.recomputed;
        self.stale_reports += other.stale_reports;
        self.rows_written += other.rows_written;
        self.bytes_written += other.bytes_written;
    }
}

/// The figures of a scheduler.
pub(super) fn of_scheduler(registry: &Registry, page: &Page) -> Result<()> {
    let totals = registry.totals();
    let of = |counts: &BTreeMap<&'static str, u64>, states: &[&'static str]| {
        let count = |state: &&'static str| (*state, counts.get(state).copied().unwrap_or(0) as f64);
        states.iter().map(count).collect::<Vec<_>>()
    };
    let jobs = of(&totals.jobs, &["queued", "running"]);
    page.gauges("forebay_jobs", "Jobs that have not ended.", "state", &jobs)?;
    let ended = of(&totals.jobs, &["finished", "failed", "canceled"]);
    page.counters("forebay_jobs_ended_total", "Jobs that have ended.", "state", &ended)?;
    let tasks = of(&totals.tasks, &["running", "draining"]);
    page.gauges("forebay_tasks", "Tasks that have not ended.", "state", &tasks)?;
    let ended = of(&totals.tasks, &["finished", "failed", "canceled", "lost"]);
    page.counters("forebay_tasks_ended_total", "Tasks that have ended.", "state", &ended)?;
    for (name, help, value) in [
        ("forebay_task_retries_total", "Failures that led to another attempt.", totals.failures),
        ("forebay_units_recomputed_total", "Units that ran again after a loss.", totals.recomputed),
        ("forebay_stale_reports_total", "Reports that came too late.", totals.stale_reports),
        ("forebay_rows_written_total", "Rows that tasks wrote.", totals.rows_written),
        ("forebay_bytes_written_total", "Bytes that tasks wrote.", totals.bytes_written),
    ] {
        page.counters(name, help, "", &[("", value as f64)])?;
    }
    of_workers(&registry.worker_rows(), page)
}

fn of_workers(workers: &[WorkerRow], page: &Page) -> Result<()> {
    let draining = workers.iter().filter(|row| row.worker.draining).count();
    let states = [("active", (workers.len() - draining) as f64), ("draining", draining as f64)];
    page.gauges("forebay_workers", "Workers that attend.", "state", &states)?;
    let sum = |of: fn(&WorkerRow) -> f64| workers.iter().map(of).sum::<f64>();
    let used = |row: &WorkerRow| -> f64 {
        row.state.devices.iter().map(|device| f64::from(device.used_milli)).sum()
    };
    for (name, help, value) in [
        ("forebay_cpus", "Cores of all workers.", sum(|row| row.worker.inventory.cpus.into())),
        (
            "forebay_cpus_leased",
            "Cores that tasks hold.",
            sum(|row| f64::from(row.state.used_cpus_milli)) / 1000.0,
        ),
        (
            "forebay_accelerators",
            "Accelerators of all workers.",
            sum(|row| row.state.devices.len() as f64),
        ),
        (
            "forebay_accelerators_leased",
            "Accelerators that tasks hold.",
            workers.iter().map(used).sum::<f64>() / 1000.0,
        ),
        (
            "forebay_block_bytes",
            "Bytes of the blocks of jobs that run.",
            sum(|row| row.block_bytes as f64),
        ),
    ] {
        page.gauge(name, help, value)?;
    }
    Ok(())
}

/// What a worker's figures are made of.
pub(super) struct WorkerFigures {
    pub(super) executor: Arc<Executor>,
    pub(super) store: Arc<BlockStore>,
    pub(super) devices: Arc<Devices>,
    pub(super) accelerators: Vec<Accelerator>,
    /// Of those that tell.
    pub(super) utilizations: Vec<(Device, Utilization)>,
}

impl WorkerFigures {
    /// Looks at the accelerators from now on.
    pub(super) fn new(
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
pub(super) fn accelerators(devices: &Devices) -> Vec<Accelerator> {
    let cuda = devices.cuda().unwrap_or_default();
    cuda.into_iter().chain(devices.inventory().emulated().iter().cloned()).collect()
}

/// How many accelerators compute, on average since this was last asked, in thousandths.
pub(super) struct BusyMeter {
    devices: Arc<Devices>,
    accelerators: Vec<Accelerator>,
    before: (Instant, Duration),
}

impl BusyMeter {
    pub(super) fn new(devices: Arc<Devices>) -> Self {
        let accelerators = accelerators(&devices);
        let mut meter = Self { devices, accelerators, before: (Instant::now(), Duration::ZERO) };
        meter.before.1 = meter.busy_time();
        meter
    }

    fn busy_time(&self) -> Duration {
        let each = self.accelerators.iter().map(|found| self.devices.busy_time(found.device));
        each.sum()
    }

    pub(super) fn milli(&mut self) -> u32 {
        let now = (Instant::now(), self.busy_time());
        let (elapsed, busy) = (now.0 - self.before.0, now.1.saturating_sub(self.before.1));
        self.before = now;
        let milli = 1000.0 * busy.as_secs_f64() / elapsed.as_secs_f64().max(f64::EPSILON);
        // What was asked of one device before another may add up to a little more than there is.
        (milli.round() as u32).min(1000 * self.accelerators.len() as u32)
    }
}

/// The figures of a worker.
pub(super) fn of_worker(worker: &WorkerFigures, page: &Page) -> Result<()> {
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
