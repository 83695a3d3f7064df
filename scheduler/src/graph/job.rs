//! The graph of one job: its state, and which event goes where.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::action::{Action, JobFailure};
use super::block::Kept;
use super::event::Event;
use super::history::History;
use super::ids::{BlockId, EdgeId, Millis, StageId, TaskId, UnitId, WorkerId};
use super::learned::Learned;
use super::ready::Ready;
use super::spec::{EdgeKind, Granularity, GraphError, JobSpec, Limits, StageSpec};
use super::stage::{Edge, Stage, StageState};
use super::step::Step;
use super::unit::{Task, TaskState, Unit, UnitState};
use crate::resources::Lease;

/// Where a job stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobStatus {
    /// It runs, or waits for workers.
    Running,
    /// Its result is complete.
    Finished,
    /// It has failed, or was canceled: nothing of it runs again.
    Failed(JobFailure),
}

/// The blocks of one job that lie on one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holding {
    pub(super) blocks: BTreeSet<BlockId>,
    /// Of all of them.
    pub(super) bytes: u64,
    /// Of those that were read and are kept.
    pub(super) kept_bytes: u64,
}

/// One job: see the [module](super).
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGraph {
    pub(super) limits: Limits,
    pub(super) stages: Vec<Stage>,
    pub(super) edges: Vec<Edge>,
    /// Producers before consumers.
    pub(super) order: Vec<StageId>,
    pub(super) status: JobStatus,
    /// What each worker holds.
    pub(super) holdings: BTreeMap<WorkerId, Holding>,
    /// The tasks that each worker runs, or has been told to stop and has not ended.
    pub(super) slots: BTreeMap<WorkerId, BTreeSet<TaskId>>,
    /// The workers of which that has changed since somebody asked.
    pub(super) changed_slots: BTreeSet<WorkerId>,
    /// The workers of which [`Self::bytes_on`] has changed since somebody asked.
    pub(super) changed_holdings: BTreeSet<WorkerId>,
    pub(super) kept: Kept,
    pub(super) history: History,
    /// Workers whose disk has failed a task: what runs there fails at once, and would be found free
    /// for one unit after the other.
    pub(super) broken_disks: BTreeSet<WorkerId>,
    /// A unit that was lost too often; asked for at the end of the event.
    pub(super) worn_out: Option<UnitId>,
    /// Attempts that have ended well.
    pub(super) finished_tasks: u64,
    /// When it finished or failed.
    pub(super) ended: Option<Millis>,
    /// What the event at hand leads to.
    pub(super) actions: Vec<Action>,
    /// What has changed it since somebody asked, if anybody does.
    #[serde(skip)]
    pub(super) steps: Option<Vec<Step>>,
}

impl JobGraph {
    /// A job that has not started. Refuses what could not be run, or not be recovered.
    pub fn try_new(spec: JobSpec) -> Result<Self, GraphError> {
        let order = spec.check()?;
        let stages = (0..spec.stages.len() as u32).map(|id| Stage::new(StageId(id), &spec));
        let edges = (0..spec.edges.len() as u32).map(|id| Edge::new(EdgeId(id), &spec));
        let (stages, edges) = (stages.collect(), edges.collect());
        let mut graph = Self { stages, edges, limits: spec.limits, order, ..Self::nothing() };
        for stage in graph.order.clone() {
            for partition in 0..graph.stages[stage.at()].spec.partitions {
                let input = super::unit::UnitInput::Partition(partition);
                let unit = graph.add_unit(stage, input, None, partition);
                graph.refresh(unit);
            }
        }
        Ok(graph)
    }

    /// A job without stages: stands for one that could not be made.
    pub fn nothing() -> Self {
        Self {
            limits: Limits::default(),
            stages: vec![],
            edges: vec![],
            order: vec![],
            status: JobStatus::Running,
            holdings: BTreeMap::new(),
            slots: BTreeMap::new(),
            changed_slots: BTreeSet::new(),
            changed_holdings: BTreeSet::new(),
            kept: Kept::default(),
            history: History::default(),
            broken_disks: BTreeSet::new(),
            worn_out: None,
            finished_tasks: 0,
            ended: None,
            actions: vec![],
            steps: None,
        }
    }

