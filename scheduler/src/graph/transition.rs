//! The steps that every rule is made of. Each keeps all counts and lists that depend on it, so
//! that no rule has to look through units to know what is ready, full, complete or kept.

use super::action::Action;
use super::block::{Block, Place};
use super::ids::{BlockId, Millis, TaskId, UnitId, WorkerId};
use super::job::JobGraph;
use super::ready::ReadyItem;
use super::spec::{EdgeKind, Granularity};
use super::unit::{TaskState, UnitInput, UnitState};

const BLOCK: EdgeKind = EdgeKind::Streaming(Granularity::Block);
const UNIT: EdgeKind = EdgeKind::Streaming(Granularity::Unit);
const UNITS: EdgeKind = EdgeKind::Streaming(Granularity::Units);

impl JobGraph {
    /// The only place where a unit's state changes.
    pub(super) fn set_state(&mut self, id: UnitId, state: UnitState) {
        let was_done = self.unit(id).is_done();
        self.unit_mut(id).state = state;
        let (is_done, absent) = (self.unit(id).is_done(), self.unit(id).absent);
        if was_done != is_done {
            let stage = &mut self.stages[id.stage.at()];
            if is_done {
                stage.undone -= 1;
            } else {
                stage.undone += 1;
            }
            if is_done && absent > 0 {
                stage.gone.insert(id.index);
            } else {
                stage.gone.remove(&id.index);
            }
            self.reader_turned(id, is_done);
        }
        self.refresh(id);
    }

    /// A unit became done, or no longer is: what it reads streaming is consumed, or needed again.
    fn reader_turned(&mut self, id: UnitId, is_done: bool) {
        let Some(edge) = self.unit(id).edge else { return };
        for block in self.input_blocks(id) {
            let found = self.block(block);
            if found.is_alive() {
                let bytes = found.bytes;
                let filled = &mut self.edges[edge.at()].unconsumed_bytes;
                if is_done {
                    *filled -= bytes;
                } else {
                    *filled += bytes;
                }
            }
            self.refresh_kept(block);
        }
    }

    /// What a unit reads on its streaming edge.
    pub(super) fn input_blocks(&self, id: UnitId) -> Vec<BlockId> {
        match &self.unit(id).input {
            UnitInput::Partition(_) | UnitInput::Range(_) => vec![],
            UnitInput::Blocks(blocks) => blocks.clone(),
            UnitInput::Output(unit) => self.output_of(*unit).collect(),
            UnitInput::Outputs(units) => {
                units.iter().flat_map(|unit| self.output_of(*unit)).collect()
            }
        }
    }

    fn output_of(&self, id: UnitId) -> impl Iterator<Item = BlockId> {
        self.unit(id).blocks.iter().map(move |(seq, _)| id.block(seq))
    }

    /// Bytes and rows of a unit's output.
    pub(crate) fn output_size(&self, id: UnitId) -> (u64, u64) {
        let blocks = self.unit(id).blocks.iter();
        blocks.fold((0, 0), |(bytes, rows), (_, block)| (bytes + block.bytes, rows + block.rows))
    }

    /// The worker that holds most of a unit's output.
    pub(crate) fn home_of_output(&self, id: UnitId) -> Option<WorkerId> {
        self.home_of_most(self.output_of(id))
    }

    /// A block that is known to exist: it is an input of a unit, or was just looked up.
    pub(super) fn block(&self, id: BlockId) -> &Block {
        let found = self.unit(id.unit).blocks.get(id.seq);
        found.unwrap_or_else(|| unreachable!("block {id} is named and not recorded"))
    }

    /// Puts a unit where it can be found if it can be bound, and takes it away if it cannot.
    pub(super) fn refresh(&mut self, id: UnitId) {
        let unit = self.unit(id);
        let is_ready = unit.state == UnitState::Pending && self.inputs_are_alive(id);
        let (not_before, item) = (unit.not_before, ReadyItem::Unit(id.index));
        let home = if is_ready { self.home(id) } else { None };
        let ready = &mut self.stages[id.stage.at()].ready;
        ready.undelay(id.index, not_before);
        match is_ready {
            false => ready.remove(item),
            true if not_before > Millis::default() => ready.delay(id.index, not_before),
            true => ready.insert(item, home),
        }
    }

