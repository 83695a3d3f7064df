//! The rows of the system tables, from the registry's jobs and the workers that attend.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result as DataFusionResult;
use tonic::Status;

use crate::coordinator::fleet::{self, worker_state};
use crate::coordinator::job::RunningJob;
use crate::coordinator::registry::{Registry, Submitted};
use crate::graph::{BlockState, TaskState, WorkerId};
use crate::placement::WorkerState;
use crate::protocol::messages::run_update::News;
use crate::protocol::messages::{Progress, RunUpdate, TableRows};
use crate::tables::rows::{self, Epoch, JobRow, Stage, WorkerRow, reads};
use crate::tables::{SystemTable, written};

/// For how long what is taken of workers is not looked at again on behalf of clients that watch.
const RECENT_MS: u64 = 250;

impl Registry {
    /// The rows of a table, of a user's jobs or of all. Jobs are locked one at a time: what a table
    /// says of one of them is of one moment.
    pub(crate) fn table(
        &self,
        table: SystemTable,
        owner: Option<&str>,
    ) -> DataFusionResult<TableRows> {
        let workers = self.worker_states();
        let is_wanted = |found: &str| owner.is_none_or(|owner| owner == found);
        let mut batches = vec![];
        if table == SystemTable::Workers {
            batches.push(rows::workers(&self.worker_rows())?);
        } else {
            for job in self.all() {
                let job = job.lock();
                if is_wanted(&job.owner()) {
                    batches.push(self.rows(table, &job, &workers)?);
                }
            }
        }
        if table == SystemTable::Jobs {
            let unplanned = self.unplanned().into_iter().filter(|(_, job)| is_wanted(&job.owner));
            let waits_for = if workers.is_empty() { fleet::NO_WORKER } else { "" };
            let unplanned = unplanned.map(|(id, job)| unplanned_row(id, job, waits_for));
            batches.push(rows::jobs(&unplanned.collect::<Vec<_>>())?);
        }
        Ok(TableRows { stream: written(&table.schema()?, &batches)? })
    }

    fn rows(
        &self,
        table: SystemTable,
        job: &RunningJob,
        workers: &[WorkerState],
    ) -> DataFusionResult<RecordBatch> {
        let epoch = self.epoch();
        let id = job.id.as_ref();
        match table {
            SystemTable::Jobs => rows::jobs(&[job_row(job, epoch, workers)]),
            SystemTable::Stages => rows::stages(id, &stage_rows(job, epoch)),
            SystemTable::Tasks => {
                let tasks: Vec<_> = job.graph.task_rows().map(|task| (task, epoch)).collect();
                rows::tasks(id, &tasks)
            }
            SystemTable::Blocks => {
                let mut blocks: Vec<_> = job.graph.block_rows().map(|row| (row, epoch)).collect();
                if job.is_forgotten {
                    let alive = blocks.iter_mut().filter(|(row, _)| row.state != BlockState::Lost);
                    alive.for_each(|(row, _)| row.state = BlockState::Freed);
                }
                rows::blocks(id, &blocks)
            }
            SystemTable::Recomputed => {
                let units: Vec<_> = job.graph.recomputed().iter().map(|u| (u, epoch)).collect();
                rows::recomputed(id, &units)
            }
            SystemTable::Workers => rows::workers(&[]),
        }
    }

    /// The workers, and what tasks of all jobs hold of them.
    pub(crate) fn worker_rows(&self) -> Vec<WorkerRow> {
        let workers = self.membership().workers().into_iter();
        let mut found: Vec<WorkerRow> = workers
            .map(|worker| {
                let state = worker_state(&worker);
                WorkerRow { worker, state, tasks: 0, block_bytes: 0, work_bytes: 0 }
            })
            .collect();
        let places: HashMap<WorkerId, usize> =
            found.iter().enumerate().map(|(at, row)| (row.state.id.clone(), at)).collect();
        for job in self.live() {
            let job = job.lock();
            for (worker, stage, lease) in job.graph.slots() {
                if let Some(at) = places.get(worker) {
                    found[*at].tasks += 1;
                    found[*at].state.take(&job.graph.stage(stage).need, lease);
                }
            }
            if job.is_forgotten {
                continue;
            }
            for (worker, bytes) in job.graph.held_bytes() {
                if let Some(at) = places.get(worker) {
                    found[*at].block_bytes += bytes;
                }
            }
            for (worker, bytes) in job.graph.bytes_by_worker() {
                if let Some(at) = places.get(worker) {
                    found[*at].work_bytes += bytes;
                }
            }
        }
        found
    }

    /// The workers, with what is taken of them.
    fn worker_states(&self) -> Vec<WorkerState> {
        self.worker_rows().into_iter().map(|row| row.state).collect()
    }