    /// Takes in what happened. What must be done about it is given back, in order.
    pub fn apply(&mut self, event: Event, now: Millis) -> Vec<Action> {
        let step = self.is_recorded().then(|| Step::event(&event, now));
        self.record(step);
        match (&self.status, event) {
            (JobStatus::Running, event) => self.apply_running(event, now),
            (_, Event::WorkerLost { worker }) => self.forget_worker(&worker, now),
            (_, Event::TaskFinished { task, .. })
            | (_, Event::TaskFailed { task, .. })
            | (_, Event::TaskEnded { task }) => self.end_draining(task, now),
            (_, Event::WorkerFull { .. } | Event::Displaced { .. }) => {}
            (_, Event::Started | Event::BlockSealed { .. } | Event::Canceled(_)) => {
                self.history.stale_reports += 1;
            }
        }
        std::mem::take(&mut self.actions)
    }

    fn apply_running(&mut self, event: Event, now: Millis) {
        match event {
            Event::Started => {}
            Event::BlockSealed { task, block } => self.announced(task, block, now),
            Event::TaskFinished { task, .. }
            | Event::TaskFailed { task, .. }
            | Event::TaskEnded { task }
                if !self.is_running(task) =>
            {
                self.end_draining(task, now);
            }
            Event::TaskFinished { task, blocks } => self.finished(task, blocks, now),
            Event::TaskFailed { task, failure } => self.task_failed(task, failure, now),
            Event::TaskEnded { task } => {
                self.task_given_up(task, "it ended without a result", now);
            }
            Event::Displaced { task } => self.displaced(task, now),
            Event::WorkerLost { worker } => self.worker_lost(&worker, now),
            Event::WorkerFull { worker } => self.free_kept_on(&worker),
            Event::Canceled(error) => self.fail(JobFailure::Canceled(error), now),
        }
        self.settle(now);
    }

    /// Makes units ready whose wait after a failure is over.
    pub fn advance(&mut self, now: Millis) {
        (0..self.stages.len() as u32).for_each(|stage| self.advance_stage(StageId(stage), now));
    }

    pub(super) fn advance_stage(&mut self, stage: StageId, now: Millis) {
        let mut is_changed = false;
        while let Some(unit) = self.stages[stage.at()].ready.pop_delayed(now) {
            let unit = stage.unit(unit);
            self.unit_mut(unit).not_before = Millis::default();
            self.refresh(unit);
            is_changed = true;
        }
        self.record(is_changed.then_some(Step::Advance { stage, now }));
    }

    /// When [`advance`](Self::advance) has something to do next.
    pub fn next_wakeup(&self) -> Option<Millis> {
        self.stages.iter().filter_map(|stage| stage.ready.next_delayed()).min()
    }

    /// Where the job stands.
    pub fn status(&self) -> &JobStatus {
        &self.status
    }

    /// When it finished or failed.
    pub fn ended(&self) -> Option<Millis> {
        self.ended
    }

    /// Whether it neither has finished nor failed.
    pub fn is_running_job(&self) -> bool {
        self.status == JobStatus::Running
    }

    /// What it may try and hold at most.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Lets it buffer more or less from now on: a cluster may grow or shrink.
    pub fn set_buffered_bytes_max(&mut self, bytes: u64) {
        self.limits.buffered_bytes_max = bytes;
    }

    /// Its stages, consumers before producers. Not the client.
    pub fn consumers_first(&self) -> impl Iterator<Item = StageId> {
        let stages = self.order.iter().rev().copied();
        stages.filter(|stage| !self.stages[stage.at()].spec.is_client)
    }

    /// What the planner said of a stage.
    pub fn stage(&self, stage: StageId) -> &StageSpec {
        &self.stages[stage.at()].spec
    }

    /// Where a stage stands.
    pub fn stage_state(&self, stage: StageId) -> StageState {
        self.stages[stage.at()].state()
    }

    /// What has been seen of a stage's tasks.
    pub fn learned(&self, stage: StageId) -> &Learned {
        &self.stages[stage.at()].learned
    }

