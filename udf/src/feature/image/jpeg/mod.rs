//! JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK, by libjpeg-turbo.
//!
//! ```text
//!  bytes ──> header, orientation ──> the blocks that a part needs, at 1/1 to 1/8 of the size
//! ```

#[cfg_attr(not(feature = "jpeg"), path = "absent.rs")]
mod decompressor;
mod markers;
mod region;

use super::limits::check_size;
use super::orientation::{Orientation, Part};
use super::pixels::{Mode, Pixels};
use decompressor::Decompressor;
use region::{Colours, Region};

/// What decodes JPEG images in this build, and what it lacks.
pub const JPEG_DECODER: &str = env!("FOREBAY_JPEG_DECODER");

/// A file whose header has been read.
#[derive(Debug)]
pub(super) struct Jpeg<'a> {
    decompressor: Decompressor<'a>,
    pub(super) orientation: Orientation,
}

/// What was decoded of an image.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) pixels: Pixels<'static>,
    /// Where in `pixels` the part is that was asked for.
    pub(super) part: Part,
}

impl<'a> Jpeg<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let decompressor = Decompressor::open(bytes)?;
        let orientation = markers::exif(bytes).map(Orientation::of_exif).unwrap_or_default();
        Ok(Self { decompressor, orientation })
    }

    /// As it is stored.
    pub(super) fn size(&self) -> (u32, u32) {
        self.decompressor.size()
    }

    pub(super) fn mode(&self) -> Mode {
        match self.decompressor.colours() {
            Colours::Grey => Mode::L,
            Colours::Rgb | Colours::Cmyk => Mode::Rgb,
        }
    }

    /// The stored image, grey or RGB.
    pub(super) fn decode(&mut self) -> Result<Pixels<'static>, String> {
        let (width, height) = self.size();
        let whole = Region { left: 0, top: 0, width, height };
        self.decode_region(Reduction::None, whole, Vec::new())
    }

    /// The largest reduction that leaves `side_min` pixels of the shorter side.
    pub(super) fn reduction_to(&self, side_min: u32) -> Reduction {
        if self.decompressor.block_width().is_none() {
            return Reduction::None;
        }
        let (width, height) = self.size();
        [Reduction::Eighth, Reduction::Quarter, Reduction::Half]
            .into_iter()
            .find(|reduction| width.min(height) / reduction.divisor() >= side_min)
            .unwrap_or(Reduction::None)
    }

    /// What is needed to resample a part of the stored image. `support` is how far around the part
    /// resampling looks, in pixels of the reduced image. `memory` is that of another image.
    pub(super) fn decode_part(
        &mut self,
        part: Part,
        reduction: Reduction,
        support: f64,
        memory: Vec<u8>,
    ) -> Result<Decoded, String> {
        let (width, height) = self.size();
        let part = part.divided_by(reduction.divisor());
        let whole =
            Region { left: 0, top: 0, width: reduction.of(width), height: reduction.of(height) };
        let mut region = match self.decompressor.block_width() {
            Some(block) => {
                let (left, right) = around(part.left, part.width, support, reduction.of(width));
                let (top, bottom) = around(part.top, part.height, support, reduction.of(height));
                // Rows can begin anywhere, columns where a block does.
                let block = block / reduction.divisor();
                let left = left / block * block;
                Region { left, top, width: right - left, height: bottom - top }
            }
            None => whole,
        };
        let mut pixels = self.decode_region(reduction, region, memory);
        // Equal sampling that is described in an unusual way makes blocks wider than they are told.
        if region != whole && pixels.as_ref().is_err_and(|problem| problem.contains("mismatch")) {
            region = whole;
            pixels = self.decode_region(reduction, whole, Vec::new());
        }
        let pixels = pixels?;
        let part = part.moved_by(-f64::from(region.left), -f64::from(region.top));
        Ok(Decoded { part: part.within(pixels.width, pixels.height), pixels })
    }

    fn decode_region(
        &mut self,
        reduction: Reduction,
        region: Region,
        mut memory: Vec<u8>,
    ) -> Result<Pixels<'static>, String> {
        let (width, height) = self.size();
        check_size(width, height)?;
        markers::check_complete(self.decompressor.bytes())?;
        let colours = self.decompressor.colours();
        let size = region.width as usize * region.height as usize * colours.channels();
        if memory.capacity() < size {
            // One after the other.
            drop(memory);
            memory = vec![0; size];
        }
        // What is there of another image is written over: a row that is not is an error.
        memory.resize(size, 0);
        self.decompressor.decode(reduction.divisor(), region, &mut memory)?;
        if colours == Colours::Cmyk {
            memory = rgb_of_cmyk(&memory);
        }
        Pixels::try_new(region.width, region.height, self.mode(), memory)
    }
}

/// By how much the sides of an image are divided while it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    None = 1,
    Half = 2,
    Quarter = 4,
    Eighth = 8,
}

impl Reduction {
    pub(super) fn divisor(self) -> u32 {
        self as u32
    }

    /// What is left of a side: pixel `x` covers `divisor` pixels from `x * divisor`.
    fn of(self, side: u32) -> u32 {
        side.div_ceil(self.divisor())
    }
}