    /// The same as it was a moment ago: all clients that watch their jobs share one look.
    fn recent_worker_states(&self) -> Arc<Vec<WorkerState>> {
        let now = self.now();
        let mut recent = self.recent.lock();
        match &*recent {
            Some((at, states)) if now.since(*at) < RECENT_MS => Arc::clone(states),
            _ => {
                let states = Arc::new(self.worker_states());
                *recent = Some((now, Arc::clone(&states)));
                states
            }
        }
    }
}

/// How far a job is, or what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It waits to be planned.
    Nothing,
    /// It runs.
    Midway(Progress),
    /// It runs no more, or there is none.
    End,
}

impl Reached {
    /// What a client is told.
    pub(crate) fn update(self) -> Option<Result<RunUpdate, Status>> {
        match self {
            Self::Midway(progress) => Some(Ok(RunUpdate { news: Some(News::Progress(progress)) })),
            Self::Nothing | Self::End => None,
        }
    }
}

impl Registry {
    /// How far a job is, while it runs.
    pub(crate) fn progress(&self, job: &str) -> Reached {
        // In this order: see [`Self::planned`].
        let has_client = self.has_client(job);
        let Some(job) = self.get(job) else {
            let waits_for = fleet::NO_WORKER.to_owned();
            return match (has_client, self.has_workers()) {
                (false, _) => Reached::End,
                (true, true) => Reached::Nothing,
                (true, false) => Reached::Midway(Progress { waits_for, ..Progress::default() }),
            };
        };
        let workers = self.recent_worker_states();
        let job = job.lock();
        if job.graph.is_running_job() {
            let waits_for = fleet::waits_for(&workers, &job.graph).unwrap_or_default();
            Reached::Midway(Progress { waits_for, ..progress(&job) })
        } else {
            Reached::End
        }
    }

    /// How far a job is, or came.
    pub(crate) fn reached(&self, job: &str) -> Option<Progress> {
        Some(progress(&self.get(job)?.lock()))
    }
}

fn progress(job: &RunningJob) -> Progress {
    let mut found =
        Progress { repeated: job.graph.recomputed().len() as u64, ..Progress::default() };
    for stage in job.graph.stage_rows() {
        found.stages += 1;
        found.stages_done += u32::from(stage.is_done());
        found.units += stage.units as u64;
        found.units_done += stage.units_done as u64;
        found.tasks_running += stage.running as u64;
        found.repeated += u64::from(stage.failures);
        if job.last_model == Some(stage.id) {
            found.rows_inferred = Some(stage.rows);
        }
    }
    found
}

fn job_row(job: &RunningJob, epoch: Epoch, workers: &[WorkerState]) -> JobRow {
    let graph = &job.graph;
    let stages: Vec<_> = graph.stage_rows().collect();
    let (rows, bytes) = graph.result_size();
    let failed = |state: &TaskState| matches!(state, TaskState::Failed(_) | TaskState::Lost);
    JobRow {
        id: job.id.to_string(),
        name: job.name.clone(),
        session: job.session.clone(),
        owner: job.owner(),
        state: job.state(),
        queued: Some(job.queued_ms),
        started: graph.started().map(|time| epoch.at(time)),
        ended: job.graph.ended().map(|time| epoch.at(time)),
        stages: stages.len() as u64,
        stages_done: stages.iter().filter(|stage| stage.is_done()).count() as u64,
        units_done: stages.iter().map(|stage| stage.units_done as u64).sum(),
        tasks_running: stages.iter().map(|stage| stage.running as u64).sum(),
        tasks_failed: graph.task_rows().filter(|task| failed(task.state)).count() as u64,
        recomputed: graph.recomputed().len() as u64,
        rows,
        bytes,
        waits_for: fleet::waits_for(workers, graph).unwrap_or_default(),
        error: job.failure().map_or_else(String::new, |error| error.message),
        detached: false,
    }
}

fn unplanned_row(id: String, job: Submitted, waits_for: &str) -> JobRow {
    JobRow {
        id,
        name: job.name,
        session: job.session,
        owner: job.owner,
        state: "queued",
        queued: i64::try_from(job.queued_ms).ok(),
        waits_for: waits_for.to_owned(),
        ..JobRow::default()
    }
}

fn stage_rows(job: &RunningJob, epoch: Epoch) -> Vec<Stage<'_>> {
    let mut stages = vec![];
    for row in job.graph.stage_rows() {
        let spec = job.graph.stage(row.id);
        let reads = reads(job.edges().iter().filter(|edge| edge.to == row.id));
        stages.push(Stage { row, need: &spec.need, replayable: spec.replayable, reads, epoch });
    }
    stages
}
