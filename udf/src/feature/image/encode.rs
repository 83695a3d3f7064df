//! Pixels → a file of an image format.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};

use super::pixels::{Mode, Pixels};
use super::png;

/// What can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// 1 to 100.
    Jpeg {
        quality: u8,
    },
    Png,
    /// Without loss.
    WebP,
    Bmp,
    Tiff,
}

/// As in Pillow.
const JPEG_QUALITY: i64 = 75;

impl Encoding {
    pub(super) fn parse(name: &str, quality: Option<i64>) -> Result<Self, String> {
        let encoding = match name.to_ascii_lowercase().as_str() {
            "jpeg" | "jpg" => {
                let quality = quality.unwrap_or(JPEG_QUALITY);
                let quality = u8::try_from(quality).ok().filter(|q| (1..=100).contains(q));
                Self::Jpeg { quality: quality.ok_or("the quality of a JPEG is 1 to 100")? }
            }
            "png" => Self::Png,
            "webp" => Self::WebP,
            "bmp" => Self::Bmp,
            "tiff" | "tif" => Self::Tiff,
            _ => {
                return Err(format!(
                    "there is no format '{name}'; the formats are jpeg, png, webp, bmp, tiff"
                ));
            }
        };
        match (encoding, quality) {
            (Self::Jpeg { .. }, _) | (_, None) => Ok(encoding),
            (_, Some(_)) => Err(format!("{name} has no quality: it is without loss")),
        }
    }
}

pub(super) fn encode(pixels: Pixels<'_>, encoding: Encoding) -> Result<Vec<u8>, String> {
    let mut file = Cursor::new(Vec::new());
    match encoding {
        Encoding::Png => return png::encode(&pixels),
        Encoding::Jpeg { quality } => {
            let encoder = JpegEncoder::new_with_quality(&mut file, quality);
            let opaque = if pixels.mode.channels() < 3 { Mode::L } else { Mode::Rgb };
            write(encoder, &pixels.into_mode(opaque))?;
        }
        Encoding::WebP => {
            write(image::codecs::webp::WebPEncoder::new_lossless(&mut file), &pixels)?
        }
        Encoding::Bmp => {
            let pixels = without_grey_opacity(pixels);
            write(image::codecs::bmp::BmpEncoder::new(&mut file), &pixels)?;
        }
        Encoding::Tiff => {
            let pixels = without_grey_opacity(pixels);
            write(image::codecs::tiff::TiffEncoder::new(&mut file), &pixels)?;
        }
    }
    Ok(file.into_inner())
}

/// BMP and TIFF know no grey with opacity.
fn without_grey_opacity(pixels: Pixels<'_>) -> Pixels<'_> {
    if pixels.mode == Mode::La { pixels.into_mode(Mode::Rgba) } else { pixels }
}

fn write(encoder: impl ImageEncoder, pixels: &Pixels<'_>) -> Result<(), String> {
    let colours = match pixels.mode {
        Mode::L => ExtendedColorType::L8,
        Mode::La => ExtendedColorType::La8,
        Mode::Rgb => ExtendedColorType::Rgb8,
        Mode::Rgba => ExtendedColorType::Rgba8,
    };
    encoder
        .write_image(&pixels.data, pixels.width, pixels.height, colours)
        .map_err(|e| e.to_string())
}
