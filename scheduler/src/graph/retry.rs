//! What a failure leads to: the end of the job, another attempt later, or another lineage.

use std::collections::BTreeSet;

use forebay_engine::{ErrorKind, RemoteError};

use super::action::{Cause, JobFailure, UnitFailure};
use super::event::{Failure, FailureKind};
use super::ids::{BlockId, Millis, StageId, TaskId, UnitId, WorkerId};
use super::job::JobGraph;
use super::lineage::Wave;
use super::spec::Limits;
use super::unit::{TaskState, UnitInput, UnitState};

impl JobGraph {
    /// A running task has failed.
    pub(super) fn task_failed(&mut self, task: TaskId, failure: Failure, now: Millis) {
        let Failure { kind, message } = failure;
        let unit = task.stage.unit(self.task(task).unit);
        let lost = match &kind {
            FailureKind::BlockLost(block) => self.lost_inputs(unit, block.unit, Some(block.seq)),
            FailureKind::OutputLost { stage, worker } => self.lost_from(unit, *stage, worker),
            _ => vec![],
        };
        if kind == FailureKind::WorkerLost {
            return self.task_given_up(task, &message, now);
        }
        self.end_task(task, TaskState::Failed(kind.clone()), message.clone(), now);
        self.set_state(unit, UnitState::Pending);
        if kind == FailureKind::DiskFull {
            let worker = self.task(task).worker.clone();
            self.free_kept_on(&worker);
            if self.has_progressed(unit) {
                return self.wait_for_room(unit, now);
            }
        }
        if kind == FailureKind::DiskBroken {
            self.broken_disks.insert(self.task(task).worker.clone());
        }
        match kind {
            FailureKind::Final(error) => {
                let error = RemoteError::new(error, message);
                let reason = self.unit_failure(unit, String::new(), error);
                self.fail(reason, now);
            }
            FailureKind::BlockLost(_) | FailureKind::OutputLost { .. } if !lost.is_empty() => {
                self.inputs_lost(unit, lost, message, now);
            }
            FailureKind::DeviceLost => {
                self.device_lost(unit, task, RemoteError::new(kind.error(), message), now);
            }
            kind => self.retry(unit, task, RemoteError::new(kind.error(), message), now),
        }
    }

    /// A task has ended without a result, and not through its own fault.
    pub(super) fn task_given_up(&mut self, task: TaskId, message: &str, now: Millis) {
        let unit = task.stage.unit(self.task(task).unit);
        let state = TaskState::Failed(FailureKind::WorkerLost);
        self.end_task(task, state, message.to_owned(), now);
        self.count_loss(unit);
        self.set_state(unit, UnitState::Pending);
        self.give_back(unit);
        self.check_losses(now);
    }

    /// Whether a task has ended well since this was last asked of the unit.
    fn has_progressed(&mut self, unit: UnitId) -> bool {
        let finished = self.finished_tasks;
        self.unit_mut(unit).full_at.replace(finished) != Some(finished)
    }

    /// As long as others get on, they make room: that a disk was full counts against nobody.
    fn wait_for_room(&mut self, unit: UnitId, now: Millis) {
        self.hold(unit, now.after(self.limits.backoff_ms));
        self.give_back(unit);
    }

    fn retry(&mut self, unit: UnitId, task: TaskId, error: RemoteError, now: Millis) {
        let worker = self.task(task).worker.clone();
        let Limits { unit_failures_max, stage_failures_max, no_progress_max, .. } = self.limits;
        let stuck = self.attempts_without_progress(unit);
        let stage = &mut self.stages[unit.stage.at()];
        stage.failures += 1;
        let in_stage = stage.failures;
        // A large stage may meet more passing failures than a small one has units.
        let stage_failures_max = stage_failures_max.max(stage.units.len() as u32 / 4);
        let found = self.unit_mut(unit);
        found.failures += 1;
        let failures = found.failures;
        if !found.failed_on.contains(&worker) {
            found.failed_on.push(worker);
        }
        let limit = if stuck >= no_progress_max {
            Some(format!("{stuck} attempts without progress"))
        } else if failures >= unit_failures_max {
            Some(format!("{failures} failures of one unit"))
        } else if in_stage >= stage_failures_max {
            Some(format!("{in_stage} failures in one stage"))
        } else {
            None
        };
        if let Some(limit) = limit {
            let reason = self.unit_failure(unit, limit, error);
            return self.fail(reason, now);
        }
        self.hold(unit, now.after(self.backoff_ms(failures)));
        self.give_back(unit);
    }

    /// Not the unit's fault: the worker that it was on drains. Should it be given tasks before that is
    /// heard of, or not drain as it is part of a larger process, this has an end.
    fn device_lost(&mut self, unit: UnitId, task: TaskId, error: RemoteError, now: Millis) {
        let worker = self.task(task).worker.clone();
        let found = self.unit_mut(unit);
        found.losses += 1;
        let losses = found.losses;
        if !found.failed_on.contains(&worker) {
            found.failed_on.push(worker);
        }
        if losses >= self.limits.unit_losses_max {
            let reason =
                self.unit_failure(unit, format!("its work was lost {losses} times"), error);
            return self.fail(reason, now);
        }
        self.hold(unit, now.after(self.backoff_ms(losses)));
        self.give_back(unit);
    }

    fn attempts_without_progress(&self, unit: UnitId) -> u32 {
        let stuck = TaskState::Failed(FailureKind::NoProgress);
        let tasks = self.stages[unit.stage.at()].tasks.iter();
        tasks.filter(|task| task.unit == unit.index && task.state == stuck).count() as u32
    }

