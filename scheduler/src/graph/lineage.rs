//! What must run again when something is gone. The rule is in the [module's](super) text.

use std::collections::BTreeMap;

use super::action::{Action, Cause};
use super::block::Place;
use super::ids::{BlockId, Millis, StageId, UnitId, WorkerId};
use super::job::JobGraph;
use super::spec::{EdgeKind, Granularity};
use super::unit::{TaskState, UnitInput, UnitState};

/// Units whose state one event may change, by stage. The lineage rule is asked for each once,
/// consumers first, so that "is somebody waiting for this" is settled before it is asked.
#[derive(Debug)]
pub(super) struct Wave {
    touched: Vec<BTreeMap<u32, Cause>>,
}

impl Wave {
    pub(super) fn new(graph: &JobGraph) -> Self {
        Self { touched: vec![BTreeMap::new(); graph.stages.len()] }
    }

    /// The first reason counts: what was lost itself is not recomputed for the sake of a reader.
    pub(super) fn touch(&mut self, unit: UnitId, why: Cause) {
        self.touched[unit.stage.at()].entry(unit.index).or_insert(why);
    }
}

impl JobGraph {
    /// A worker is gone.
    pub(super) fn worker_lost(&mut self, worker: &WorkerId, now: Millis) {
        self.stages.iter_mut().for_each(|stage| stage.learned.forget(worker));
        self.forget_homes(worker);
        let why = Cause::WorkerLost(worker.clone());
        let mut wave = Wave::new(self);
        self.changed_slots.insert(worker.clone());
        for task in self.slots.remove(worker).unwrap_or_default() {
            if !self.is_running(task) {
                self.task_mut(task).holds_lease = false;
                continue;
            }
            let unit = task.stage.unit(self.task(task).unit);
            self.end_task(task, TaskState::Lost, why.to_string(), now);
            self.count_loss(unit);
            self.set_state(unit, UnitState::Pending);
            wave.touch(unit, why.clone());
        }
        for block in self.holdings.get(worker).cloned().unwrap_or_default().blocks {
            self.lose(block, &why, &mut wave, now);
        }
        self.recover(wave, now);
    }

    /// A worker is gone after the end of the job.
    pub(super) fn forget_worker(&mut self, worker: &WorkerId, now: Millis) {
        self.changed_slots.insert(worker.clone());
        for task in self.slots.remove(worker).unwrap_or_default() {
            let stage = &mut self.stages[task.stage.at()];
            stage.last_ended = stage.last_ended.max(Some(now));
            let task = self.task_mut(task);
            (task.holds_lease, task.ended) = (false, Some(now));
        }
    }

    /// A block is gone. Tasks that read it are stopped: they would fail, and hold an accelerator
    /// until they do.
    pub(super) fn lose(&mut self, id: BlockId, why: &Cause, wave: &mut Wave, now: Millis) {
        if !self.mark_gone(id, Place::Lost) {
            return;
        }
        wave.touch(id.unit, why.clone());
        for (_, slot, kind, to) in self.edges_of(&self.stages[id.unit.stage.at()].outputs) {
            let reader = match kind {
                EdgeKind::Streaming(Granularity::Block) => self.block(id).readers[slot],
                EdgeKind::Streaming(Granularity::Unit | Granularity::Units) => {
                    self.unit(id.unit).readers[slot]
                }
                EdgeKind::Blocking | EdgeKind::Broadcast | EdgeKind::Hash | EdgeKind::Ranges => {
                    let running = self.stages[to.at()].running.clone();
                    let units: Vec<_> =
                        running.into_iter().map(|task| self.task(to.task(task)).unit).collect();
                    units
                        .into_iter()
                        .for_each(|unit| self.stop_reader(to.unit(unit), id, wave, now));
                    None
                }
            };
            if let Some(reader) = reader {
                self.stop_reader(to.unit(reader), id, wave, now);
            }
        }
    }

