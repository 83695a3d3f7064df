//! Whether blocks are compressed. Texts and numbers shrink; pixels and what is compressed already do
//! not, and for them each attempt costs more than writing the block.

use arrow::array::{ArrayData, RecordBatch};
use arrow::ipc::CompressionType;

/// Bytes of each buffer that are looked at, from its middle.
const SAMPLE_BYTES: usize = 16 << 10;

/// LZ4, if samples say that rows like these take less than nine tenths of their size with it.
pub(super) fn for_rows_like(batch: &RecordBatch) -> Option<CompressionType> {
    let mut sizes = Sizes::default();
    for column in batch.columns() {
        sizes.add(&column.to_data());
    }
    (sizes.compressed < sizes.plain * 0.9).then_some(CompressionType::LZ4_FRAME)
}

#[derive(Default)]
struct Sizes {
    plain: f64,
    compressed: f64,
}

impl Sizes {
    fn add(&mut self, data: &ArrayData) {
        for buffer in data.buffers() {
            let sample = middle(buffer.as_slice());
            if !sample.is_empty() {
                let share = lz4_flex::block::compress(sample).len() as f64 / sample.len() as f64;
                self.plain += buffer.len() as f64;
                self.compressed += buffer.len() as f64 * share;
            }
        }
        data.child_data().iter().for_each(|child| self.add(child));
    }
}

fn middle(bytes: &[u8]) -> &[u8] {
    let length = bytes.len().min(SAMPLE_BYTES);
    let start = (bytes.len() - length) / 2;
    &bytes[start..start + length]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, Int64Array, StringArray};
    use forebay_testkit::random::Random;

    use super::*;

    fn of(column: impl arrow::array::Array + 'static) -> Option<CompressionType> {
        let column: ArrayRef = Arc::new(column);
        for_rows_like(&RecordBatch::try_from_iter([("column", column)]).unwrap())
    }

    #[test]
    fn what_shrinks_is_compressed() {
        let text = "a basin in front of a turbine, so that it never runs dry";
        assert!(of(StringArray::from(vec![text; 1000])).is_some());
        assert!(of(Int64Array::from_iter_values(0..10_000)).is_some());
    }

    #[test]
    fn noise_is_not() {
        let noise = Random::new(1).bytes(100_000);
        assert!(of(BinaryArray::from_iter_values(noise.chunks(10_000))).is_none());
        let pixels = FixedSizeBinaryArray::try_from_iter(noise.chunks(1000)).unwrap();
        assert!(of(pixels.slice(3, 40)).is_none());
    }

    #[test]
    fn nothing_needs_no_compression() {
        assert!(of(Int64Array::from_iter_values([])).is_none());
        assert!(of(arrow::array::NullArray::new(7)).is_none());
    }
}
