//! What is kept after consumption, and what is deleted.
//!
//! A consumed block is only of use if the output of one of its readers is lost. It is kept while
//! there is room, so that such a loss does not reach back to the scan; the block that was consumed
//! first goes first, since what was made of it is the most likely to be consumed too.

use super::action::Action;
use super::block::Place;
use super::ids::{BlockId, EdgeId, StageId, TaskId, WorkerId};
use super::job::JobGraph;
use super::spec::{EdgeKind, Granularity};

impl JobGraph {
    /// Whether the consumer at the end of an edge is done with a block. Not if it has not even
    /// asked for it yet.
    pub(super) fn reader_is_done(&self, id: BlockId, edge: EdgeId) -> bool {
        let edge = &self.edges[edge.at()];
        let consumer = &self.stages[edge.spec.to.at()];
        let unit = self.unit(id.unit);
        let is_done = |reader: Option<u32>| {
            reader.is_some_and(|reader| consumer.units[reader as usize].is_done())
        };
        match edge.spec.kind {
            EdgeKind::Streaming(Granularity::Block) => {
                is_done(unit.blocks.get(id.seq).and_then(|block| block.readers[edge.slot]))
            }
            EdgeKind::Streaming(Granularity::Unit | Granularity::Units) => {
                is_done(unit.readers[edge.slot])
            }
            EdgeKind::Blocking | EdgeKind::Broadcast | EdgeKind::Hash | EdgeKind::Ranges => {
                consumer.is_complete()
            }
        }
    }

    /// Whether somebody has yet to read the block. The result of the job is needed until the end.
    pub(super) fn is_needed(&self, id: BlockId) -> bool {
        let outputs = &self.stages[id.unit.stage.at()].outputs;
        outputs.is_empty() || outputs.iter().any(|edge| !self.reader_is_done(id, *edge))
    }

    /// Whether a worker runs something of this job, or holds what somebody has yet to read.
    pub fn needs_worker(&self, worker: &WorkerId) -> bool {
        let runs = |task: &TaskId| self.is_running(*task);
        self.slots.get(worker).is_some_and(|tasks| tasks.iter().any(runs))
            || self
                .holdings
                .get(worker)
                .is_some_and(|held| held.blocks.iter().any(|block| self.is_needed(*block)))
    }

    /// Whether this job, while it runs, has tasks or blocks on a worker.
    pub fn uses_worker(&self, worker: &WorkerId) -> bool {
        self.is_running_job()
            && (self.slots.contains_key(worker) || self.holdings.contains_key(worker))
    }

    /// Brings the place of a block among the kept ones up to date. What only the client reads is
    /// of no use once it is read: nothing is made of it that could be lost.
    pub(super) fn refresh_kept(&mut self, id: BlockId) {
        let is_needed = self.is_needed(id);
        if !is_needed && self.is_for_client(id.unit.stage) {
            return self.free(id);
        }
        let kept = &mut self.kept;
        let stage = &mut self.stages[id.unit.stage.at()];
        let unit = &mut stage.units[id.unit.index as usize];
        let Some(block) = unit.blocks.get_mut(id.seq) else { return };
        let held = self.holdings.get_mut(&block.worker);
        match (block.kept, block.is_alive() && !is_needed) {
            (None, true) => {
                held.into_iter().for_each(|held| held.kept_bytes += block.bytes);
                self.changed_holdings.insert(block.worker.clone());
                block.kept = Some(kept.next);
                kept.order.insert(kept.next, id);
                kept.next += 1;
                kept.bytes += block.bytes;
            }
            (Some(at), false) => {
                // It may have been the last block there.
                held.into_iter().for_each(|held| held.kept_bytes -= block.bytes);
                self.changed_holdings.insert(block.worker.clone());
                block.kept = None;
                kept.order.remove(&at);
                kept.bytes -= block.bytes;
            }
            _ => {}
        }
    }

    /// All blocks of a stage, because a consumer of the whole stage became complete, or no longer
    /// is. Both happen once, and once more per loss that reaches a finished stage.
    pub(super) fn refresh_kept_of(&mut self, stage: StageId) {
        for unit in 0..self.stages[stage.at()].units.len() as u32 {
            let unit = stage.unit(unit);
            for seq in self.unit(unit).blocks.seqs() {
                self.refresh_kept(unit.block(seq));
            }
        }
    }

    /// Deletes what is too much, the oldest first.
    pub(super) fn trim_kept(&mut self) {
        while self.kept.bytes > self.limits.kept_bytes_max {
            let Some((_, id)) = self.kept.order.first_key_value() else { return };
            self.free(*id);
        }
    }

    /// Deletes all that is kept on a worker.
    pub(super) fn free_kept_on(&mut self, worker: &WorkerId) {
        let kept = self.kept.order.values().copied();
        let there: Vec<_> = kept.filter(|id| self.block(*id).worker == *worker).collect();
        there.into_iter().for_each(|id| self.free(id));
    }

    /// Deletes one block, if it is there.
    pub(super) fn free(&mut self, id: BlockId) {
        let Some(block) = self.unit(id.unit).blocks.get(id.seq) else { return };
        let (task, worker) = (id.unit.stage.task(block.task), block.worker.clone());
        if self.mark_gone(id, Place::Freed) {
            self.actions.push(Action::FreeBlock { block: id, task, worker });
        }
    }
}
