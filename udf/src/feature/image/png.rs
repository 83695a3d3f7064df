//! PNG, still.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_core::result::DecodingResult;
use zune_png::PngDecoder;

use super::limits::{SIDE_MAX, check_size};
use super::orientation::Orientation;
use super::pixels::{Mode, Pixels};

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// What is known before pixels are decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) mode: Mode,
    pub(super) orientation: Orientation,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        if !bytes.windows(4).rev().any(|name| name == b"IEND") {
            return Err("the image ends before its data are complete".to_owned());
        }
        let mut decoder = PngDecoder::new_with_options(ZCursor::new(bytes), options());
        decoder.decode_headers().map_err(|problem| format!("{problem:?}"))?;
        let (width, height) = decoder.dimensions().ok_or("the header has no size")?;
        let exif = decoder.info().and_then(|info| info.exif.as_deref());
        Ok(Self {
            width: u32::try_from(width).unwrap_or(u32::MAX),
            height: u32::try_from(height).unwrap_or(u32::MAX),
            mode: decoder.colorspace().and_then(mode_of).ok_or("its colours are not known")?,
            orientation: exif.map(Orientation::of_exif).unwrap_or_default(),
        })
    }
}

fn options() -> DecoderOptions {
    DecoderOptions::default()
        .set_max_width(SIDE_MAX as usize)
        .set_max_height(SIDE_MAX as usize)
        .png_set_strip_to_8bit(true)
}

fn mode_of(space: ColorSpace) -> Option<Mode> {
    match space {
        ColorSpace::Luma => Some(Mode::L),
        ColorSpace::LumaA => Some(Mode::La),
        ColorSpace::RGB => Some(Mode::Rgb),
        ColorSpace::RGBA => Some(Mode::Rgba),
        _ => None,
    }
}

/// The stored image.
pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<Pixels<'static>, String> {
    check_size(header.width, header.height)?;
    let mut decoder = PngDecoder::new_with_options(ZCursor::new(bytes), options());
    let pixels = decoder.decode().map_err(|problem| format!("{problem:?}"))?;
    let DecodingResult::U8(data) = pixels else {
        return Err("its colours are not known".to_owned());
    };
    // Transparency may be told of after the header.
    let mode = decoder.colorspace().and_then(mode_of).unwrap_or(header.mode);
    Pixels::try_new(header.width, header.height, mode, data)
}

/// A PNG file. (The decoder's crate has an encoder, which does not compress.)
pub(super) fn encode(pixels: &Pixels<'_>) -> Result<Vec<u8>, String> {
    let colours = match pixels.mode {
        Mode::L => 0,
        Mode::Rgb => 2,
        Mode::La => 4,
        Mode::Rgba => 6,
    };
    let mut header = [pixels.width.to_be_bytes(), pixels.height.to_be_bytes()].concat();
    header.extend([8, colours, 0, 0, 0]);
    let mut compressed = ZlibEncoder::new(Vec::new(), Compression::default());
    let row_bytes = pixels.width as usize * pixels.mode.channels();
    for row in pixels.data.chunks_exact(row_bytes) {
        compressed
            .write_all(&differences(row, pixels.mode.channels()))
            .map_err(|e| e.to_string())?;
    }
    let data = compressed.finish().map_err(|e| e.to_string())?;
    let mut file = SIGNATURE.to_vec();
    for (name, content) in [(b"IHDR", header), (b"IDAT", data), (b"IEND", vec![])] {
        write_chunk(&mut file, *name, &content)?;
    }
    Ok(file)
}

/// A row by PNG's filter 1: what each byte differs from the one of the pixel before it.
fn differences(row: &[u8], channels: usize) -> Vec<u8> {
    let before = std::iter::repeat_n(&0, channels).chain(row);
    std::iter::once(1).chain(row.iter().zip(before).map(|(a, b)| a.wrapping_sub(*b))).collect()
}

fn write_chunk(file: &mut Vec<u8>, name: [u8; 4], content: &[u8]) -> Result<(), String> {
    let length = u32::try_from(content.len()).map_err(|_| "the image is too large for PNG")?;
    file.extend(length.to_be_bytes());
    let start = file.len();
    file.extend(name);
    file.extend(content);
    let checksum = crc32fast::hash(&file[start..]);
    file.extend(checksum.to_be_bytes());
    Ok(())
}
