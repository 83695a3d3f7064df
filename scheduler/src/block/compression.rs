//! Whether blocks are compressed: where a disk and a network are spared more than it takes. Pixels, and what is compressed
//! already, do not shrink; and a disk that takes bytes as fast as memory is not spared much.

use std::time::{Duration, Instant};

use arrow::array::{ArrayData, RecordBatch};
use arrow::ipc::CompressionType;
use parking_lot::Mutex;

/// Bytes of each buffer that are looked at, from its middle.
const SAMPLE_BYTES: usize = 16 << 10;

/// Of less than this a clock tells nothing.
const LITTLE_BYTES: f64 = (16 << 10) as f64;

/// What takes more than this of its size is left as it is, whatever it costs.
const SHARE_MAX: f64 = 0.9;

/// What it takes to compress bytes and to have them back, relative to the former alone: LZ4 is taken to give them back
/// about three times as fast, which nobody measures.
const THERE_AND_BACK: f64 = 1.35;

/// What bytes of blocks cost a thread of a worker, beside making them.
#[derive(Debug, Default)]
pub struct ByteCost {
    /// Of its disk, as it was lately.
    written: Mutex<Written>,
    /// Seconds per byte of its network.
    sending: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Written {
    bytes: f64,
    seconds: f64,
}

impl ByteCost {
    /// Bytes of which it is remembered how long they took.
    const REMEMBERED: f64 = (1 << 30) as f64;

    /// From so many on it is believed.
    const BELIEVED: f64 = (4 << 20) as f64;

    /// Bytes per second that a network takes of a machine, which nobody has measured: 10 Gbit.
    const NETWORK: f64 = 1.25e9;

    /// Where so many threads share a network, over which others read.
    pub fn with_network(threads: u32) -> Self {
        Self { sending: f64::from(threads) / Self::NETWORK, ..Self::default() }
    }

    /// So many bytes took this long to write.
    pub(super) fn wrote(&self, bytes: u64, took: Duration) {
        let mut written = self.written.lock();
        written.bytes += bytes as f64;
        written.seconds += took.as_secs_f64();
        if written.bytes > Self::REMEMBERED {
            *written = Written { bytes: written.bytes / 2.0, seconds: written.seconds / 2.0 };
        }
    }

    /// Seconds per byte. None before anything is known.
    pub(super) fn seconds(&self) -> Option<f64> {
        let Written { bytes, seconds } = *self.written.lock();
        (bytes >= Self::BELIEVED).then(|| seconds / bytes + self.sending)
    }
}

/// LZ4, if samples say that rows like these shrink with it, and that this is worth its time where a byte costs so many
/// seconds; if nobody knows, it is.
pub(super) fn for_rows_like(
    batch: &RecordBatch,
    seconds_per_byte: Option<f64>,
) -> Option<CompressionType> {
    let mut sample = Sample::default();
    for column in batch.columns() {
        sample.add(&column.to_data());
    }
    sample.is_worth_it(seconds_per_byte).then_some(CompressionType::LZ4_FRAME)
}

/// What was found out with some of a batch's bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Of the whole batch.
    plain: f64,
    /// What that would take, compressed.
    compressed: f64,
    /// How long that would take.
    seconds: f64,
}

impl Sample {
    fn add(&mut self, data: &ArrayData) {
        for buffer in data.buffers() {
            let sample = middle(buffer.as_slice());
            if !sample.is_empty() {
                let start = Instant::now();
                let compressed = lz4_flex::block::compress(sample).len() as f64;
                let seconds = start.elapsed().as_secs_f64();
                let samples = buffer.len() as f64 / sample.len() as f64;
                self.plain += buffer.len() as f64;
                self.compressed += compressed * samples;
                self.seconds += seconds * samples;
            }
        }
        data.child_data().iter().for_each(|child| self.add(child));
    }

    fn is_worth_it(&self, seconds_per_byte: Option<f64>) -> bool {
        if self.compressed >= self.plain * SHARE_MAX {
            return false;
        }
        let (spared, price) = (self.plain - self.compressed, self.seconds * THERE_AND_BACK);
        let is_little = self.plain < LITTLE_BYTES;
        is_little || seconds_per_byte.is_none_or(|seconds| spared * seconds > price)
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
        let batch = RecordBatch::try_from_iter([("column", column)]).unwrap();
        for_rows_like(&batch, None)
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

    #[test]
    fn what_a_disk_takes_at_once_is_not_compressed() {
        // A nanosecond per byte, to a third.
        let sample = Sample { plain: 300e3, compressed: 100e3, seconds: 300e-6 };
        assert!(sample.is_worth_it(None));
        assert!(!sample.is_worth_it(Some(1e-9)), "two thirds of a nanosecond are spared");
        assert!(sample.is_worth_it(Some(3e-9)));
        assert!(!Sample { compressed: 280e3, ..sample }.is_worth_it(Some(1.0)));
        let little = Sample { plain: 3e3, compressed: 1e3, seconds: 1.0 };
        assert!(little.is_worth_it(Some(1e-9)));
    }

    #[test]
    fn a_disk_costs_what_it_has_cost_lately() {
        let cost = ByteCost::default();
        cost.wrote(1000, Duration::from_secs(1));
        assert_eq!(cost.seconds(), None, "too little to tell");
        let gigabytes = |count: u64, seconds| {
            (0..count).for_each(|_| cost.wrote(1 << 30, Duration::from_secs(seconds)));
            cost.seconds().unwrap() * f64::from(1 << 30)
        };
        assert!((0.99..1.01).contains(&gigabytes(20, 1)));
        assert!((7.9..8.1).contains(&gigabytes(20, 8)));
        let sent = ByteCost::with_network(16);
        sent.wrote(1 << 30, Duration::ZERO);
        assert!((12e-9..13e-9).contains(&sent.seconds().unwrap()));
    }
}
