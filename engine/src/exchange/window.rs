//! A run of rows that waits, and the batches that it is cut into.

use std::collections::VecDeque;
use std::sync::Arc;

use super::batcher::{Batching, Row, Size, cut};
use super::budget::Permit;
use super::rows::{input_bytes, token_lengths};
use super::seal::{SealPolicy, Work};
use super::share::{Chains, Inputs, Sharer};
use crate::weight;
use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, interleave_record_batch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;

/// Whether equal model inputs are computed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every row is computed.
    None,
    /// Within a window. Only for models that give equal outputs for equal inputs.
    EqualInputs,
}

/// Rows as a producer hands them over, weighed.
#[derive(Debug)]
pub(super) struct Block {
    batch: RecordBatch,
    lengths: Option<Vec<u32>>,
    /// If equal inputs are to be shared.
    inputs: Option<Arc<Inputs>>,
    input_bytes: u64,
    bytes: usize,
}

impl Block {
    pub(super) fn new(batch: RecordBatch, sharing: Sharing) -> Self {
        Self {
            lengths: token_lengths(&batch),
            inputs: (sharing == Sharing::EqualInputs)
                .then(|| Inputs::of(&batch))
                .flatten()
                .map(Arc::new),
            input_bytes: input_bytes(&batch) as u64,
            bytes: weight::bytes(&batch),
            batch,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tokens of all rows; 0 if they have none.
    pub(super) fn tokens(&self) -> u64 {
        let lengths = self.lengths.iter().flatten();
        lengths.map(|length| u64::from(*length)).sum()
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
    /// If equal inputs are shared.
    sharer: Option<Sharer>,
    work: Work,
}

impl Window {
    pub(super) fn push(&mut self, block: Block, permit: Permit) {
        self.rows += block.rows();
        self.bytes += block.bytes();
        let rows = block.rows_of(self.blocks.len());
        match &block.inputs {
            Some(inputs) => {
                let firsts = self.sharer.get_or_insert_default().push(Arc::clone(inputs));
                let distinct = rows.zip(firsts).filter(|(_, is_first)| *is_first);
                distinct.for_each(|(row, _)| self.work.add(&row));
            }
            None => rows.for_each(|row| self.work.add(&row)),
        }
        self.blocks.push(Arc::new(Held { block, _permit: permit }));
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What of it the model will compute.
    pub(super) fn work(&self) -> Work {
        self.work
    }

    /// Cuts all rows into batches.
    pub(super) fn seal(self, policy: &SealPolicy) -> VecDeque<Planned> {
        let has_tokens = self.blocks.iter().any(|held| held.block.lengths.is_some());
        let batching = if has_tokens { Batching::Tokens } else { Batching::Rows };
        let rows = self.blocks.iter().enumerate();
        let rows = rows.flat_map(|(at, held)| held.block.rows_of(at));
        let chains = self.sharer.as_ref().map(Sharer::chains);
        let rows = match &chains {
            Some(chains) => rows.filter(|row| chains.is_first(row)).collect(),
            None => rows.collect(),
        };
        let batches = cut(rows, batching, &policy.limits, policy.multiple).into_iter();
        batches.map(|rows| self.plan(&rows, chains.as_ref(), policy)).collect()
    }

    /// The batch of these rows, each followed by the rows that share its inputs.
    fn plan(&self, rows: &[Row], chains: Option<&Chains>, policy: &SealPolicy) -> Planned {
        let mut local = vec![None; self.blocks.len()];
        let mut blocks = Vec::new();
        let mut place = |block: u32, index: u32| {
            let at = *local[block as usize].get_or_insert_with(|| {
                blocks.push(Arc::clone(&self.blocks[block as usize]));
                blocks.len() - 1
            });
            (at, index as usize)
        };
        let mut places = Vec::with_capacity(rows.len());
        let mut groups = chains.map(|_| Vec::with_capacity(rows.len()));
        for (group, row) in rows.iter().enumerate() {
            let before = places.len();
            places.push(place(row.block, row.index));
            for (block, index) in chains.iter().flat_map(|chains| chains.followers(row)) {
                places.push(place(block, index));
            }
            if let Some(groups) = &mut groups {
                let group = u32::try_from(group).unwrap_or(u32::MAX);
                groups.resize(groups.len() + places.len() - before, group);
            }
        }
        let size = rows.iter().fold(Size::rounded_to(policy.multiple), |size, row| size.with(row));
        let tokens = rows.iter().map(|row| u64::from(row.length)).sum();
        let shared_rows = places.len() - rows.len();
        let is_full = policy.is_full(size);
        Planned { blocks, places, groups, shared_rows, is_full, size, tokens }
    }
}

/// A batch before its rows are gathered. Holds the blocks that they are in.
#[derive(Debug)]
pub(super) struct Planned {
    blocks: Vec<Arc<Held>>,
    places: Vec<(usize, usize)>,
    /// For each row the number of its inputs within the batch, if equal ones are shared.
    groups: Option<Vec<u32>>,
    /// Whether hardly another row would have fitted.
    pub(super) is_full: bool,
    /// Rows that need no computation of their own.
    pub(super) shared_rows: usize,
    /// Of the rows that are computed.
    size: Size,
    /// Tokens that the rows have.
    pub(super) tokens: u64,
}

impl Planned {
    /// Tokens that the device will compute.
    pub(super) fn padded_tokens(&self) -> u64 {
        self.size.padded()
    }

    /// With the batches that were cut behind it from the same window, as far as they fit: limits may have become
    /// larger since.
    pub(super) fn grown(mut self, behind: &mut VecDeque<Self>, policy: &SealPolicy) -> Self {
        let fits = |size: Size, next: &Self| size.and(next.size).is_within(&policy.limits);
        while let Some(next) = behind.pop_front_if(|next| fits(self.size, next)) {
            self.append(next);
            self.is_full = policy.is_full(self.size);
        }
        self
    }

    fn append(&mut self, other: Self) {
        let own = |held: Arc<Held>| {
            let known = self.blocks.iter().position(|own| Arc::ptr_eq(own, &held));
            known.unwrap_or_else(|| {
                self.blocks.push(held);
                self.blocks.len() - 1
            })
        };
        let blocks: Vec<usize> = other.blocks.into_iter().map(own).collect();
        self.places.extend(other.places.into_iter().map(|(block, row)| (blocks[block], row)));
        self.groups = self.groups.take().zip(other.groups).map(|(mut groups, others)| {
            let next = groups.last().map_or(0, |last| last + 1);
            groups.extend(others.into_iter().map(|group| group + next));
            groups
        });
        self.size = self.size.and(other.size);
        self.shared_rows += other.shared_rows;
        self.tokens += other.tokens;
    }

    /// Copies the rows together; gives the blocks' bytes back if nobody else needs them. `schema`
    /// has the blocks' columns, and [`SHARE_COLUMN`](crate::SHARE_COLUMN) behind them if equal
    /// inputs are shared.
    pub(super) fn gather(self, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        let mut columns = self.rows()?.columns().to_vec();
        if columns.len() < schema.fields().len() {
            let rows = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
            // A block that could not be hashed: every row for itself.
            let groups = self.groups.unwrap_or_else(|| (0..rows).collect());
            columns.push(Arc::new(UInt32Array::from(groups)));
        }
        RecordBatch::try_new(Arc::clone(schema), columns)
    }

    /// The rows of some batches, at least one, as one.
    pub(super) fn rows_of_all<'a>(
        batches: impl IntoIterator<Item = &'a Self>,
    ) -> Result<RecordBatch, ArrowError> {
        let batches = batches.into_iter().map(Self::rows).collect::<Result<Vec<_>, _>>()?;
        let schema = batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
        concat_batches(&schema, &batches)
    }

    /// The rows, with the blocks' columns.
    fn rows(&self) -> Result<RecordBatch, ArrowError> {
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