    /// Whether all that a unit reads on its streaming edge is sealed and there.
    pub(super) fn inputs_are_alive(&self, id: UnitId) -> bool {
        match &self.unit(id).input {
            UnitInput::Partition(_) | UnitInput::Range(_) => true,
            UnitInput::Blocks(blocks) => blocks.iter().all(|block| self.block(*block).is_alive()),
            UnitInput::Output(unit) => self.unit(*unit).is_sealed(),
            UnitInput::Outputs(units) => units.iter().all(|unit| self.unit(*unit).is_sealed()),
        }
    }

    /// The worker that holds most bytes of what a unit reads, or had best have it for another reason.
    fn home(&self, id: UnitId) -> Option<WorkerId> {
        match self.unit(id).input {
            UnitInput::Partition(partition) => self.home_of_partition(id, partition),
            _ => self.home_of_most(self.input_blocks(id)),
        }
    }

    fn home_of_most(&self, blocks: impl IntoIterator<Item = BlockId>) -> Option<WorkerId> {
        let mut bytes = std::collections::BTreeMap::<&WorkerId, u64>::new();
        for block in blocks {
            let block = self.block(block);
            *bytes.entry(&block.worker).or_default() += block.bytes;
        }
        bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(worker, _)| worker.clone())
    }

    /// A copy of a recorded block, that was not there, is there.
    pub(super) fn mark_alive(&mut self, id: BlockId, task: TaskId, now: Millis) {
        let worker = self.task(task).worker.clone();
        let was_sealed = self.unit(id.unit).is_sealed();
        let unit = self.unit_mut(id.unit);
        unit.absent -= 1;
        if let Some(block) = unit.blocks.get_mut(id.seq) {
            block.place = Place::Alive;
            (block.task, block.worker, block.sealed) = (task.index, worker.clone(), now);
        }
        let bytes = self.block(id).bytes;
        let held = self.holdings.entry(worker.clone()).or_default();
        held.blocks.insert(id);
        held.bytes += bytes;
        self.changed_holdings.insert(worker.clone());
        for edge in self.stages[id.unit.stage.at()].outputs.clone() {
            let edge = &mut self.edges[edge.at()];
            if edge.unconsumed_bytes == 0 {
                edge.waits_since = now;
            }
        }
        self.charge(id, true);
        self.refresh_kept(id);
        self.tell_block_readers(id, Some(worker));
        self.resealed(id.unit, was_sealed);
    }

    /// A block that was there no longer is. Says whether it was.
    pub(super) fn mark_gone(&mut self, id: BlockId, place: Place) -> bool {
        let was_sealed = self.unit(id.unit).is_sealed();
        if !self.unit(id.unit).blocks.get(id.seq).is_some_and(Block::is_alive) {
            return false;
        }
        self.charge(id, false);
        let unit = self.unit_mut(id.unit);
        unit.absent += 1;
        let is_done = unit.is_done();
        if let Some(block) = unit.blocks.get_mut(id.seq) {
            block.place = place;
        }
        if is_done {
            self.stages[id.unit.stage.at()].gone.insert(id.unit.index);
        }
        let (worker, bytes) = (self.block(id).worker.clone(), self.block(id).bytes);
        if let Some(held) = self.holdings.get_mut(&worker) {
            held.blocks.remove(&id);
            held.bytes -= bytes;
            if held.blocks.is_empty() {
                self.holdings.remove(&worker);
            }
        }
        self.changed_holdings.insert(worker);
        self.refresh_kept(id);
        self.tell_block_readers(id, None);
        self.resealed(id.unit, was_sealed);
        true
    }

    /// Counts a block's bytes on the streaming edges whose consumer is not done with it.
    fn charge(&mut self, id: BlockId, is_more: bool) {
        let bytes = self.block(id).bytes;
        for (edge, _, kind, _) in self.edges_of(&self.stages[id.unit.stage.at()].outputs) {
            if kind.is_blocking() || self.reader_is_done(id, edge) {
                continue;
            }
            let filled = &mut self.edges[edge.at()].unconsumed_bytes;
            if is_more {
                *filled += bytes;
            } else {
                *filled -= bytes;
            }
        }
    }

    /// Brings what reads this very block up to date. `home` is where it lies, if it is there.
    fn tell_block_readers(&mut self, id: BlockId, home: Option<WorkerId>) {
        for (edge, slot, kind, to) in self.edges_of(&self.stages[id.unit.stage.at()].outputs) {
            if kind != BLOCK {
                continue;
            }
            let reader = self.block(id).readers[slot];
            let ready = &mut self.stages[to.at()].ready;
            let item = ReadyItem::Block { edge, block: id };
            match (reader, &home) {
                (Some(reader), _) => self.refresh(to.unit(reader)),
                (None, Some(_)) => ready.insert(item, home.clone()),
                (None, None) => ready.remove(item),
            }
        }
    }

    /// Brings what reads the whole output of a unit up to date.
    pub(super) fn resealed(&mut self, id: UnitId, was_sealed: bool) {
        let is_sealed = self.unit(id).is_sealed();
        let absent = self.unit(id).absent;
        let stage = &mut self.stages[id.stage.at()];
        if absent == 0 {
            stage.gone.remove(&id.index);
        }
        match (was_sealed, is_sealed) {
            (false, true) => stage.unsealed -= 1,
            (true, false) => stage.unsealed += 1,
            _ => return,
        }
        for (edge, slot, kind, to) in self.edges_of(&self.stages[id.stage.at()].outputs) {
            match (kind, self.unit(id).readers[slot]) {
                (UNIT | UNITS, Some(reader)) => self.refresh(to.unit(reader)),
                (UNITS, None) if is_sealed => {
                    let home = self.home_of_output(id);
                    let item = ReadyItem::Output { edge, unit: id };
                    self.stages[to.at()].ready.insert(item, home);
                }
                (UNITS, None) => {
                    self.stages[to.at()].ready.remove(ReadyItem::Output { edge, unit: id });
                }
                _ => {}
            }
        }
    }

    /// An attempt no longer runs. A canceled one holds what it was given until it is told to have
    /// ended: a kernel cannot be interrupted. The client was given nothing, and nobody tells of its end.
    pub(super) fn end_task(&mut self, id: TaskId, state: TaskState, reason: String, now: Millis) {
        let is_client = self.stages[id.stage.at()].spec.is_client;
        let task = self.task_mut(id);
        task.holds_lease = state == TaskState::Canceled && !is_client;
        task.state = state;
        task.reason = reason;
        task.ended = Some(now);
        task.skip = vec![];
        let (expected_left, holds_lease) = (task.expected_left, task.holds_lease);
        (task.expected_left, task.expected_here) = (0, 0);
        let worker = task.worker.clone();
        let stage = &mut self.stages[id.stage.at()];
        stage.last_ended = stage.last_ended.max(Some(now));
        stage.expected_left -= expected_left;
        stage.running.remove(&id.index);
        self.changed_holdings.insert(worker);
        if !holds_lease {
            self.leave_seat(id);
        }
    }

    fn leave_seat(&mut self, id: TaskId) {
        let worker = self.task(id).worker.clone();
        if let Some(tasks) = self.slots.get_mut(&worker) {
            tasks.remove(&id);
            if tasks.is_empty() {
                self.slots.remove(&worker);
            }
            self.changed_slots.insert(worker);
        }
    }

    /// Stops an attempt; the unit is left to the caller.
    pub(super) fn cancel(&mut self, id: TaskId, reason: String, now: Millis) {
        let worker = self.task(id).worker.clone();
        self.actions.push(Action::CancelTask { task: id, worker });
        self.end_task(id, TaskState::Canceled, reason, now);
    }

    /// The end of a task that does not run: late, doubled, or what a canceled one leaves with.
    pub(super) fn end_draining(&mut self, id: TaskId, now: Millis) {
        self.history.stale_reports += 1;
        let stage = self.stages.get_mut(id.stage.at());
        let Some(task) = stage.and_then(|stage| stage.tasks.get_mut(id.index)) else {
            return;
        };
        if task.holds_lease && task.state == TaskState::Canceled {
            task.holds_lease = false;
            task.ended = Some(now);
            let stage = &mut self.stages[id.stage.at()];
            stage.last_ended = stage.last_ended.max(Some(now));
            self.leave_seat(id);
        }
    }
}
