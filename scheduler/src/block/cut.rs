//! Rows → blocks. The rule depends on the rows alone, so that a task that runs again cuts alike.

use arrow::array::{Array, RecordBatch};

/// Cuts batches so that no block holds more than a number of bytes, but for single rows that do.
///
/// The first block is small and each one may be twice as large as the one before, up to the
/// maximum: what follows starts early, and long runs cost few blocks. Rows are limited alike: a
/// model takes as long for a narrow row as for a wide one.
#[derive(Debug)]
pub struct Cutter {
    bytes_max: usize,
    /// Of the block that is open, at most.
    limit: Size,
    /// Of the block that is open.
    size: Size,
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    bytes: usize,
    rows: usize,
}

/// Of the first block.
const FIRST: Size = Size { bytes: 1 << 20, rows: 1 << 12 };

/// Of any block.
const ROWS_MAX: usize = 1 << 20;

/// Where a piece of a batch goes.
#[derive(Debug, PartialEq)]
pub struct Piece {
    /// Whether the open block is sealed first.
    pub starts_block: bool,
    /// The rows.
    pub rows: RecordBatch,
}

impl Cutter {
    /// Blocks of at most `bytes_max` bytes of Arrow data; `usize::MAX` makes one of all.
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.max(1);
        let limit = match bytes_max {
            usize::MAX => Size { bytes: usize::MAX, rows: usize::MAX },
            _ => Size { bytes: bytes_max.min(FIRST.bytes), ..FIRST },
        };
        Self { bytes_max, limit, size: Size::default() }
    }

    /// The pieces of `batch`, in order.
    pub fn cut(&mut self, batch: &RecordBatch) -> Vec<Piece> {
        let rows = batch.num_rows();
        let row_bytes = bytes(batch).div_ceil(rows.max(1)).max(1);
        let mut pieces = vec![];
        let mut start = 0;
        while start < rows {
            let starts_block = self.room(row_bytes) == 0 && self.size.rows > 0;
            if starts_block {
                self.start_block();
            }
            let count = self.room(row_bytes).max(1).min(rows - start);
            let piece = batch.slice(start, count);
            self.size.bytes += bytes(&piece);
            self.size.rows += count;
            start += count;
            pieces.push(Piece { starts_block, rows: piece });
        }
        pieces
    }

    /// How many rows of this size the open block still takes.
    fn room(&self, row_bytes: usize) -> usize {
        let by_bytes = self.limit.bytes.saturating_sub(self.size.bytes) / row_bytes;
        by_bytes.min(self.limit.rows.saturating_sub(self.size.rows))
    }

    fn start_block(&mut self) {
        self.limit.bytes = self.limit.bytes.saturating_mul(2).min(self.bytes_max);
        self.limit.rows = (self.limit.rows * 2).min(ROWS_MAX);
        self.size = Size::default();
    }
}

/// The bytes that the rows of a batch need, whatever its buffers hold beside them.
pub fn bytes(batch: &RecordBatch) -> usize {
    let of = |column: &arrow::array::ArrayRef| {
        let data = column.to_data();
        data.get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
    };
    batch.columns().iter().map(of).sum()
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
        let mut cutter = Cutter::new(80);
        assert_eq!(shape(&cutter.cut(&numbers(0..5))), [(false, 5)]);
        assert_eq!(shape(&cutter.cut(&numbers(5..10))), [(false, 5)]);
        assert_eq!(shape(&cutter.cut(&numbers(10..11))), [(true, 1)]);
    }

    #[test]
    fn a_large_batch_becomes_several_blocks() {
        let mut cutter = Cutter::new(80);
        let pieces = cutter.cut(&numbers(0..35));
        assert_eq!(shape(&pieces), [(false, 10), (true, 10), (true, 10), (true, 5)]);
    }

    #[test]
    fn blocks_grow_up_to_the_maximum() {
        let mut cutter = Cutter::new(1 << 17);
        let pieces = cutter.cut(&numbers(0..1 << 16));
        let rows: Vec<usize> = pieces.iter().map(|piece| piece.rows.num_rows() >> 12).collect();
        assert_eq!(rows, [1, 2, 4, 4, 4, 1]);
    }

    #[test]
    fn a_row_that_is_too_large_is_a_block_alone() {
        let column = Arc::new(StringArray::from(vec!["x".repeat(1000), "y".to_owned()]));
        let batch = RecordBatch::try_from_iter([("t", column as ArrayRef)]).unwrap();
        let mut cutter = Cutter::new(80);
        assert_eq!(shape(&cutter.cut(&batch)), [(false, 1), (true, 1)]);
    }

    #[test]
    fn a_slice_is_as_large_as_its_rows() {
        let sliced = numbers(0..1000).slice(10, 5);
        assert_eq!(bytes(&sliced), bytes(&numbers(10..15)));
    }

    #[test]
    fn no_rows_are_no_piece_too_many() {
        let mut cutter = Cutter::new(80);
        assert_eq!(shape(&cutter.cut(&numbers(0..0))), []);
    }
}
