use forebay_testkit::random::Random;

use super::decode::{Audio, decode};
use super::resample::resample;

/// 16 bits per sample, as most files have.
fn wav(sample_rate: u32, channels: u16, frames: &[Vec<i16>]) -> Vec<u8> {
    let data: Vec<u8> = frames.iter().flatten().flat_map(|sample| sample.to_le_bytes()).collect();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    file.extend(1u16.to_le_bytes());
    file.extend(channels.to_le_bytes());
    file.extend(sample_rate.to_le_bytes());
    file.extend((sample_rate * u32::from(channels) * 2).to_le_bytes());
    file.extend((channels * 2).to_le_bytes());
    file.extend(16u16.to_le_bytes());
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

/// A FLAC of one frame that holds 16 samples as they are.
fn flac(samples: &[i16; 16]) -> Vec<u8> {
    let mut file = b"fLaC\x80\x00\x00\x22".to_vec();
    file.extend([0, 16, 0, 16, 0, 0, 0, 0, 0, 0]);
    // 16000 Hz (20 bits), 1 channel (3), 16 bits (5), 16 samples (36); no checksum of them.
    let header = (16_000u64 << 44) | (15 << 36) | 16;
    file.extend(header.to_be_bytes());
    file.extend([0; 16]);
    // Blocks of one size, which is in 8 bits at the end less one; rate, channels and bits as above.
    let mut frame = vec![0xff, 0xf8, 0x60, 0x08, 0x00, 15];
    frame.push(crc8(&frame));
    frame.push(0x02);
    frame.extend(samples.iter().flat_map(|sample| sample.to_be_bytes()));
    let checksum = crc16(&frame);
    frame.extend(checksum.to_be_bytes());
    file.extend(frame);
    file
}

fn crc8(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ byte, |crc, _| (crc << 1) ^ if crc & 0x80 != 0 { 0x07 } else { 0 })
    })
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ (u16::from(*byte) << 8);
        (0..8).fold(crc, |crc, _| (crc << 1) ^ if crc & 0x8000 != 0 { 0x8005 } else { 0 })
    })
}

/// An MP3 of silence: frames of 128 kbit/s at 44100 Hz, one channel, whose contents are zeros.
fn mp3(frames: usize) -> Vec<u8> {
    let mut frame = vec![0xff, 0xfb, 0x90, 0xc0];
    frame.resize(417, 0);
    frame.repeat(frames)
}

fn sine(sample_rate: u32, hertz: f32, seconds: f32) -> Vec<f32> {
    let samples = (sample_rate as f32 * seconds) as usize;
    let at = |n: usize| (n as f32 / sample_rate as f32 * hertz * std::f32::consts::TAU).sin();
    (0..samples).map(at).collect()
}

#[test]
fn wav_of_several_channels_becomes_their_mean() {
    let file = wav(8000, 2, &[vec![16384, 0], vec![-32768, -32768], vec![0, 8192]]);
    let expected = Audio { samples: vec![0.25, -1.0, 0.125], sample_rate: 8000, channels: 2 };
    assert_eq!(decode(&file).unwrap(), expected);
}

#[test]
fn flac_gives_its_samples_back() {
    let samples: [i16; 16] = std::array::from_fn(|at| (at as i16 - 8) * 2048);
    let audio = decode(&flac(&samples)).unwrap();
    let expected: Vec<f32> = samples.iter().map(|sample| f32::from(*sample) / 32768.0).collect();
    assert_eq!(audio, Audio { samples: expected, sample_rate: 16_000, channels: 1 });
}

#[test]
fn mp3_is_decoded() {
    let audio = decode(&mp3(20)).unwrap();
    assert_eq!((audio.sample_rate, audio.channels), (44_100, 1));
    assert!(audio.samples.len() >= 19 * 1152, "{}", audio.samples.len());
    assert!(audio.samples.iter().all(|sample| sample.abs() < 1e-6));
}

/// The same behind a frame whose tag says how many frames follow.
fn tagged_mp3(stated: u32, frames: usize) -> Vec<u8> {
    let mut tag = mp3(1);
    tag[21..25].copy_from_slice(b"Xing");
    tag[25..29].copy_from_slice(&1u32.to_be_bytes());
    tag[29..33].copy_from_slice(&stated.to_be_bytes());
    [tag, mp3(frames)].concat()
}

#[test]
fn an_mp3_is_truncated_where_its_tag_says_so() {
    assert_eq!(decode(&tagged_mp3(20, 20)).unwrap().samples.len(), 20 * 1152);
    // Some encoders count the tag's own frame.
    assert_eq!(decode(&tagged_mp3(21, 20)).unwrap().samples.len(), 20 * 1152);
    let problem = decode(&tagged_mp3(20, 17)).unwrap_err();
    assert!(problem.contains("it ends after 19584 of 23040 samples"), "{problem}");
}

