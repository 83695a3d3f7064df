//! Rows → blocks. The rule depends on the rows alone, so that a task that runs again cuts alike.

use arrow::array::RecordBatch;
use forebay_engine::weight;
use prost::Message;

/// How large blocks become: small at first, so that what follows starts early, each up to twice as
/// large as the one before, so that long runs cost few blocks. Rows are limited beside bytes: a
/// model takes as long for a narrow row as for a wide one.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BlockSize {
    /// Bytes of Arrow data at most, but for single rows that have more.
    #[prost(uint64, tag = "1")]
    pub bytes_max: u64,
    /// Bytes of the first block at most.
    #[prost(uint64, tag = "4")]
    pub bytes_first: u64,
    /// Rows of the first block at most.
    #[prost(uint64, tag = "2")]
    pub rows_first: u64,
    /// Rows of any block at most.
    #[prost(uint64, tag = "3")]
    pub rows_max: u64,
    /// Blocks have a multiple of so many rows, where their bytes allow it.
    #[prost(uint64, tag = "5")]
    pub rows_step: u64,
    /// After so many blocks the next ones may be twice as large.
    #[prost(uint64, tag = "6")]
    pub doubles_after: u64,
}

/// Blocks of a sorted run of one size: of each the scheduler keeps a key.
const RUN_BLOCKS: u64 = 1024;

/// Windows of a model in one block at most: what one replica has to do, others do not, and with the
/// last blocks of a run they have nothing else. Where many blocks wait, one task reads several.
const WINDOWS_MAX: u64 = 4;

impl BlockSize {
    /// However much there is, it is one block.
    pub const WHOLE: Self = Self {
        bytes_max: u64::MAX,
        bytes_first: u64::MAX,
        rows_first: u64::MAX,
        rows_max: u64::MAX,
        rows_step: 1,
        doubles_after: 1,
    };

    /// At most `bytes_max` bytes.
    pub fn up_to(bytes_max: u64) -> Self {
        let (bytes_first, rows_first) = (bytes_max.min(1 << 20), 1 << 12);
        let rows_max = 1 << 20;
        Self { bytes_max, bytes_first, rows_first, rows_max, rows_step: 1, doubles_after: 1 }
    }

    /// Of a sorted run: `bytes` for long, as nothing waits for the first ones, but not more and more of them.
    pub fn of_run(bytes: u64, bytes_max: u64) -> Self {
        let size = Self::up_to(bytes_max);
        let bytes_first = bytes.min(bytes_max);
        Self { bytes_first, rows_first: size.rows_max, doubles_after: RUN_BLOCKS, ..size }
    }

    /// For a model that forms its batches within `rows` rows: whole windows, one at first.
    #[must_use]
    pub fn in_windows_of(self, rows: u32) -> Self {
        let rows = u64::from(rows);
        Self {
            bytes_first: self.bytes_max,
            rows_first: rows,
            rows_max: rows * WINDOWS_MAX,
            rows_step: rows,
            ..self
        }
    }
}

/// Cuts batches into blocks of some [`BlockSize`].
#[derive(Debug)]
pub struct Cutter {
    max: Size,
    rows_step: usize,
    /// Of the block that is open, at most.
    limit: Size,
    /// Of the block that is open.
    size: Size,
    /// Blocks before it.
    blocks: usize,
    doubles_after: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: usize,
    rows: usize,
}

/// Where a piece of a batch goes.
#[derive(Debug, PartialEq)]
pub struct Piece {
    /// Whether the open block is sealed first.
    pub starts_block: bool,
    /// A slice: it shares the batch's buffers.
    pub rows: RecordBatch,
}

impl Cutter {
    /// Blocks of this size.
    pub fn new(size: BlockSize) -> Self {
        let at_least_one = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        let max = Size { bytes: at_least_one(size.bytes_max), rows: at_least_one(size.rows_max) };
        let limit = Size {
            bytes: max.bytes.min(at_least_one(size.bytes_first)),
            rows: max.rows.min(at_least_one(size.rows_first)),
        };
        Self {
            max,
            rows_step: at_least_one(size.rows_step),
            limit,
            size: Size::default(),
            blocks: 0,
            doubles_after: at_least_one(size.doubles_after),
        }
    }

    /// The pieces of `batch`, in order.
    pub fn cut(&mut self, batch: &RecordBatch) -> Vec<Piece> {
        let rows = batch.num_rows();
        let row_bytes = weight::bytes(batch).div_ceil(rows.max(1)).max(1);
        let mut pieces = vec![];
        let mut start = 0;
        while start < rows {
            let starts_block = self.room(row_bytes) == 0 && self.size.rows > 0;
            if starts_block {
                self.start_block();
            }
            let count = self.room(row_bytes).max(1).min(rows - start);
            let piece = batch.slice(start, count);
            self.size.bytes += weight::bytes(&piece);
            self.size.rows += count;
            start += count;
            pieces.push(Piece { starts_block, rows: piece });
        }
        pieces
    }

