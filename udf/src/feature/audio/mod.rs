//! Audio: from the bytes of a file to samples.
//!
//! - `decode.rs`: WAV, FLAC and MP3 → one channel of floating point numbers
//! - `resample.rs`: to another sample rate
//! - `limits.rs`: what one file may cost
//! - `functions.rs`: the functions in SQL
//!
//! As with images, decoders are fed with whatever is in a column: what a file may cost is bounded, and
//! a decoder that panics spoils its row only.

mod decode;
mod functions;
mod limits;
mod resample;
#[cfg(test)]
mod tests;

pub(super) use functions::functions;