/// By the size of its first frames it would have far less, or far more.
#[test]
fn an_mp3_without_a_tag_has_the_samples_that_are_there() {
    let mut small = vec![0xff, 0xfb, 0x10, 0xc0];
    small.resize(104, 0);
    for file in [[mp3(20), small.repeat(100)].concat(), [small.repeat(100), mp3(20)].concat()] {
        let samples = decode(&file).unwrap().samples;
        assert!(samples.len() >= 119 * 1152, "{}", samples.len());
    }
}

#[test]
fn a_tone_keeps_its_frequency_length_and_loudness_at_another_rate() {
    for (from, to) in [(44_100, 16_000), (8_000, 16_000), (48_000, 44_100)] {
        let audio = Audio { samples: sine(from, 440.0, 0.5), sample_rate: from, channels: 1 };
        let resampled = resample(audio, to).unwrap();
        let expected = sine(to, 440.0, 0.5);
        assert!(resampled.samples.len().abs_diff(expected.len()) <= 1);
        // The first and the last few ms have silence beside them.
        let edge = to as usize / 20;
        for at in edge..expected.len() - edge {
            let (found, expected) = (resampled.samples[at], expected[at]);
            assert!((found - expected).abs() < 0.01, "{from} to {to}: {at}: {found} {expected}");
        }
    }
}

#[test]
fn what_cannot_be_heard_at_a_lower_rate_is_filtered_out() {
    let audio = Audio { samples: sine(48_000, 15_000.0, 0.5), sample_rate: 48_000, channels: 1 };
    let resampled = resample(audio, 16_000).unwrap().samples;
    let loudest = resampled[800..7200].iter().copied().fold(0.0f32, |a, b| a.max(b.abs()));
    assert!(loudest < 0.01, "{loudest}");
}

#[test]
fn bad_files_are_named_with_the_reason() {
    let problem = |bytes: &[u8]| decode(bytes).unwrap_err();
    assert_eq!(problem(b""), "there are no bytes");
    let text = problem(b"<html>");
    assert!(text.contains("begin with 3c 68 74 6d 6c 3e, are not WAV, FLAC or MP3"), "{text}");
    let whole = wav(8000, 1, &vec![vec![1]; 4000]);
    let text = problem(&whole[..whole.len() / 2]);
    assert!(text.contains("wav of 4022 bytes cannot be decoded: it ends after"), "{text}");
    // A header alone.
    let text = problem(&whole[..44]);
    assert!(text.contains("cannot be decoded"), "{text}");
}

#[test]
fn results_that_are_too_large_are_refused_before_they_are_made() {
    let audio = Audio { samples: vec![0.0; 1000], sample_rate: 1, channels: 1 };
    let problem = resample(audio, 768_000).unwrap_err();
    assert!(problem.starts_with("768000000 samples are more than"), "{problem}");
}

/// One sample per second makes blocks of gigabytes of a file of a few bytes.
#[test]
fn rates_that_are_too_far_apart_are_refused_and_others_without_a_divisor_are_not() {
    let audio = |sample_rate| Audio { samples: vec![0.5; 2], sample_rate, channels: 1 };
    for (from, to) in [(1, 768_000), (50, 768_000)] {
        let expected =
            format!("{from} Hz cannot be resampled to {to} Hz: the rates are too far apart");
        assert_eq!(resample(audio(from), to).unwrap_err(), expected);
    }
    for (from, to) in [(767_999, 768_000), (7_999, 768_000), (1_000, 768_000), (768_000, 1)] {
        let resampled = resample(audio(from), to).unwrap();
        assert_eq!(resampled.sample_rate, to);
    }
}

/// Seeded: bytes changed at random are an error or other audio, and never end the process.
#[test]
fn damaged_files_never_panic() {
    let samples: [i16; 16] = std::array::from_fn(|at| at as i16 * 999);
    let files = [wav(8000, 2, &vec![vec![1, 2]; 200]), flac(&samples), mp3(4)];
    let mut random = Random::new(1);
    for round in 0..3000 {
        let mut file = files[round % files.len()].clone();
        for _ in 0..=random.below(6) {
            let at = random.index(file.len().min(100));
            file[at] = random.below(256) as u8;
        }
        file.truncate(1 + random.index(file.len()));
        if let Err(problem) = decode(&file) {
            assert_ne!(problem, "");
        }
    }
}
