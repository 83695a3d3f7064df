//! What a scheduler tells Prometheus.

use std::collections::BTreeMap;

use datafusion::common::Result;

use super::registry::Registry;
use crate::metrics::Page;
use crate::tables::rows::WorkerRow;

/// The figures of a scheduler.
pub(crate) fn of_scheduler(registry: &Registry, page: &Page) -> Result<()> {
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