    /// What of a stage can be bound now. Nothing while a blocking input is not complete, unless the stage
    /// [begins early](Self::begins_early).
    pub fn ready(&self, stage: StageId) -> Option<&Ready> {
        let found = &self.stages[stage.at()];
        let is_open = self.gate_is_open(stage) || self.begins_early(stage);
        let can_run = self.is_running_job() && is_open;
        (can_run && !found.ready.is_empty() && !self.waits_for_more(stage)).then_some(&found.ready)
    }

    /// Whether anything streams into a stage. What does not is a source of bytes.
    pub fn has_streaming_input(&self, stage: StageId) -> bool {
        let inputs = self.stages[stage.at()].inputs.iter();
        inputs.map(|edge| self.edges[edge.at()].spec.kind).any(|kind| !kind.is_blocking())
    }

    /// The stages that a stage streams to. Not the client.
    pub fn streams_to(&self, stage: StageId) -> impl Iterator<Item = StageId> {
        let edges = self.stages[stage.at()].outputs.iter().map(|edge| &self.edges[edge.at()].spec);
        let edges = edges.filter(|edge| !edge.kind.is_blocking()).map(|edge| edge.to);
        edges.filter(|to| !self.stages[to.at()].spec.is_client)
    }

    /// The stages that stream to a stage.
    pub fn streams_from(&self, stage: StageId) -> impl Iterator<Item = StageId> {
        let edges = self.stages[stage.at()].inputs.iter().map(|edge| &self.edges[edge.at()].spec);
        edges.filter(|edge| !edge.kind.is_blocking()).map(|edge| edge.from)
    }

    /// How many attempts of a stage run.
    pub fn running(&self, stage: StageId) -> usize {
        self.stages[stage.at()].running.len()
    }

    /// Every task that holds something of a worker: it runs, or was canceled and has not ended.
    pub fn slots(&self) -> impl Iterator<Item = (&WorkerId, StageId, &Lease)> {
        let tasks = self
            .slots
            .iter()
            .flat_map(|(worker, tasks)| tasks.iter().map(move |task| (worker, *task)));
        tasks.map(|(worker, task)| (worker, task.stage, &self.task(task).lease))
    }

    /// Every task of [`Self::slots`] that was canceled and has not ended.
    pub fn draining(&self) -> impl Iterator<Item = (&WorkerId, TaskId)> {
        let tasks = self
            .slots
            .iter()
            .flat_map(|(worker, tasks)| tasks.iter().map(move |task| (worker, *task)));
        tasks.filter(|(_, task)| !self.is_running(*task))
    }

    /// What [`Self::slots`] says of one worker.
    pub fn slots_on(&self, worker: &WorkerId) -> impl Iterator<Item = (StageId, &Lease)> {
        let tasks = self.slots.get(worker).into_iter().flatten();
        tasks.map(|task| (task.stage, &self.task(*task).lease))
    }