    /// How many rows of this size the open block still takes.
    fn room(&self, row_bytes: usize) -> usize {
        let by_bytes = self.limit.bytes.saturating_sub(self.size.bytes) / row_bytes;
        let rows = self.size.rows.saturating_add(by_bytes).min(self.limit.rows);
        let steps = rows - rows % self.rows_step;
        let rows = if steps > 0 { steps } else { rows };
        rows.saturating_sub(self.size.rows)
    }

    fn start_block(&mut self) {
        self.blocks += 1;
        if self.blocks.is_multiple_of(self.doubles_after) {
            self.limit.bytes = self.limit.bytes.saturating_mul(2).min(self.max.bytes);
            self.limit.rows = self.limit.rows.saturating_mul(2).min(self.max.rows);
        }
        self.size = Size::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn numbers(rows: std::ops::Range<i64>) -> RecordBatch {
        let column = Arc::new(Int64Array::from_iter_values(rows)) as ArrayRef;
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    fn shape(pieces: &[Piece]) -> Vec<(bool, usize)> {
        pieces.iter().map(|piece| (piece.starts_block, piece.rows.num_rows())).collect()
    }

    #[test]
    fn small_batches_share_a_block_until_it_is_full() {
        let mut cutter = Cutter::new(BlockSize::up_to(80));
        assert_eq!(shape(&cutter.cut(&numbers(0..5))), [(false, 5)]);
        assert_eq!(shape(&cutter.cut(&numbers(5..10))), [(false, 5)]);
        assert_eq!(shape(&cutter.cut(&numbers(10..11))), [(true, 1)]);
    }

    #[test]
    fn a_large_batch_becomes_several_blocks() {
        let mut cutter = Cutter::new(BlockSize::up_to(80));
        let pieces = cutter.cut(&numbers(0..35));
        assert_eq!(shape(&pieces), [(false, 10), (true, 10), (true, 10), (true, 5)]);
    }

    #[test]
    fn blocks_grow_up_to_the_maximum() {
        let mut cutter = Cutter::new(BlockSize::up_to(1 << 17));
        let pieces = cutter.cut(&numbers(0..1 << 16));
        let rows: Vec<usize> = pieces.iter().map(|piece| piece.rows.num_rows() >> 12).collect();
        assert_eq!(rows, [1, 2, 4, 4, 4, 1]);
    }

    #[test]
    fn a_long_run_has_larger_blocks_and_not_many_more() {
        let rows = |bytes, bytes_max| -> Vec<usize> {
            let pieces = Cutter::new(BlockSize::of_run(bytes, bytes_max)).cut(&numbers(0..9000));
            pieces.iter().map(|piece| piece.rows.num_rows()).collect()
        };
        let mut expected: Vec<usize> = [[1; 1024], [2; 1024]].concat();
        expected.extend([4; 1482]);
        assert_eq!(rows(8, 32), expected);
        assert_eq!(rows(8, 8), [1; 9000]);
        assert_eq!(rows(80_000, 8000), [1000; 9]);
    }

    #[test]
    fn blocks_for_a_model_grow_from_its_window() {
        let mut cutter = Cutter::new(BlockSize::up_to(1 << 30).in_windows_of(2));
        let pieces = cutter.cut(&numbers(0..36));
        let rows: Vec<usize> = pieces.iter().map(|piece| piece.rows.num_rows()).collect();
        assert_eq!(rows, [2, 4, 8, 8, 8, 6]);
    }

    #[test]
    fn blocks_for_a_model_have_whole_windows_where_bytes_allow_it() {
        let rows = |bytes_max, window| -> Vec<usize> {
            let mut cutter = Cutter::new(BlockSize::up_to(bytes_max).in_windows_of(window));
            let pieces = cutter.cut(&numbers(0..50));
            pieces.iter().map(|piece| piece.rows.num_rows()).collect()
        };
        assert_eq!(rows(8 * 13, 10), [10, 10, 10, 10, 10]);
        assert_eq!(rows(8 * 25, 10), [10, 20, 20]);
        assert_eq!(rows(8 * 13, 20), [13, 13, 13, 11]);
    }

    #[test]
    fn whole_output_is_one_block() {
        let mut cutter = Cutter::new(BlockSize::WHOLE);
        assert_eq!(shape(&cutter.cut(&numbers(0..1 << 18))), [(false, 1 << 18)]);
        assert_eq!(shape(&cutter.cut(&numbers(0..1 << 18))), [(false, 1 << 18)]);
    }

    #[test]
    fn a_row_that_is_too_large_is_a_block_alone() {
        let column = Arc::new(StringArray::from(vec!["x".repeat(1000), "y".to_owned()]));
        let batch = RecordBatch::try_from_iter([("t", column as ArrayRef)]).unwrap();
        let mut cutter = Cutter::new(BlockSize::up_to(80));
        assert_eq!(shape(&cutter.cut(&batch)), [(false, 1), (true, 1)]);
    }

    #[test]
    fn a_slice_is_as_large_as_its_rows() {
        let sliced = numbers(0..1000).slice(10, 5);
        assert_eq!(weight::bytes(&sliced), weight::bytes(&numbers(10..15)));
    }

    #[test]
    fn no_rows_are_no_piece_too_many() {
        let mut cutter = Cutter::new(BlockSize::up_to(80));
        assert_eq!(shape(&cutter.cut(&numbers(0..0))), []);
    }
}
