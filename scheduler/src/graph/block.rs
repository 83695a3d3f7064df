//! One sealed block: where it lies, and who reads it.

use std::collections::BTreeMap;

use super::event::BlockReport;
use super::ids::{BlockId, Millis, WorkerId};
use super::row_key::RowKey;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Alive,
    Freed,
    Lost,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) bytes: u64,
    pub(super) rows: u64,
    pub(super) checksum: u64,
    pub(super) key: Option<RowKey>,
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
#[derive(Debug, Default)]
pub(super) struct Blocks(Vec<(u32, Block)>);

impl Blocks {
    pub(super) fn get(&self, seq: u32) -> Option<&Block> {
        let at = self.0.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(&self.0[at].1)
    }

    pub(super) fn get_mut(&mut self, seq: u32) -> Option<&mut Block> {
        let at = self.0.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
        Some(&mut self.0[at].1)
    }

    pub(super) fn insert(&mut self, seq: u32, block: Block) {
        match self.0.binary_search_by_key(&seq, |(seq, _)| *seq) {
            Ok(at) => self.0[at].1 = block,
            Err(at) => self.0.insert(at, (seq, block)),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.0.iter().map(|(seq, block)| (*seq, block))
    }

    pub(super) fn seqs(&self) -> Vec<u32> {
        self.0.iter().map(|(seq, _)| *seq).collect()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Consumed blocks, in the order of their consumption.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) order: BTreeMap<u64, BlockId>,
    /// The place of the next one.
    pub(super) next: u64,
    pub(super) bytes: u64,
}
