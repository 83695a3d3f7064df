//! JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.
//!
//! `zune-jpeg` decodes at full size, faster than the others. `jpeg-decoder` is the one that can
//! decode at a quarter or an eighth of the size, which takes a sixteenth of the memory or less.

use std::io::Cursor;

use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::limits::{SIDE_MAX, check_size};
use super::orientation::Orientation;
use super::pixels::{Mode, Pixels};

/// What is known before pixels are decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    /// 1 is grey, 3 colour, 4 colour for printing.
    pub(super) components: u8,
    pub(super) orientation: Orientation,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options());
        decoder.decode_headers().map_err(|problem| format!("{problem:?}"))?;
        let info = decoder.info().ok_or("the header has no size")?;
        let orientation = decoder.exif().map(|block| Orientation::of_exif(block));
        Ok(Self {
            width: info.width.into(),
            height: info.height.into(),
            components: info.components,
            orientation: orientation.unwrap_or_default(),
        })
    }

    pub(super) fn mode(&self) -> Mode {
        if self.components == 1 { Mode::L } else { Mode::Rgb }
    }
}

fn options() -> DecoderOptions {
    DecoderOptions::default().set_max_width(SIDE_MAX as usize).set_max_height(SIDE_MAX as usize)
}

/// The stored image, grey or RGB, in `memory`.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    mut memory: Vec<u8>,
) -> Result<Pixels<'static>, String> {
    check_size(header.width, header.height)?;
    check_complete(bytes)?;
    let space = if header.mode() == Mode::L { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = options().jpeg_set_out_colorspace(space);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(bytes), options);
    let problem = |problem| format!("{problem:?}");
    decoder.decode_headers().map_err(problem)?;
    let size = decoder.output_buffer_size().ok_or("the image is too large")?;
    if memory.capacity() < size {
        drop(memory);
        memory = Vec::with_capacity(size);
    }
    // Cleared: where a decoder leaves pixels out, they are not those of another image.
    memory.clear();
    memory.resize(size, 0);
    decoder.decode_into(&mut memory).map_err(problem)?;
    Pixels::try_new(header.width, header.height, header.mode(), memory)
}

/// By how much the sides of an image are divided while it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    Quarter = 4,
    Eighth = 8,
}

impl Reduction {
    /// What is left of an image.
    pub(super) fn divisor(self) -> u32 {
        self as u32
    }

    /// The largest that leaves `side_min` pixels of the shorter side. None for half the size: that
    /// takes longer than the whole image with the other decoder.
    pub(super) fn leaving(header: &Header, side_min: u32) -> Option<Self> {
        let shorter = header.width.min(header.height);
        // The decoder of parts does not know the colours for printing.
        let is_known = matches!(header.components, 1 | 3);
        [Self::Eighth, Self::Quarter]
            .into_iter()
            .find(|reduction| is_known && shorter / reduction.divisor() >= side_min)
    }
}

/// The stored image at a part of its size, rounded up: pixel `x` of the result covers `divisor`
/// pixels of the image from `x * divisor`.
pub(super) fn decode_reduced(
    bytes: &[u8],
    header: &Header,
    reduction: Reduction,
) -> Result<Pixels<'static>, String> {
    check_size(header.width, header.height)?;
    check_complete(bytes)?;
    let problem = |error: jpeg_decoder::Error| error.to_string();
    let mut decoder = jpeg_decoder::Decoder::new(bytes);
    let side = |side: u32| side.div_ceil(reduction.divisor()) as u16;
    let (width, height) =
        decoder.scale(side(header.width), side(header.height)).map_err(problem)?;
    let data = decoder.decode().map_err(problem)?;
    Pixels::try_new(width.into(), height.into(), header.mode(), data)
}

/// Decoders show grey, or what was there before, where data are missing. That is for viewers; here
/// an image that ends early is a bad value.
fn check_complete(bytes: &[u8]) -> Result<(), String> {
    let scan = start_of_scan(bytes).unwrap_or_default();
    let is_complete = bytes[scan..].windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
    if is_complete { Ok(()) } else { Err("the image ends before its data are complete".to_owned()) }
}

/// Where the pixels begin. Before them there may be a preview, which has an end of its own.
fn start_of_scan(bytes: &[u8]) -> Option<usize> {
    let mut at = 2;
    loop {
        let [0xff, marker, high, low] = *bytes.get(at..at + 4)? else { return None };
        if marker == 0xda {
            return Some(at);
        }
        at += 2 + usize::from(u16::from_be_bytes([high, low]));
    }
}
