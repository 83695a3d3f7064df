//! The client of a job, which reads the result while it is made.
//!
//! It is a stage like any other: what it has read is consumed and counts no more, what is lost
//! before that is made again, and what it leaves unread holds back those that write it. Only it
//! reads one thing at a time, so that the blocks of a unit come in their order.

use super::bind::Bound;
use super::ids::{BlockId, EdgeId, Millis, StageId, WorkerId};
use super::job::JobGraph;
use super::ready::ReadyItem;
use super::unit::Unit;
use super::work::Work;
use crate::resources::Lease;

/// Stands for the client where workers are named.
const CLIENT: &str = "client";

impl JobGraph {
    /// The stage that is the client, if one reads the result.
    pub fn client(&self) -> Option<StageId> {
        self.stages.iter().find(|stage| stage.spec.is_client).map(|stage| stage.id)
    }

    /// Gives the client what it reads next. Nothing while it reads.
    pub fn bind_client(&mut self, now: Millis) -> Option<Bound> {
        let stage = self.client()?;
        self.advance_stage(stage, now);
        if self.running(stage) > 0 {
            return None;
        }
        let work = self.next_read(stage)?;
        self.bind(work, &WorkerId::new(CLIENT), Lease::default(), now).ok()
    }

    /// What the client reads, as it was told when that was bound.
    pub fn client_reads(&self) -> Option<Bound> {
        let stage = self.client()?;
        let task = self.stages[stage.at()].running.first().copied()?;
        Some(self.bound(stage.task(task)))
    }

    /// Rows and bytes of the result, as far as it has been made: what stages without another reader
    /// than the client have written.
    pub fn result_size(&self) -> (u64, u64) {
        let results = self.stages.iter().filter(|stage| {
            !stage.spec.is_client && (stage.outputs.is_empty() || self.is_for_client(stage.id))
        });
        let blocks = results.flat_map(|stage| &stage.units).flat_map(|unit| unit.blocks.iter());
        blocks.fold((0, 0), |(rows, bytes), (_, block)| (rows + block.rows, bytes + block.bytes))
    }

    /// Whether the client alone reads a stage.
    pub(super) fn is_for_client(&self, stage: StageId) -> bool {
        let mut readers = self.stages[stage.at()].outputs.iter().peekable();
        let is_client = |edge: &EdgeId| {
            let to = self.edges[edge.at()].spec.to;
            self.stages[to.at()].spec.is_client
        };
        readers.peek().is_some() && readers.all(is_client)
    }

    fn next_read(&self, stage: StageId) -> Option<Work> {
        let mut bytes_left = self.stages[stage.at()].spec.group_bytes_max;
        let mut chosen: Option<(EdgeId, Vec<BlockId>)> = None;
        for item in self.ready(stage)?.iter() {
            let (edge, block) = match item {
                ReadyItem::Unit(unit) => {
                    let may = !self.reads_ranges(stage) || self.are_read(stage, unit);
                    return may.then_some(Work::Unit(stage.unit(unit)));
                }
                ReadyItem::Output { edge, unit } => {
                    return Some(Work::Outputs { edge, units: vec![unit] });
                }
                ReadyItem::Block { edge, block } => (edge, block),
            };
            let taken = chosen.as_ref().map_or(&[][..], |(_, blocks)| blocks);
            if !self.comes_next(edge, block, taken.last()) {
                continue;
            }
            let bytes = self.block(block).bytes;
            let is_full = bytes > bytes_left || taken.len() >= self.limits.group_blocks_max;
            if chosen.as_ref().is_some_and(|(of, _)| *of != edge || is_full) {
                break;
            }
            bytes_left = bytes_left.saturating_sub(bytes);
            chosen.get_or_insert_with(|| (edge, vec![])).1.push(block);
        }
        chosen.map(|(edge, blocks)| Work::Blocks { edge, blocks })
    }

    /// Whether what the client reads was made of ranges: they have an order.
    fn reads_ranges(&self, client: StageId) -> bool {
        let mut inputs = self.stages[client.at()].inputs.iter();
        inputs.any(|edge| self.runs_of(self.edges[edge.at()].spec.from).is_some())
    }

    /// Whether the client has read all units before this one.
    fn are_read(&self, client: StageId, unit: u32) -> bool {
        let units = &self.stages[client.at()].units;
        units[..unit as usize].iter().all(Unit::is_done)
    }

    /// Whether the client has read, or reads as `last`, the block before this one.
    fn comes_next(&self, edge: EdgeId, block: BlockId, last: Option<&BlockId>) -> bool {
        let Some(before) = block.seq.checked_sub(1).map(|seq| block.unit.block(seq)) else {
            return true;
        };
        last == Some(&before) || self.reader_is_done(before, edge)
    }
}
