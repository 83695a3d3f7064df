//! To another sample rate.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

use super::decode::Audio;
use super::limits::check_samples;

/// Samples that are transformed at once, about.
const CHUNK: usize = 1024;

/// Samples that are transformed at once at most, at either rate. 768,000 and 767,999 Hz, which have no
/// common divisor, take a third of it; 1 and 768,000 Hz would take gigabytes.
const BLOCK_MAX: usize = 1 << 22;

/// The same audio at another rate; frequencies that it cannot hold are filtered out.
pub(super) fn resample(audio: Audio, sample_rate: u32) -> Result<Audio, String> {
    if audio.sample_rate == sample_rate || audio.samples.is_empty() {
        return Ok(Audio { sample_rate, ..audio });
    }
    let length = audio.samples.len();
    let expected = length as u128 * u128::from(sample_rate) / u128::from(audio.sample_rate.max(1));
    check_samples(u64::try_from(expected).unwrap_or(u64::MAX))?;
    let problem = |error: &dyn std::fmt::Display| {
        format!("{} Hz cannot be resampled to {sample_rate} Hz: {error}", audio.sample_rate)
    };
    let (from, to) = (audio.sample_rate as usize, sample_rate as usize);
    let block = block(from, to).ok_or_else(|| problem(&"the rates are too far apart"))?;
    let filter = WindowFunction::BlackmanHarris2;
    let mut resampler = Fft::<f32>::new_custom(from, to, block, 1, 1, filter, FixedSync::Input)
        .map_err(|e| problem(&e))?;
    let input =
        InterleavedSlice::new(audio.samples.as_slice(), 1, length).map_err(|e| problem(&e))?;
    let resampled = resampler.process_all(&input, length, None).map_err(|e| problem(&e))?;
    Ok(Audio { samples: resampled.take_data(), sample_rate, channels: audio.channels })
}

/// An even number of the smallest blocks in which both rates have whole samples. Half of a block is how
/// late the result is, and is cut off: half a sample too much would be a shift. `None` if it would be
/// too large at either rate.
fn block(from: usize, to: usize) -> Option<usize> {
    let divisor = greatest_common_divisor(from, to).max(1);
    let (smallest, result) = ((from / divisor).max(1), to / divisor);
    let blocks = 2 * (CHUNK / 2).div_ceil(smallest);
    (blocks * smallest.max(result) <= BLOCK_MAX).then_some(blocks * smallest)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
