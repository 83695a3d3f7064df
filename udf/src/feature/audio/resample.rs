//! To another sample rate.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

use super::decode::Audio;
use super::limits::check_samples;

/// Samples that are transformed at once, about.
const CHUNK: usize = 1024;

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
    let filter = WindowFunction::BlackmanHarris2;
    let mut resampler =
        Fft::<f32>::new_custom(from, to, block(from, to), 1, 1, filter, FixedSync::Input)
            .map_err(|e| problem(&e))?;
    let input =
        InterleavedSlice::new(audio.samples.as_slice(), 1, length).map_err(|e| problem(&e))?;
    let resampled = resampler.process_all(&input, length, None).map_err(|e| problem(&e))?;
    Ok(Audio { samples: resampled.take_data(), sample_rate, channels: audio.channels })
}

/// An even number of the smallest blocks in which both rates have whole samples. Half of a block is how
/// late the result is, and is cut off: half a sample too much would be a shift.
fn block(from: usize, to: usize) -> usize {
    let smallest = from / greatest_common_divisor(from, to).max(1);
    2 * (CHUNK / 2).div_ceil(smallest.max(1)) * smallest
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
