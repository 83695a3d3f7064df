//! What jobs have done, summed over them.

use std::collections::BTreeMap;

use super::job::RunningJob;
use crate::tables::rows::task_state;

/// What jobs have done, summed over them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(super) jobs: BTreeMap<&'static str, u64>,
    pub(super) tasks: BTreeMap<&'static str, u64>,
    pub(super) failures: u64,
    pub(super) recomputed: u64,
    pub(super) stale_reports: u64,
    pub(super) rows_written: u64,
    pub(super) bytes_written: u64,
}

impl Totals {
    /// Of one job until now.
    pub(crate) fn of(job: &RunningJob) -> Self {
        let mut found = Self::default();
        found.jobs.insert(job.state(), 1);
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

    pub(crate) fn add(&mut self, other: &Self) {
        other.jobs.iter().for_each(|(state, n)| *self.jobs.entry(state).or_default() += n);
        other.tasks.iter().for_each(|(state, n)| *self.tasks.entry(state).or_default() += n);
        self.failures += other.failures;
        self.recomputed += other.recomputed;
        self.stale_reports += other.stale_reports;
        self.rows_written += other.rows_written;
        self.bytes_written += other.bytes_written;
    }
}
