//! Bytes of a file → samples of one channel.

use std::io::{Cursor, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, ReadOnlySource};
use symphonia::core::meta::MetadataOptions;

use super::limits::{check_bytes, check_rate, check_samples};

/// The formats that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Wav,
    Flac,
    Mp3,
}

impl Format {
    /// By the first bytes: names and media types are often wrong.
    fn of(bytes: &[u8]) -> Result<Self, String> {
        Ok(match bytes {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Self::Wav,
            [b'f', b'L', b'a', b'C', ..] => Self::Flac,
            // A tag in front, or a frame of layer III.
            [b'I', b'D', b'3', ..] => Self::Mp3,
            [0xff, second, ..] if second & 0xe6 == 0xe2 => Self::Mp3,
            _ => {
                let first: Vec<String> =
                    bytes.iter().take(8).map(|byte| hex::encode([*byte])).collect();
                return Err(format!(
                    "the bytes, which begin with {}, are not WAV, FLAC or MP3",
                    first.join(" ")
                ));
            }
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Flac => "flac",
            Self::Mp3 => "mp3",
        }
    }
}

/// The sound of a file as one channel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Audio {
    /// The mean of all channels, from -1 to 1; of floating point files, what they hold.
    pub(super) samples: Vec<f32>,
    /// Samples per second.
    pub(super) sample_rate: u32,
    /// How many the file has, from 1.
    pub(super) channels: usize,
}

/// Decodes a file of any known format.
pub(super) fn decode(bytes: &[u8]) -> Result<Audio, String> {
    check_bytes(bytes)?;
    let format = Format::of(bytes)?;
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_as(format, bytes)))
        .unwrap_or_else(|_| Err("its decoder gave up".to_owned()));
    decoded.map_err(|problem| {
        format!("{} of {} bytes cannot be decoded: {problem}", format.name(), bytes.len())
    })
}

fn decode_as(format: Format, bytes: &[u8]) -> Result<Audio, String> {
    let stream = MediaSourceStream::new(source_of(format, bytes), Default::default());
    let mut hint = Hint::new();
    hint.with_extension(format.name());
    let (formats, tags) = (FormatOptions::default(), MetadataOptions::default());
    let reader = symphonia::default::get_probe().probe(&hint, stream, formats, tags);
    let mut reader = reader.map_err(text)?;
    let track = reader.default_track(TrackType::Audio).ok_or("it has no audio")?;
    let (id, expected) = (track.id, track.num_frames);
    check_samples(expected.unwrap_or_default())?;
    let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
    let parameters = parameters.ok_or("its header does not say how it is encoded")?;
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(text)?;
    let audio = read_all(reader.as_mut(), decoder.as_mut(), id)?;
    match expected {
        Some(expected) if (audio.samples.len() as u64) < expected.saturating_sub(slack(format)) => {
            Err(format!("it ends after {} of {expected} samples", audio.samples.len()))
        }
        _ => Ok(audio),
    }
}

/// Of an MP3 without a tag that says how many samples there are, the reader estimates them by the bytes
/// of the whole file: it would cut off what a variable bit rate has beyond that. It does not where it
/// cannot seek.
fn source_of(format: Format, bytes: &[u8]) -> Box<dyn MediaSource + '_> {
    match format {
        Format::Mp3 => Box::new(ReadOnlySource::new(bytes)),
        Format::Wav | Format::Flac => Box::new(Cursor::new(bytes)),
    }
}

/// Samples that may be missing of the number that a file states. Some encoders count the frame with the
/// tag of an MP3, which has no samples.
fn slack(format: Format) -> u64 {
    match format {
        Format::Mp3 => 1152,
        Format::Wav | Format::Flac => 0,
    }
}

fn read_all(
    reader: &mut dyn FormatReader,
    decoder: &mut dyn AudioDecoder,
    track: u32,
) -> Result<Audio, String> {
    let mut samples: Vec<f32> = vec![];
    let mut found: Option<(u32, usize)> = None;
    let mut interleaved: Vec<f32> = vec![];
    while let Some(packet) = next_packet(reader)? {
        if packet.track_id != track {
            continue;
        }
        let decoded = decoder.decode(&packet).map_err(text)?;
        let format = (decoded.spec().rate(), decoded.spec().channels().count());
        if *found.get_or_insert(format) != format {
            return Err("its sample rate or number of channels changes midway".to_owned());
        }
        check_samples((samples.len() + decoded.frames()) as u64)?;
        decoded.copy_to_vec_interleaved(&mut interleaved);
        let channels = format.1.max(1);
        let mean = |frame: &[f32]| frame.iter().sum::<f32>() / channels as f32;
        samples.extend(interleaved.chunks_exact(channels).map(mean));
    }
    let (rate, channels) = found.ok_or("it has no samples")?;
    Ok(Audio { samples, sample_rate: check_rate(rate.into())?, channels })
}

/// `None` at the end, which readers also report as an error when a file is cut.
fn next_packet(
    reader: &mut dyn FormatReader,
) -> Result<Option<symphonia::core::packet::Packet>, String> {
    match reader.next_packet() {
        Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        other => other.map_err(text),
    }
}

fn text(error: Error) -> String {
    error.to_string()
}