    /// Keeps a unit from being bound before `until`.
    fn hold(&mut self, unit: UnitId, until: Millis) {
        let not_before = self.unit(unit).not_before;
        self.stages[unit.stage.at()].ready.undelay(unit.index, not_before);
        self.unit_mut(unit).not_before = until;
        self.refresh(unit);
    }

    /// The blocks that a reader says are lost, if it reads them. A running task's inputs are there
    /// as far as the graph knows, so the report is about the copy that counts.
    fn lost_inputs(&self, reader: UnitId, producer: UnitId, seq: Option<u32>) -> Vec<BlockId> {
        let found = self.stages.get(producer.stage.at());
        let Some(unit) = found.and_then(|stage| stage.units.get(producer.index as usize)) else {
            return vec![];
        };
        let reads_stage = self.stages[reader.stage.at()].inputs.iter().any(|edge| {
            let edge = &self.edges[edge.at()].spec;
            edge.kind.is_blocking() && edge.from == producer.stage
        });
        let reads = |block: BlockId| match &self.unit(reader).input {
            UnitInput::Blocks(blocks) => blocks.contains(&block),
            UnitInput::Output(unit) => *unit == producer,
            UnitInput::Outputs(units) => units.contains(&producer),
            UnitInput::Partition(_) | UnitInput::Range(_) => false,
        };
        let named = unit.blocks.iter().filter(|(found, _)| seq.is_none_or(|seq| seq == *found));
        let alive = named.filter(|(_, block)| block.is_alive());
        let blocks = alive.map(|(seq, _)| producer.block(seq));
        blocks.filter(|block| reads_stage || reads(*block)).collect()
    }

    /// What a reader reads of a stage from a worker: all of it, as it may not reach the worker, which
    /// each part would show only after a long wait.
    fn lost_from(&self, reader: UnitId, stage: StageId, worker: &WorkerId) -> Vec<BlockId> {
        let held = self.holdings.get(worker).into_iter().flat_map(|held| &held.blocks);
        let units = held.map(|id| id.unit).filter(|unit| unit.stage == stage);
        let units: BTreeSet<UnitId> = units.collect();
        let read = units.into_iter().flat_map(|unit| self.lost_inputs(reader, unit, None));
        read.filter(|id| self.block(*id).worker == *worker).collect()
    }

    /// Not the reader's fault, so only the blocks' own maximum counts. They are made again, on
    /// another worker first: the disk of this one may be bad, or the reader may not reach it.
    fn inputs_lost(&mut self, reader: UnitId, lost: Vec<BlockId>, message: String, now: Millis) {
        let mut wave = Wave::new(self);
        let mut losses_most = 0;
        let producer = lost[0].unit;
        for id in lost {
            let unit = self.unit_mut(id.unit);
            if let Some(block) = unit.blocks.get_mut(id.seq) {
                block.losses += 1;
                losses_most = losses_most.max(block.losses);
                let worker = block.worker.clone();
                for list in [&mut unit.failed_on, &mut unit.lost_on] {
                    if !list.contains(&worker) {
                        list.push(worker.clone());
                    }
                }
            }
            self.lose(id, &Cause::BlockLost(id), &mut wave, now);
        }
        if losses_most >= self.limits.block_losses_max {
            let limit = format!("a block of its output was lost {losses_most} times");
            let error = RemoteError::new(ErrorKind::Unavailable, message);
            let reason = self.unit_failure(producer, limit, error);
            return self.fail(reason, now);
        }
        wave.touch(reader, Cause::InputOf(reader));
        self.recover(wave, now);
        if losses_most > 1 && self.unit(producer).state == UnitState::Pending {
            // There may be no other worker: what is wrong with this one gets time to pass.
            self.hold(producer, now.after(self.backoff_ms(losses_most)));
        }
    }

    /// The wait after so many failures.
    fn backoff_ms(&self, failures: u32) -> u64 {
        let Limits { backoff_ms, backoff_ms_max, .. } = self.limits;
        backoff_ms.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(backoff_ms_max)
    }

    /// The work of a unit was lost, and not through its own fault. Counted apart from failures,
    /// and with a larger maximum, so that a cluster that loses workers faster than they work ends
    /// in an error.
    pub(super) fn count_loss(&mut self, unit: UnitId) {
        self.unit_mut(unit).losses += 1;
        if self.unit(unit).losses >= self.limits.unit_losses_max {
            self.worn_out = Some(unit);
        }
    }

    /// Ends the job if a unit was lost too often.
    pub(super) fn check_losses(&mut self, now: Millis) {
        let Some(unit) = self.worn_out.take().filter(|_| self.is_running_job()) else { return };
        let limit = format!("its work was lost {} times", self.unit(unit).losses);
        let error =
            RemoteError::new(ErrorKind::Unavailable, "workers are lost faster than they work");
        let reason = self.unit_failure(unit, limit, error);
        self.fail(reason, now);
    }

    fn unit_failure(&self, unit: UnitId, limit: String, error: RemoteError) -> JobFailure {
        let found = self.unit(unit);
        let stage = &self.stages[unit.stage.at()];
        let tasks = stage.tasks.iter().filter(|task| task.unit == unit.index);
        JobFailure::Unit(Box::new(UnitFailure {
            unit,
            stage: stage.spec.name.clone(),
            limit,
            attempts: found.attempts,
            workers: tasks.map(|task| task.worker.clone()).collect(),
            error,
        }))
    }
}
