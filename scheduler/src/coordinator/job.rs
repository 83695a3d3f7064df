//! One job that runs: its graph, its plans, and what both lead to.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::serde::scheduler::ExecutorMetadata;
use datafusion::execution::config::SessionConfig;
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::RemoteError;
use forebay_planner::ForebayConfig;
use tokio::sync::Notify;

use crate::coordinator::book::JobLog;
use crate::coordinator::fleet;
use crate::coordinator::stage_metrics::StageMetrics;
use crate::graph::{
    Action, EdgeSpec, Event, Failure, FailureKind, Input, JobFailure, JobGraph, JobStatus, Millis,
    Snapshot, StageId, TaskId, WorkerId,
};
use crate::owner::Owner;
use crate::placement::{PaperBudget, WorkerState};
use crate::protocol::location::{BlockLocation, FileId};
use crate::protocol::messages::{Free, PROTOCOL, ReadAnswer, ReadDone, TaskName, to_worker};
use crate::stages::{StagedPlan, dealt, holds_model};

/// Workers by id, those that have left included as long as a job has something there: what they wrote
/// is asked for until it is lost.
pub(crate) type Addresses = HashMap<String, ExecutorMetadata>;

/// A job that runs, or has run.
pub(crate) struct RunningJob {
    pub(crate) id: JobId,
    pub(crate) session: String,
    pub(crate) config: Arc<SessionConfig>,
    pub(crate) graph: JobGraph,
    /// What the session of its client has set.
    pub(crate) options: ForebayConfig,
    pub(crate) paper: PaperBudget,
    pub(crate) plans: StagedPlan,
    /// The last stage that runs a model, if one does: producers come first.
    pub(crate) last_model: Option<StageId>,
    /// Whether its end has been told.
    pub(crate) end_is_told: bool,
    /// Since when no worker has what one of its stages needs.
    pub(crate) lacks_since: Option<Millis>,
    /// What its client calls it.
    pub(crate) name: String,
    /// Milliseconds since 1970 at which the scheduler had it.
    pub(crate) queued_ms: i64,
    /// Of stages, by what their tasks' operators measured.
    pub(crate) measured: HashMap<StageId, StageMetrics>,
    /// Whether its client has gone, with its rows or without.
    pub(crate) is_forgotten: bool,
    /// Something has happened to it: the client, of which there is one, looks again.
    pub(crate) changed: Arc<Notify>,
    /// The same, for all tasks that began early.
    pub(crate) dealt: Arc<Notify>,
    /// Where what happens to it is written down, if it is.
    log: Option<JobLog>,
}

/// What is to be said to a worker.
pub(crate) type Message = (WorkerId, to_worker::Say);

impl RunningJob {
    pub(crate) fn new(
        id: JobId,
        session: String,
        config: Arc<SessionConfig>,
        plans: StagedPlan,
        graph: JobGraph,
    ) -> Self {
        let options = config.options().extensions.get::<ForebayConfig>().cloned();
        let options = options.unwrap_or_default();
        let last_model = plans.stages.iter().rposition(|stage| holds_model(&stage.plan));
        Self {
            id,
            session,
            config,
            graph,
            options,
            paper: PaperBudget::default(),
            plans,
            last_model: last_model.map(|stage| StageId(stage as u32)),
            end_is_told: false,
            lacks_since: None,
            name: String::new(),
            queued_ms: 0,
            measured: HashMap::new(),
            is_forgotten: false,
            changed: Arc::default(),
            dealt: Arc::default(),
            log: None,
        }
    }

    /// The same job as people know it.
    pub(crate) fn with_name(mut self, name: &str, queued_ms: u64) -> Self {
        self.name = name.to_owned();
        self.queued_ms = i64::try_from(queued_ms).unwrap_or(0);
        self
    }

    /// From now on what happens to it is written down.
    pub(crate) fn log_to(&mut self, log: Option<JobLog>) {
        self.log = log;
        if self.log.is_some() {
            self.graph.record_steps();
        }
    }

    /// Writes down how it was cut: its graph can be made again of the same stages only.
    pub(crate) fn write_cut(&self) {
        if let Some(log) = &self.log {
            log.begin(&Snapshot::new(self.cut(), self.plans.spec.clone()));
        }
    }

