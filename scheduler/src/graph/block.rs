//! One sealed block: where it lies, and who reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::event::BlockReport;
use super::ids::{BlockId, Millis, WorkerId};
use super::row_key::{KeyRange, RunBlock};
use super::segments::Segments;

/// What a block is to its readers, over all edges. See [`graph`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Written, and no unit has it as input yet.
    Sealed,
    /// The input of a unit that is not done.
    Assigned,
    /// All readers are done. Kept while there is room, for a reader that must run again.
    Consumed,
    /// Deleted after it was consumed.
    Freed,
    /// Gone with its worker, or found corrupt.
    Lost,
}

/// Whether the bytes are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    Alive,
    Freed,
    Lost,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Block {
    pub(super) bytes: u64,
    pub(super) rows: u64,
    pub(super) checksum: u64,
    pub(super) run: Option<Box<RunBlock>>,
    /// Of a hash shuffle: what it has of each partition.
    pub(super) segments: Option<Segments>,
    /// The attempt that wrote the copy that counts.
    pub(super) task: u32,
    pub(super) worker: WorkerId,
    pub(super) place: Place,
    /// How often readers found it missing or corrupt.
    pub(super) losses: u32,
    /// Per outgoing edge of the stage: the unit of the consumer that has it as input.
    pub(super) readers: Box<[Option<u32>]>,
    /// Its place in the order of what is kept after consumption.
    pub(super) kept: Option<u64>,
    pub(super) sealed: Millis,
}

impl Block {
    pub(super) fn is_alive(&self) -> bool {
        self.place == Place::Alive
    }

    /// How a re-run's report differs from this block; `None` if it does not. Sizes may differ:
    /// compression is not part of the promise.
    pub(super) fn difference(&self, report: &BlockReport) -> Option<String> {
        if self.rows != report.rows {
            return Some(format!("{} rows, and {} at first", report.rows, self.rows));
        }
        (self.checksum != report.checksum).then(|| {
            format!("checksum {:016x}, and {:016x} at first", report.checksum, self.checksum)
        })
    }
}

/// The blocks of one unit, by sequence number.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Blocks {
    all: Vec<(u32, Block)>,
    /// Whether of some it is not known where they begin in a run.
    lacks_keys: bool,
}

impl Blocks {
    pub(super) fn get(&self, seq: u32) -> Option<&Block> {
        let at = self.all.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(&self.all[at].1)
    }

    pub(super) fn get_mut(&mut self, seq: u32) -> Option<&mut Block> {
        let at = self.all.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(&mut self.all[at].1)
    }

    pub(super) fn insert(&mut self, seq: u32, block: Block) {
        self.lacks_keys |= block.run.is_none();
        match self.all.binary_search_by_key(&seq, |(seq, _)| *seq) {
            Ok(at) => self.all[at].1 = block,
            Err(at) => self.all.insert(at, (seq, block)),
        }
    }

    /// Forgets where they begin in a run, and what they have of partitions.
    pub(super) fn forget_keys(&mut self) {
        self.all.iter_mut().for_each(|(_, block)| (block.run, block.segments) = (None, None));
        self.lacks_keys = true;
    }

    /// Of a run: those that may have rows of a range. Without the keys of some, all.
    pub(super) fn in_range(&self, range: &KeyRange) -> &[(u32, Block)] {
        if self.lacks_keys {
            return &self.all;
        }
        let has_begun = |(_, block): &(u32, Block)| {
            !block.run.as_ref().is_some_and(|run| range.is_before(&run.key))
        };
        let to = self.all.partition_point(has_begun);
        self.all.get(self.first_in(range)..to).unwrap_or_default()
    }

    /// Rows of the blocks in front of those: all of them are before the range.
    pub(super) fn rows_before(&self, range: &KeyRange) -> u64 {
        self.all[..self.first_in(range)].iter().map(|(_, block)| block.rows).sum()
    }

    /// The place of the first block of a run that may have rows of a range, or of the first one behind it.
    fn first_in(&self, range: &KeyRange) -> usize {
        if self.lacks_keys {
            return 0;
        }
        // Keys ascend in a run, and a block ends where the next one begins, or the run.
        let begins_behind = |(_, block): &(u32, Block)| {
            block.run.as_ref().is_some_and(|run| range.is_behind(&run.key))
        };
        let from = self.all.partition_point(begins_behind).saturating_sub(1);
        let ends_before = |(_, block): &(u32, Block)| {
            let end = block.run.as_ref().and_then(|run| run.end.as_ref());
            end.is_some_and(|end| range.is_behind(end))
        };
        from + usize::from(self.all.get(from).is_some_and(ends_before))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.all.iter().map(|(seq, block)| (*seq, block))
    }

    pub(super) fn seqs(&self) -> Vec<u32> {
        self.all.iter().map(|(seq, _)| *seq).collect()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Consumed blocks, in the order of their consumption.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) order: BTreeMap<u64, BlockId>,
    /// The place of the next one.
    pub(super) next: u64,
    pub(super) bytes: u64,
}
