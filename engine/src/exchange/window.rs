//! A run of rows that waits, and the batches that it is cut into.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::error::ArrowError;
use forebay_udf::model::BatchLimits;

use super::batcher::{Batching, Row, Size, cut};
use super::budget::Permit;
use super::rows::{batch_bytes, input_bytes, token_lengths};

/// Rows as a producer hands them over, weighed.
#[derive(Debug)]
pub(super) struct Block {
    batch: RecordBatch,
    lengths: Option<Vec<u32>>,
    input_bytes: u64,
    bytes: usize,
}

impl Block {
    pub(super) fn new(batch: RecordBatch) -> Self {
        Self {
            lengths: token_lengths(&batch),
            input_bytes: input_bytes(&batch) as u64,
            bytes: batch_bytes(&batch),
            batch,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn tokens(&self) -> u64 {
        self.lengths.iter().flatten().map(|length| u64::from(*length)).sum()
    }

    /// The rows, with the block's input bytes shared among them: by length if they have one.
    fn rows_of(&self, block: usize) -> impl Iterator<Item = Row> {
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        let weight = |length: u32| u64::from(length) + 1;
        let total: u64 = match &self.lengths {
            Some(lengths) => lengths.iter().map(|length| weight(*length)).sum(),
            None => self.rows() as u64,
        };
        let rows = u32::try_from(self.rows()).unwrap_or(u32::MAX);
        (0..rows).map(move |index| {
            let length = self.lengths.as_ref().map_or(0, |lengths| lengths[index as usize]);
            let share = self.input_bytes.saturating_mul(weight(length));
            Row { block, index, length, bytes: share.div_ceil(total.max(1)) }
        })
    }
}

/// A block with its bytes; they are returned when the last batch that has rows of it is dropped.
#[derive(Debug)]
struct Held {
    block: Block,
    _permit: Permit,
}

/// Rows that wait to be sealed.
#[derive(Debug, Default)]
pub(super) struct Window {
    blocks: Vec<Arc<Held>>,
    rows: usize,
    bytes: usize,
    tokens: u64,
    input_bytes: u64,
}

impl Window {
    pub(super) fn push(&mut self, block: Block, permit: Permit) {
        self.rows += block.rows();
        self.bytes += block.bytes();
        self.tokens += block.tokens();
        self.input_bytes += block.input_bytes;
        self.blocks.push(Arc::new(Held { block, _permit: permit }));
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether its rows are more than fit into one batch, or just fill it.
    pub(super) fn has_full_batch(&self, limits: &BatchLimits) -> bool {
        self.rows >= limits.max_rows as usize
            || limits.max_tokens.is_some_and(|max| self.tokens >= u64::from(max))
            || limits.max_bytes.is_some_and(|max| self.input_bytes >= max)
    }

    /// Cuts all rows into batches.
    pub(super) fn seal(self, limits: &BatchLimits) -> VecDeque<Planned> {
        let has_tokens = self.blocks.iter().any(|held| held.block.lengths.is_some());
        let batching = if has_tokens { Batching::Tokens } else { Batching::Rows };
        let rows = self.blocks.iter().enumerate();
        let rows = rows.flat_map(|(at, held)| held.block.rows_of(at)).collect();
        cut(rows, batching, limits).into_iter().map(|rows| self.plan(&rows)).collect()
    }

    fn plan(&self, rows: &[Row]) -> Planned {
        let mut local = vec![None; self.blocks.len()];
        let mut blocks = Vec::new();
        let mut place = |row: &Row| {
            let at = *local[row.block as usize].get_or_insert_with(|| {
                blocks.push(Arc::clone(&self.blocks[row.block as usize]));
                blocks.len() - 1
            });
            (at, row.index as usize)
        };
        let places = rows.iter().map(&mut place).collect();
        let size = rows.iter().fold(Size::default(), |size, row| size.with(row));
        let tokens = rows.iter().map(|row| u64::from(row.length)).sum();
        Planned { blocks, places, padded_tokens: size.padded(), tokens }
    }
}

/// A batch before its rows are gathered. Holds the blocks that they are in.
#[derive(Debug)]
pub(super) struct Planned {
    blocks: Vec<Arc<Held>>,
    places: Vec<(usize, usize)>,
    /// Tokens that the device will compute.
    pub(super) padded_tokens: u64,
    /// Tokens that the rows have.
    pub(super) tokens: u64,
}

impl Planned {
    /// Copies the rows together; gives the blocks' bytes back if nobody else needs them.
    pub(super) fn gather(self) -> Result<RecordBatch, ArrowError> {
        if let Some((block, start)) = self.run_of_one_block() {
            return Ok(block.slice(start, self.places.len()));
        }
        let batches: Vec<&RecordBatch> = self.blocks.iter().map(|held| &held.block.batch).collect();
        interleave_record_batch(&batches, &self.places)
    }

    /// Neighbors in one block need no copy.
    fn run_of_one_block(&self) -> Option<(&RecordBatch, usize)> {
        let [held] = self.blocks.as_slice() else { return None };
        let (_, start) = *self.places.first()?;
        let is_run = self.places.iter().enumerate().all(|(at, (_, row))| *row == start + at);
        is_run.then_some((&held.block.batch, start))
    }
}
