//! Rows → blocks. The rule depends on the rows alone, so that a task that runs again cuts alike.

use arrow::array::{Array, RecordBatch};

/// Cuts batches so that no block holds more than a number of bytes, but for single rows that do.
#[derive(Debug)]
pub struct Cutter {
    bytes_max: usize,
    /// Of the block that is open.
    bytes: usize,
}

/// Where a piece of a batch goes.
#[derive(Debug, PartialEq)]
pub struct Piece {
    /// Whether the open block is sealed first.
    pub starts_block: bool,
    /// The rows.
    pub rows: RecordBatch,
}

impl Cutter {
    /// Blocks of at most `bytes_max` bytes of Arrow data.
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max: bytes_max.max(1), bytes: 0 }
    }

    /// The pieces of `batch`, in order.
    pub fn cut(&mut self, batch: &RecordBatch) -> Vec<Piece> {
        let rows = batch.num_rows();
        let size = bytes(batch);
        let parts = size.div_ceil(self.bytes_max).clamp(1, rows.max(1));
        (0..parts)
            .map(|part| self.place(batch, part * rows / parts, (part + 1) * rows / parts))
            .collect()
    }

    fn place(&mut self, batch: &RecordBatch, start: usize, end: usize) -> Piece {
        let rows = batch.slice(start, end - start);
        let size = bytes(&rows);
        let starts_block = self.bytes > 0 && self.bytes + size > self.bytes_max;
        self.bytes = if starts_block { size } else { self.bytes + size };
        Piece { starts_block, rows }
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
        assert_eq!(shape(&pieces), [(false, 8), (true, 9), (true, 9), (true, 9)]);
        let rows: usize = pieces.iter().map(|piece| piece.rows.num_rows()).sum();
        assert_eq!(rows, 35);
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
        assert_eq!(shape(&cutter.cut(&numbers(0..0))), [(false, 0)]);
    }
}