/// The pixels of a side that resampling `start..start + length` looks at: the first, and the one after
/// the last.
fn around(start: f64, length: f64, support: f64, side: u32) -> (u32, u32) {
    // Two more: colours that are stored at half the size are interpolated.
    let around = support + 2.0;
    let first = (start - around).max(0.0) as u32;
    let end = (start + length + around).ceil() as u32;
    (first, end.min(side))
}

/// As Pillow reads them: files have the colours inverted, as Adobe's programs write them.
fn rgb_of_cmyk(inverted: &[u8]) -> Vec<u8> {
    let (pixels, _) = inverted.as_chunks::<4>();
    let colour = |ink: u8, black: u8| {
        let taken = u32::from(255 - ink) * u32::from(black) + 128;
        black - ((taken + (taken >> 8)) >> 8) as u8
    };
    pixels.iter().flat_map(|&[c, m, y, k]| [colour(c, k), colour(m, k), colour(y, k)]).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fixture::prepared;

    fn read(name: &str) -> Vec<u8> {
        fs::read(prepared("images/good").join(name)).unwrap()
    }

    /// A file with another segment after its first marker.
    fn with_segment(bytes: &[u8], kind: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len() + 2).unwrap().to_be_bytes();
        [&bytes[..2], &[0xff, kind], &length, content, &bytes[2..]].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Pixels<'static>, String> {
        Jpeg::open(bytes)?.decode()
    }

    #[test]
    fn a_part_of_a_reduced_image_has_the_pixels_of_the_whole() {
        for name in ["baseline", "subsampled", "half", "progressive", "grey", "cmyk", "junk"] {
            let bytes = read(&format!("{name}.jpg"));
            let mut jpeg = Jpeg::open(&bytes).unwrap();
            let (width, height) = jpeg.size();
            for reduction in
                [Reduction::None, Reduction::Half, Reduction::Quarter, Reduction::Eighth]
            {
                let (width, height) = (reduction.of(width), reduction.of(height));
                let region = Region { left: 0, top: 0, width, height };
                let whole = jpeg.decode_region(reduction, region, Vec::new()).unwrap();
                let part = Part { left: 75.0, top: 51.0, width: 41.0, height: 40.0 };
                let found = jpeg.decode_part(part, reduction, 1.0, vec![7; 99]).unwrap();
                let start = part.divided_by(reduction.divisor());
                let left = (start.left - found.part.left) as u32;
                let top = (start.top - found.part.top) as u32;
                // The first and the last column have nothing beside them to interpolate with.
                let (width, height) = (found.pixels.width - 2, found.pixels.height);
                let expected = whole.crop(left + 1, top, width, height).unwrap();
                let found = found.pixels.crop(1, 0, width, height).unwrap();
                assert!(found == expected, "{name} {reduction:?}");
            }
        }
    }

    #[test]
    fn odd_files_are_decoded() {
        let bytes = read("baseline.jpg");
        let expected = decode(&bytes).unwrap();
        // Two parts of a colour profile that are both the first of two.
        let profile = with_segment(&bytes, 0xe2, b"ICC_PROFILE\0\x01\x02profile");
        let profile = with_segment(&profile, 0xe2, b"ICC_PROFILE\0\x01\x02profile");
        let mut revision = bytes.clone();
        let jfif = revision.windows(5).position(|name| name == b"JFIF\0").unwrap();
        revision[jfif + 5] = 2;
        let mut scan = bytes.clone();
        let end = scan.windows(3).position(|it| it == [0, 0x3f, 0]).unwrap();
        scan[end + 1] = 0;
        let filled = [&bytes[..2], &[0xff; 5], &bytes[2..]].concat();
        for odd in [profile, revision, scan, filled] {
            assert!(decode(&odd).unwrap() == expected);
        }
    }

    #[test]
    fn how_the_camera_was_held_is_found_behind_bytes_that_belong_to_nothing() {
        let bytes = read("exif6.jpg");
        let expected = Jpeg::open(&bytes).unwrap().orientation;
        assert_ne!(expected, Orientation::default());
        let odd = [&bytes[..2], &[0, 1, 0xff, 0xff, 0], &bytes[2..]].concat();
        assert_eq!(Jpeg::open(&odd).unwrap().orientation, expected);
    }

    #[test]
    fn pixels_that_begin_again_after_damage_are_an_error() {
        let bytes = read("restarts.jpg");
        decode(&bytes).unwrap();
        let restart = bytes.windows(2).rposition(|pair| pair == [0xff, 0xd3]).unwrap();
        let odd = [&bytes[..restart], &[0; 20], &bytes[restart..]].concat();
        let problem = decode(&odd).unwrap_err();
        assert!(problem.contains("extraneous bytes before marker 0xd3"), "{problem}");
    }

    #[test]
    fn scans_are_limited() {
        let bytes = read("progressive.jpg");
        let scans: Vec<usize> =
            (0..bytes.len() - 1).filter(|at| bytes[*at..at + 2] == [0xff, 0xda]).collect();
        let (first, second) = (scans[0], scans[1]);
        // Tables of the second scan stand between them.
        let end = first + 2 + bytes[first + 2..].windows(2).position(is_marker).unwrap();
        assert!(end <= second);
        let many = [&bytes[..end], &bytes[first..end].repeat(600), &bytes[end..]].concat();
        let problem = decode(&many).unwrap_err();
        assert!(problem.contains("500 scans"), "{problem}");
    }

    fn is_marker(pair: &[u8]) -> bool {
        pair[0] == 0xff && pair[1] != 0
    }
}