    pub(crate) fn cut(&self) -> u32 {
        // What tasks told of runs and what others will tell must compare.
        crc32fast::hash(format!("{PROTOCOL} {:?}", self.plans.spec).as_bytes())
    }

    /// Writes down what has changed its graph since that was done last.
    pub(crate) fn write_down(&mut self) {
        if let Some(log) = &self.log {
            self.graph.take_steps().iter().for_each(|step| log.step(step));
        }
    }

    /// The plan of a stage.
    pub(crate) fn plan(&self, stage: StageId) -> Option<&Arc<dyn ExecutionPlan>> {
        self.plans.stage(stage).map(|stage| &stage.plan)
    }

    /// The stage that has dealt out the rows that an operator of a plan which is not filled in reads.
    pub(crate) fn dealt_read_by(plan: &Arc<dyn ExecutionPlan>) -> Option<StageId> {
        Some(dealt::stage_of(plan.downcast_ref::<ShuffleReaderExec>()?))
    }

    /// How its stages read each other.
    pub(crate) fn edges(&self) -> &[EdgeSpec] {
        &self.plans.spec.edges
    }

    /// Takes in what happened; what workers must be told is given back.
    pub(crate) fn apply(&mut self, event: Event, now: Millis) -> Vec<Message> {
        let actions = self.graph.apply(event, now);
        self.write_down();
        self.changed.notify_one();
        self.dealt.notify_waiters();
        actions.into_iter().filter_map(|action| self.message(action)).collect()
    }

    /// The user on whose behalf it runs, or nothing.
    pub(crate) fn owner(&self) -> String {
        let owner = self.config.get_extension::<Owner>();
        owner.map(|owner| owner.name.clone()).unwrap_or_default()
    }

    /// Whether nothing more happens to it: it runs no more, everybody knows, its client has gone,
    /// and tasks that were canceled have ended.
    pub(crate) fn is_over(&self) -> bool {
        let is_left = self.is_forgotten && self.graph.slots().next().is_none();
        !self.graph.is_running_job() && self.end_is_told && is_left
    }

    /// What workers were told to stop that has not ended.
    pub(crate) fn still_to_stop(&self) -> Vec<Message> {
        let tasks = self.graph.draining();
        let again = tasks.map(|(worker, task)| Action::CancelTask { task, worker: worker.clone() });
        again.filter_map(|action| self.message(action)).collect()
    }

    fn message(&self, action: Action) -> Option<Message> {
        let job = self.id.to_string();
        match action {
            Action::CancelTask { task, worker } => {
                let (stage, task) = (task.stage.0, task.index);
                Some((worker, to_worker::Say::Cancel(TaskName { job, stage, task })))
            }
            Action::FreeBlock { block, task, worker } => {
                let file = FileId { stage: task.stage.0, task: task.index, seq: block.seq };
                Some((worker, to_worker::Say::Free(Free { job, id: file })))
            }
            Action::Recomputing { unit, why } => {
                tracing::info!(%job, %unit, "runs again: {why}");
                None
            }
            Action::JobFinished => {
                tracing::info!(%job, "finished");
                None
            }
            Action::JobFailed { reason } => {
                tracing::info!(%job, "failed: {reason}");
                None
            }
        }
    }

    /// Why the job is given up, if no worker has had what it needs for `patience_ms`.
    pub(crate) fn hopeless(
        &mut self,
        workers: &[WorkerState],
        now: Millis,
        patience_ms: u64,
    ) -> Option<Event> {
        let Some(missing) = fleet::missing(workers, &self.graph) else {
            self.lacks_since = None;
            return None;
        };
        let waited_ms = now.since(*self.lacks_since.get_or_insert(now));
        let message = format!("{missing}; none has come for {} s", waited_ms / 1000);
        let error = RemoteError { message, ..missing };
        (waited_ms >= patience_ms).then_some(Event::Canceled(error))
    }

    /// Whether a worker has this task: it runs there, or was told to stop and has not ended. What others say of it,
    /// or what is said twice, counts for nothing.
    pub(crate) fn is_held_by(&self, task: TaskId, worker: &str, what: &str) -> bool {
        let is_its = self.graph.worker_of(task).is_some_and(|its| its.as_str() == worker);
        let is_held = is_its && self.graph.is_held(task) && self.graph.client() != Some(task.stage);
        if !is_held {
            tracing::info!(
                job = %self.id, stage = task.stage.0, task = task.index, worker,
                "{what} of a task that the worker does not have is ignored"
            );
        }
        is_held
    }

