//! Finds the rows of a window whose model inputs are equal, so that each input is computed once.
//!
//! Hashes find candidates, values decide. If different inputs have one hash, only rows equal to the
//! first of them are shared; the others are computed each for itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DynComparator, RecordBatch, make_comparator};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::SortOptions;
use datafusion::common::hash_utils::{RandomState, combine_hashes, create_hashes};

use super::batcher::Row;
use super::rows::prepared_columns;

/// A block's model inputs and their hashes.
#[derive(Debug)]
pub(super) struct Inputs {
    columns: Vec<ArrayRef>,
    hashes: Vec<u64>,
    /// A row with a NULL never reaches the model: there is nothing to share.
    valid: Option<NullBuffer>,
}

impl Inputs {
    /// Hashes a block's prepared columns; `None` if there are none that can be hashed.
    pub(super) fn of(batch: &RecordBatch) -> Option<Self> {
        let columns: Vec<ArrayRef> = prepared_columns(batch).map(|(_, column)| column).collect();
        let mut hashes = vec![0; batch.num_rows()];
        if columns.is_empty() {
            return None;
        }
        for column in &columns {
            add_hashes(column, &mut hashes)?;
        }
        let valid = columns.iter().fold(None, |valid, column| {
            NullBuffer::union(valid.as_ref(), column.logical_nulls().as_ref())
        });
        Some(Self { columns, hashes, valid })
    }
}

/// Mixes each row's value into its hash; `None` for types that cannot be hashed.
fn add_hashes(column: &ArrayRef, hashes: &mut [u64]) -> Option<()> {
    if let Some(lists) = NumberLists::of(column) {
        let state = RandomState::with_seed(0);
        for (row, hash) in hashes.iter_mut().enumerate() {
            *hash = state.hash_one((*hash, lists.bytes(row)));
        }
        return Some(());
    }
    let mut own = vec![0; hashes.len()];
    create_hashes([column], &RandomState::with_seed(0), &mut own).ok()?;
    hashes.iter_mut().zip(own).for_each(|(hash, own)| *hash = combine_hashes(*hash, own));
    Some(())
}

/// Lists of numbers: tokens, pixels and vectors, which are most of what passes here. A run of bytes is
/// hashed ten times as fast as its items one by one. Lists with NULLs in them may have different bytes
/// there, and are then not found to be equal.
struct NumberLists {
    items: Buffer,
    /// Where each list starts and ends in `items`.
    ends: Vec<(usize, usize)>,
}

impl NumberLists {
    fn of(column: &ArrayRef) -> Option<Self> {
        let (items, ends): (&ArrayRef, Vec<_>) = if let Some(lists) = column.as_list_opt::<i32>() {
            let ends = lists.value_offsets().windows(2);
            (lists.values(), ends.map(|ends| (ends[0] as usize, ends[1] as usize)).collect())
        } else {
            let lists = column.as_fixed_size_list_opt()?;
            let width = lists.value_length() as usize;
            let ends = (0..lists.len()).map(|row| (row * width, (row + 1) * width));
            (lists.values(), ends.collect())
        };
        let item_bytes = items.data_type().primitive_width()?;
        let data = items.to_data();
        let (start, bytes) = (data.offset() * item_bytes, data.len() * item_bytes);
        let items = data.buffers().first()?.slice_with_length(start, bytes);
        let in_bytes = |(start, end)| (start * item_bytes, end * item_bytes);
        Some(Self { items, ends: ends.into_iter().map(in_bytes).collect() })
    }

    fn bytes(&self, row: usize) -> &[u8] {
        let (start, end) = self.ends[row];
        &self.items[start..end]
    }
}

/// The rows of a window, and which of them is the first with its inputs.
#[derive(Default)]
pub(super) struct Sharer {
    blocks: Vec<Arc<Inputs>>,
    /// Where each block's rows start, counted through all blocks.
    starts: Vec<usize>,
    /// For each row the first row with the same inputs: often itself.
    firsts: Vec<usize>,
    /// By hash, the block and row that came first.
    known: HashMap<u64, (usize, usize), RandomState>,
    /// For the pairs of blocks that were asked for; `None` for types that cannot be compared.
    comparators: HashMap<(usize, usize), Option<Vec<DynComparator>>>,
}

impl Sharer {
    /// Adds a block; for each of its rows whether it is the first with its inputs.
    pub(super) fn push(&mut self, block: Arc<Inputs>) -> impl Iterator<Item = bool> {
        let (at, start) = (self.blocks.len(), self.firsts.len());
        self.blocks.push(Arc::clone(&block));
        self.starts.push(start);
        // Once for the block, instead of each time that the table doubles.
        self.known.reserve(block.hashes.len());
        for (row, hash) in block.hashes.iter().enumerate() {
            let own = start + row;
            let is_valid = block.valid.as_ref().is_none_or(|valid| valid.is_valid(row));
            let first = match self.known.entry(*hash) {
                _ if !is_valid => None,
                Entry::Vacant(entry) => {
                    entry.insert((at, row));
                    None
                }
                Entry::Occupied(entry) => Some(*entry.get()),
            };
            let first = first.filter(|first| self.are_equal(*first, (at, row)));
            self.firsts.push(first.map_or(own, |(block, row)| self.starts[block] + row));
        }
        (start..self.firsts.len()).map(|row| self.firsts[row] == row)
    }