    /// The workers of which [`Self::slots`] says something else than when this was last asked.
    pub fn take_changed_slots(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.changed_slots)
    }

    /// The workers of which [`Self::bytes_on`] says something else than when this was last asked.
    pub fn take_changed_holdings(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.changed_holdings)
    }

    /// Workers on which a unit has failed.
    pub fn failed_on(&self, unit: UnitId) -> &[WorkerId] {
        &self.unit(unit).failed_on
    }

    /// Workers whose disk has failed a task of this job.
    pub fn broken_disks(&self) -> &BTreeSet<WorkerId> {
        &self.broken_disks
    }

    /// Workers from where readers could not read what a unit had written. What it writes there again
    /// may be as unreadable.
    pub fn lost_on(&self, unit: UnitId) -> &[WorkerId] {
        &self.unit(unit).lost_on
    }

    /// Where a sealed block lies.
    pub(crate) fn home_of(&self, block: BlockId) -> &WorkerId {
        &self.block(block).worker
    }

    /// Bytes and rows.
    pub(crate) fn block_size(&self, block: BlockId) -> (u64, u64) {
        let block = self.block(block);
        (block.bytes, block.rows)
    }

    pub(super) fn unit(&self, unit: UnitId) -> &Unit {
        &self.stages[unit.stage.at()].units[unit.index as usize]
    }

    pub(super) fn unit_mut(&mut self, unit: UnitId) -> &mut Unit {
        &mut self.stages[unit.stage.at()].units[unit.index as usize]
    }

    pub(super) fn task(&self, task: TaskId) -> &Task {
        &self.stages[task.stage.at()].tasks[task.index]
    }

    pub(super) fn task_mut(&mut self, task: TaskId) -> &mut Task {
        &mut self.stages[task.stage.at()].tasks[task.index]
    }

    /// Whether an attempt runs: what it reports counts.
    pub fn runs(&self, task: TaskId) -> bool {
        self.is_running(task)
    }

    /// Whether blocks of a stage count when they are sealed. If not, with the end of their task.
    pub fn is_block_wise(&self, stage: StageId) -> bool {
        self.stages.get(stage.at()).is_some_and(|stage| stage.is_block_wise)
    }

    /// Whether an attempt has not ended: it runs, or was canceled and still holds what it was given.
    pub fn is_held(&self, task: TaskId) -> bool {
        self.find_task(task).is_some_and(|task| task.holds_lease)
    }

    /// Whether an attempt has ended well.
    pub fn has_finished(&self, task: TaskId) -> bool {
        self.find_task(task).is_some_and(|task| task.state == TaskState::Finished)
    }

    /// The unit that an attempt is at.
    pub fn unit_of(&self, task: TaskId) -> Option<UnitId> {
        self.find_task(task).map(|found| task.stage.unit(found.unit))
    }

    /// The worker that was given an attempt.
    pub fn worker_of(&self, task: TaskId) -> Option<&WorkerId> {
        self.find_task(task).map(|task| &task.worker)
    }

    fn find_task(&self, task: TaskId) -> Option<&Task> {
        self.stages.get(task.stage.at())?.tasks.get(task.index)
    }

    /// Asked of every report: it may be late, or name what this job never had.
    pub(super) fn is_running(&self, task: TaskId) -> bool {
        self.find_task(task).is_some_and(|task| task.state == TaskState::Running)
    }

    pub(super) fn edges_of(&self, edges: &[EdgeId]) -> Vec<(EdgeId, usize, EdgeKind, StageId)> {
        let one = |id: &EdgeId| {
            let edge = &self.edges[id.at()];
            (*id, edge.slot, edge.spec.kind, edge.spec.to)
        };
        edges.iter().map(one).collect()
    }

    /// Whether all that the stage must wait for is complete and there.
    pub(super) fn gate_is_open(&self, stage: StageId) -> bool {
        let inputs = self.stages[stage.at()].inputs.iter().map(|edge| &self.edges[edge.at()].spec);
        inputs.filter(|edge| edge.kind.is_blocking()).all(|edge| {
            let producer = &self.stages[edge.from.at()];
            producer.closed && producer.unsealed == 0
        })
    }

    /// Appends a unit, and the units that will read its whole output.
    pub(super) fn add_unit(
        &mut self,
        stage: StageId,
        input: super::unit::UnitInput,
        edge: Option<EdgeId>,
        partition: u32,
    ) -> UnitId {
        let unit = self.stages[stage.at()].push_unit(input, edge, partition);
        for edge in self.stages[stage.at()].outputs.clone() {
            let found = &mut self.edges[edge.at()];
            if found.spec.kind == EdgeKind::Streaming(Granularity::Units) {
                found.unassigned += 1;
            }
            if found.spec.kind == EdgeKind::Streaming(Granularity::Unit) {
                let (slot, to) = (found.slot, found.spec.to);
                let partition = found.spec.partition_offset.saturating_add(partition);
                let input = super::unit::UnitInput::Output(unit);
                let reader = self.add_unit(to, input, Some(edge), partition);
                self.unit_mut(unit).readers[slot] = Some(reader.index);
            }
        }
        unit
    }

    /// What a unit reads.
    #[cfg(test)]
    pub(crate) fn unit_input(&self, unit: UnitId) -> &super::unit::UnitInput {
        &self.unit(unit).input
    }

    /// The state of a unit.
    pub fn unit_state(&self, unit: UnitId) -> UnitState {
        self.unit(unit).state
    }
}