    /// Where it stands, in a word.
    pub(crate) fn state(&self) -> &'static str {
        match self.graph.status() {
            JobStatus::Running if self.graph.started().is_none() => "queued",
            JobStatus::Running => "running",
            JobStatus::Finished => "finished",
            JobStatus::Failed(JobFailure::Canceled(_)) => "canceled",
            JobStatus::Failed(_) => "failed",
        }
    }

    /// Why it failed.
    pub(crate) fn failure(&self) -> Option<RemoteError> {
        let JobStatus::Failed(reason) = self.graph.status() else { return None };
        Some(match reason {
            // What somebody must change needs no word on where it ran.
            JobFailure::Unit(failed) if failed.limit.is_empty() => failed.error.clone(),
            JobFailure::Canceled(error) => error.clone(),
            other => RemoteError::new(other.kind(), other.to_string()),
        })
    }

    /// What the client reads next, if there is something. If it reads already, it was not told, or has
    /// forgotten.
    pub(crate) fn next_read(&mut self, addresses: &Addresses, now: Millis) -> Option<ReadAnswer> {
        if !self.graph.is_running_job() {
            return Some(ReadAnswer { is_over: true, ..ReadAnswer::default() });
        }
        let bound = match self.graph.client_reads() {
            Some(bound) => bound,
            None => self.graph.bind_client(now)?,
        };
        self.write_down();
        let location = |input| self.location(input, addresses);
        Some(ReadAnswer {
            task: bound.task.index,
            unit: bound.unit.index,
            blocks: bound.inputs.iter().map(location).collect(),
            is_over: false,
            counts: false,
        })
    }

    /// Whether it was heard before that the client has read this.
    pub(crate) fn has_read(&self, done: &ReadDone) -> bool {
        let client = self.graph.client();
        done.lost.is_none()
            && client.is_some_and(|client| self.graph.has_finished(client.task(done.task)))
    }

    /// What the client says of what it has read. Nothing if that counts no more.
    pub(crate) fn read_ended(&self, done: ReadDone) -> Option<Event> {
        let task = self.graph.client()?.task(done.task);
        if !self.graph.runs(task) {
            return None;
        }
        let Some(lost) = done.lost else {
            return Some(Event::TaskFinished { task, blocks: vec![] });
        };
        let writer = StageId(lost.id.stage).task(lost.id.task);
        let block = self.graph.unit_of(writer)?.block(lost.id.seq);
        let failure = Failure::new(FailureKind::BlockLost(block), lost.problem);
        Some(Event::TaskFailed { task, failure })
    }

    pub(crate) fn location(&self, input: &Input, addresses: &Addresses) -> BlockLocation {
        let worker = input.worker.as_str();
        let address = addresses.get(worker).map(|found| format!("{}:{}", found.host, found.port));
        BlockLocation {
            job: self.id.to_string(),
            id: FileId {
                stage: input.writer.stage.0,
                task: input.writer.index,
                seq: input.block.seq,
            },
            worker: worker.to_owned(),
            address: address.unwrap_or_default(),
            bytes: input.bytes,
            rows: input.rows,
            checksum: u32::try_from(input.checksum).unwrap_or(0),
            segment_at: input.segment_at,
        }
    }

    /// Where a partition's segments are, those of each worker side by side; tasks begin with different workers.
    pub(crate) fn segments(
        &self,
        inputs: &[Input],
        partition: u32,
        addresses: &Addresses,
    ) -> Vec<BlockLocation> {
        let segments = inputs.iter().map(|input| self.location(input, addresses));
        let mut segments: Vec<_> = segments.collect();
        segments.sort_by(|a, b| a.worker.cmp(&b.worker));
        let workers: Vec<usize> =
            segments.chunk_by(|a, b| a.worker == b.worker).map(<[_]>::len).collect();
        let first = partition as usize % workers.len().max(1);
        segments.rotate_left(workers[..first].iter().sum());
        segments
    }
}
