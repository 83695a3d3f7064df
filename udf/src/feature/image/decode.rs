//! Bytes of any known format → pixels.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use super::jpeg::Jpeg;
use super::limits::{ENCODED_BYTES_MAX, PIXELS_MAX, check_bytes, check_size};
use super::orientation::Orientation;
use super::pixels::{Mode, Pixels};
use super::png;

/// The formats that can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
}

impl Format {
    /// By the first bytes: names and media types are often wrong.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, String> {
        Ok(match bytes {
            [0xff, 0xd8, 0xff, ..] => Self::Jpeg,
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Self::Png,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Self::WebP,
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Self::Gif,
            [b'B', b'M', ..] => Self::Bmp,
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Self::Tiff,
            _ => {
                let first: Vec<String> =
                    bytes.iter().take(8).map(|byte| hex::encode([*byte])).collect();
                return Err(format!(
                    "the bytes, which begin with {}, are not JPEG, PNG, WebP, GIF, BMP or TIFF",
                    first.join(" ")
                ));
            }
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Gif => "gif",
            Self::Bmp => "bmp",
            Self::Tiff => "tiff",
        }
    }

    /// The decoder of the formats that need no care of their own.
    fn in_image_crate(self) -> ImageFormat {
        match self {
            Self::Jpeg => ImageFormat::Jpeg,
            Self::Png => ImageFormat::Png,
            Self::WebP => ImageFormat::WebP,
            Self::Gif => ImageFormat::Gif,
            Self::Bmp => ImageFormat::Bmp,
            Self::Tiff => ImageFormat::Tiff,
        }
    }
}

/// What an image is, without its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) format: Format,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) mode: Mode,
}

/// Reads the header only.
pub(super) fn info(bytes: &[u8]) -> Result<Info, String> {
    guarded(
        |format| {
            let (size, mode, orientation) = match format {
                Format::Jpeg => {
                    let jpeg = Jpeg::open(bytes)?;
                    (jpeg.size(), jpeg.mode(), jpeg.orientation)
                }
                Format::Png => {
                    let header = png::Header::read(bytes)?;
                    ((header.width, header.height), header.mode, header.orientation)
                }
                other => {
                    let mut decoder = decoder(bytes, other)?;
                    let orientation = orientation_of(&mut decoder);
                    (decoder.dimensions(), nearest_mode(decoder.color_type()), orientation)
                }
            };
            let (width, height) = orientation.size(size);
            Ok(Info { format, width, height, mode })
        },
        bytes,
    )
}

/// The upright image; the first of an animation.
pub(super) fn decode(bytes: &[u8], mode: Mode) -> Result<Pixels<'static>, String> {
    let decoded = guarded(
        |format| {
            let (stored, orientation) = decode_stored(bytes, format)?;
            Ok(orientation.apply(stored))
        },
        bytes,
    )?;
    Ok(decoded.into_mode(mode))
}

/// The image as it is stored, and what makes it upright.
pub(super) fn decode_stored(
    bytes: &[u8],
    format: Format,
) -> Result<(Pixels<'static>, Orientation), String> {
    match format {
        Format::Jpeg => {
            let mut jpeg = Jpeg::open(bytes)?;
            Ok((jpeg.decode()?, jpeg.orientation))
        }
        Format::Png => {
            let header = png::Header::read(bytes)?;
            Ok((png::decode(bytes, &header)?, header.orientation))
        }
        other => {
            let mut decoder = decoder(bytes, other)?;
            let (width, height) = decoder.dimensions();
            check_size(width, height)?;
            let orientation = orientation_of(&mut decoder);
            let decoded = DynamicImage::from_decoder(decoder).map_err(|e| e.to_string())?;
            Ok((pixels_of(decoded)?, orientation))
        }
    }
}

/// Decoders are of others, and bytes of anybody: one that panics spoils this value only.
pub(super) fn guarded<T>(
    decode: impl FnOnce(Format) -> Result<T, String>,
    bytes: &[u8],
) -> Result<T, String> {
    check_bytes(bytes)?;
    let format = Format::of(bytes)?;
    let result = catch_unwind(AssertUnwindSafe(|| decode(format)))
        .unwrap_or_else(|_| Err("its decoder gave up".to_owned()));
    result.map_err(|problem| {
        // Some decoders end theirs with a line's end.
        let problem = problem.trim_end();
        format!("{} of {} bytes cannot be decoded: {problem}", format.name(), bytes.len())
    })
}

fn decoder<'a>(bytes: &'a [u8], format: Format) -> Result<impl ImageDecoder + 'a, String> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format.in_image_crate());
    let mut limits = image::Limits::default();
    // Of 16 bits and 4 channels, and what the decoder itself needs.
    limits.max_alloc = Some(PIXELS_MAX * 8 + ENCODED_BYTES_MAX as u64);
    reader.limits(limits);
    reader.into_decoder().map_err(|e| e.to_string())
}

fn orientation_of(decoder: &mut impl ImageDecoder) -> Orientation {
    decoder.orientation().map(Orientation::from).unwrap_or_default()
}

fn nearest_mode(colours: ColorType) -> Mode {
    match (colours.has_color(), colours.has_alpha()) {
        (false, false) => Mode::L,
        (false, true) => Mode::La,
        (true, false) => Mode::Rgb,
        (true, true) => Mode::Rgba,
    }
}

fn pixels_of(decoded: DynamicImage) -> Result<Pixels<'static>, String> {
    let (width, height, mode) = (decoded.width(), decoded.height(), nearest_mode(decoded.color()));
    let data = match mode {
        Mode::L => decoded.into_luma8().into_raw(),
        Mode::La => decoded.into_luma_alpha8().into_raw(),
        Mode::Rgb => decoded.into_rgb8().into_raw(),
        Mode::Rgba => decoded.into_rgba8().into_raw(),
    };
    Pixels::try_new(width, height, mode, data)
}