    fn are_equal(&mut self, left: (usize, usize), right: (usize, usize)) -> bool {
        let blocks = &self.blocks;
        let comparators = self.comparators.entry((left.0, right.0)).or_insert_with(|| {
            let pairs = blocks[left.0].columns.iter().zip(&blocks[right.0].columns);
            pairs.map(|(l, r)| make_comparator(l, r, SortOptions::default()).ok()).collect()
        });
        comparators
            .as_ref()
            .is_some_and(|columns| columns.iter().all(|compare| compare(left.1, right.1).is_eq()))
    }

    /// Who follows whom, once all blocks are in.
    pub(super) fn chains(&self) -> Chains<'_> {
        let mut next = vec![None; self.firsts.len()];
        // Backwards, so that each chain is in the order of rows.
        for (row, first) in self.firsts.iter().enumerate().rev() {
            if row != *first {
                next[row] = next[*first].replace(row);
            }
        }
        Chains { sharer: self, next }
    }
}

impl fmt::Debug for Sharer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharer").field("firsts", &self.firsts).finish_non_exhaustive()
    }
}

/// The rows of a window, chained by equal inputs.
#[derive(Debug)]
pub(super) struct Chains<'a> {
    sharer: &'a Sharer,
    /// The next row with the same inputs.
    next: Vec<Option<usize>>,
}

impl Chains<'_> {
    /// Whether the row is the first with its inputs.
    pub(super) fn is_first(&self, row: &Row) -> bool {
        let at = self.sharer.starts[row.block as usize] + row.index as usize;
        self.sharer.firsts[at] == at
    }

    /// Block and index of the rows after the first one with its inputs.
    pub(super) fn followers(&self, first: &Row) -> impl Iterator<Item = (u32, u32)> {
        let starts = &self.sharer.starts;
        let at = starts[first.block as usize] + first.index as usize;
        std::iter::successors(self.next[at], |row| self.next[*row]).map(|row| {
            let block = starts.partition_point(|start| *start <= row) - 1;
            let index = row - starts[block];
            (u32::try_from(block).unwrap_or(u32::MAX), u32::try_from(index).unwrap_or(u32::MAX))
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{FixedSizeListArray, Int32Array, ListArray, StringArray};
    use arrow::datatypes::Int32Type;
    use proptest::prelude::*;

    use super::*;

    fn inputs(keys: &[Option<u8>]) -> Inputs {
        let lists = keys
            .iter()
            .map(|key| key.map(|key| vec![Some(i32::from(key)); 1 + usize::from(key) % 3]));
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let texts: StringArray =
            keys.iter().map(|key| key.map(|key| format!("{}", key / 2))).collect();
        let ids = Int32Array::from_iter_values(0..i32::try_from(keys.len()).unwrap());
        let columns: [(&str, ArrayRef); 3] = [
            ("id", Arc::new(ids)),
            (crate::TOKENS_COLUMN, Arc::new(lists)),
            ("__forebay_tensor_1", Arc::new(texts)),
        ];
        Inputs::of(&RecordBatch::try_from_iter(columns).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn equal_rows_and_no_others_share(
            blocks in prop::collection::vec(prop::collection::vec(prop::option::of(0u8..9), 0..20), 0..6)
        ) {
            let mut sharer = Sharer::default();
            for keys in &blocks {
                sharer.push(Arc::new(inputs(keys))).for_each(drop);
            }
            let keys = blocks.concat();
            for (row, key) in keys.iter().enumerate() {
                let first = keys.iter().position(|other| other == key && key.is_some());
                prop_assert_eq!(sharer.firsts[row], first.unwrap_or(row));
            }
            let chains = sharer.chains();
            let mut seen = Vec::new();
            for (block, keys) in (0..).zip(&blocks) {
                for index in 0..u32::try_from(keys.len()).unwrap() {
                    let row = Row { block, index, length: 0, bytes: 0 };
                    if chains.is_first(&row) {
                        seen.push((block, index));
                        seen.extend(chains.followers(&row));
                    }
                }
            }
            seen.sort_unstable();
            let all = (0..).zip(&blocks).flat_map(|(block, keys)| {
                (0..u32::try_from(keys.len()).unwrap()).map(move |index| (block, index))
            });
            prop_assert!(seen.into_iter().eq(all));
        }
    }

    /// Slices start elsewhere in their buffers, and lists of every kind must hash by their own values.
    #[test]
    fn equal_lists_have_equal_hashes_wherever_they_are() {
        let rows = [1, 2, 1, 3, 2, 1].map(|key| Some(vec![Some(key), Some(key + 1)]));
        let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(rows.clone(), 2);
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(rows);
        for column in [Arc::new(fixed) as ArrayRef, Arc::new(lists)] {
            let hashes = |column: ArrayRef| {
                let mut hashes = vec![0; column.len()];
                add_hashes(&column, &mut hashes).unwrap();
                hashes
            };
            let whole = hashes(Arc::clone(&column));
            assert_eq!([whole[0], whole[1], whole[0]], [whole[2], whole[4], whole[5]]);
            assert!(whole[0] != whole[1] && whole[1] != whole[3] && whole[0] != whole[3]);
            assert_eq!(hashes(column.slice(2, 4)), whole[2..]);
        }
    }

    #[test]
    fn rows_of_one_hash_and_different_values_stay_apart() {
        let mut block = inputs(&[Some(1), Some(2), Some(1), Some(2)]);
        block.hashes = vec![7; 4];
        let mut sharer = Sharer::default();
        let firsts: Vec<bool> = sharer.push(Arc::new(block)).collect();
        assert_eq!(firsts, [true, true, false, true]);
    }
}