    fn stop_reader(&mut self, reader: UnitId, lost: BlockId, wave: &mut Wave, now: Millis) {
        if let UnitState::Running(task) = self.unit(reader).state {
            self.cancel(reader.stage.task(task), format!("block {lost} was lost"), now);
            self.set_state(reader, UnitState::Pending);
            wave.touch(reader, Cause::BlockLost(lost));
        }
    }

    /// The lineage rule, for all that a wave has touched and all that it leads to.
    pub(super) fn recover(&mut self, mut wave: Wave, now: Millis) {
        for stage in self.order.clone().into_iter().rev() {
            let mut reopened = None;
            for (index, why) in std::mem::take(&mut wave.touched[stage.at()]) {
                let unit = stage.unit(index);
                match (self.unit(unit).state, self.must_run(unit)) {
                    (UnitState::Done(_), true) => {
                        self.reopen(unit, why, now);
                        self.touch_inputs(unit, &mut wave);
                        reopened = Some(unit);
                    }
                    (UnitState::Pending, false) => self.give_back(unit),
                    _ => {}
                }
            }
            if let Some(reader) = reopened {
                self.touch_blocking_inputs(stage, reader, &mut wave);
            }
        }
        self.check_losses(now);
    }

    /// Whether an attempt must end well before the job can: it is not known what the unit gives,
    /// or somebody has yet to read a part that is not there.
    pub(super) fn must_run(&self, id: UnitId) -> bool {
        let unit = self.unit(id);
        let is_wanted = |seq| self.is_needed(id.block(seq));
        unit.finished.is_none()
            || (unit.absent > 0
                && unit.blocks.iter().any(|(seq, block)| !block.is_alive() && is_wanted(seq)))
    }

    /// After an attempt without a result, the unit is to run again if anybody needs that.
    pub(super) fn give_back(&mut self, id: UnitId) {
        let state = match self.unit(id).finished {
            Some(task) if !self.must_run(id) => UnitState::Done(task),
            _ => UnitState::Pending,
        };
        self.set_state(id, state);
    }

    fn reopen(&mut self, id: UnitId, why: Cause, now: Millis) {
        if matches!(why, Cause::WorkerLost(_)) {
            self.count_loss(id);
        }
        self.set_state(id, UnitState::Pending);
        if !self.stages[id.stage.at()].is_block_wise {
            // All or none: a re-run may cut its output otherwise.
            self.unit(id).blocks.seqs().into_iter().for_each(|seq| self.free(id.block(seq)));
        }
        self.history.recomputed(id, why.clone(), now);
        self.actions.push(Action::Recomputing { unit: id, why });
    }

    /// What a unit reads that must run again: its producers must too, where that is gone.
    fn touch_inputs(&self, id: UnitId, wave: &mut Wave) {
        match &self.unit(id).input {
            UnitInput::Partition(_) | UnitInput::Range(_) => {}
            UnitInput::Blocks(blocks) => {
                let absent = blocks.iter().filter(|block| !self.block(**block).is_alive());
                absent.for_each(|block| wave.touch(block.unit, Cause::InputOf(id)));
            }
            UnitInput::Output(unit) => wave.touch(*unit, Cause::InputOf(id)),
            UnitInput::Outputs(units) => {
                units.iter().for_each(|unit| wave.touch(*unit, Cause::InputOf(id)));
            }
        }
    }

    /// The same for what all units of a stage read. Once per stage, whatever the number of units.
    fn touch_blocking_inputs(&self, stage: StageId, reader: UnitId, wave: &mut Wave) {
        let inputs = self.stages[stage.at()].inputs.iter().map(|edge| &self.edges[edge.at()].spec);
        for edge in inputs.filter(|edge| edge.kind.is_blocking()) {
            for gone in &self.stages[edge.from.at()].gone {
                wave.touch(edge.from.unit(*gone), Cause::InputOf(reader));
            }
        }
    }
}
