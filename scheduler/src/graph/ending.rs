//! What holds at the end of every event: which stages are closed or complete, and the job's end.

use super::action::{Action, JobFailure};
use super::ids::{EdgeId, Millis, StageId};
use super::job::{JobGraph, JobStatus};
use super::spec::{EdgeKind, Granularity};
use super::unit::{UnitInput, UnitState};

const BLOCK: EdgeKind = EdgeKind::Streaming(Granularity::Block);
const UNIT: EdgeKind = EdgeKind::Streaming(Granularity::Unit);
const UNITS: EdgeKind = EdgeKind::Streaming(Granularity::Units);

impl JobGraph {
    /// What holds after every event: which stages have all their units, which are complete, what
    /// is deleted, and whether that was the last.
    pub(super) fn settle(&mut self, now: Millis) {
        if !self.is_running_job() {
            return;
        }
        for stage in self.order.clone() {
            if !self.stages[stage.at()].closed && self.can_close(stage) {
                self.run_on_nothing(stage);
                self.make_ranges(stage, now);
                self.stages[stage.at()].closed = true;
            }
        }
        for stage in self.order.clone() {
            let found = &mut self.stages[stage.at()];
            let is_complete = found.is_complete();
            if std::mem::replace(&mut found.was_complete, is_complete) != is_complete {
                let inputs = self.stages[stage.at()].inputs.iter();
                let inputs = inputs.map(|edge| &self.edges[edge.at()].spec);
                let blocking: Vec<_> =
                    inputs.filter(|edge| edge.kind.is_blocking()).map(|edge| edge.from).collect();
                blocking.into_iter().for_each(|producer| self.refresh_kept_of(producer));
            }
        }
        self.trim_kept();
        let mut results = self.stages.iter().filter(|stage| stage.outputs.is_empty());
        if results.all(|stage| stage.is_complete()) {
            self.end(JobStatus::Finished, now);
            self.actions.push(Action::JobFinished);
        }
    }

    /// Gives a stage a unit without input if nothing has streamed in and it has rows for that.
    fn run_on_nothing(&mut self, stage: StageId) {
        let found = &self.stages[stage.at()];
        if !found.spec.runs_on_nothing || !found.units.is_empty() {
            return;
        }
        let streams = |edge: &&EdgeId| !self.edges[edge.at()].spec.kind.is_blocking();
        let Some(edge) = found.inputs.iter().find(streams).copied() else { return };
        let partition = self.edges[edge.at()].spec.partition_offset;
        let unit = self.add_unit(stage, UnitInput::Blocks(vec![]), Some(edge), partition);
        self.refresh(unit);
    }

    /// Whether a stage has all the units that it will ever have. Once true it stays true, since a
    /// re-run of a replayable unit gives no more blocks than the first run.
    fn can_close(&self, stage: StageId) -> bool {
        self.stages[stage.at()].inputs.iter().all(|edge| {
            let edge = &self.edges[edge.at()];
            let producer = &self.stages[edge.spec.from.at()];
            match edge.spec.kind {
                BLOCK => producer.closed && producer.undeclared == 0 && edge.unassigned == 0,
                UNIT => producer.closed,
                UNITS => producer.closed && edge.unassigned == 0,
                EdgeKind::Ranges => producer.closed && producer.unsealed == 0,
                EdgeKind::Blocking | EdgeKind::Broadcast | EdgeKind::Hash => true,
            }
        })
    }

    /// Ends the job with a failure.
    pub(super) fn fail(&mut self, reason: JobFailure, now: Millis) {
        self.end(JobStatus::Failed(reason.clone()), now);
        self.actions.push(Action::JobFailed { reason });
    }

    /// After the end of the job nothing runs, and nothing is there but the result of a good end.
    fn end(&mut self, status: JobStatus, now: Millis) {
        (self.status, self.ended) = (status, Some(now));
        for stage in self.order.clone() {
            for task in self.stages[stage.at()].running.clone() {
                let unit = stage.unit(self.task(stage.task(task)).unit);
                self.cancel(stage.task(task), "the job is over".to_owned(), now);
                self.set_state(unit, UnitState::Pending);
            }
        }
        let keeps = self.status == JobStatus::Finished;
        let held = self.holdings.values().flat_map(|held| &held.blocks);
        let held: Vec<_> = held.copied().collect();
        for block in held {
            if !(keeps && self.stages[block.unit.stage.at()].outputs.is_empty()) {
                self.free(block);
            }
        }
        for stage in &mut self.stages {
            stage.ready.clear();
            // The history of the job is kept for long, and keys are much of it.
            stage.borders = stage.borders.take().map(|_| vec![]);
            stage.units.iter_mut().for_each(|unit| unit.blocks.forget_keys());
        }
    }
}
