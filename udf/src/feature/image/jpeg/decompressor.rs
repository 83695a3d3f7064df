//! libjpeg-turbo's decompressor. The only file here that may say `unsafe`.

#![allow(unsafe_code, reason = "calls into libjpeg-turbo; each block says why it is sound")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as turbo;

use super::region::{Colours, Region};

/// As many as any photo has; a file of a few kilobytes can ask for thousands, each of which goes
/// over all pixels.
const SCANS_MAX: c_int = 500;

/// What libjpeg-turbo says of files that are odd and may have all of their pixels; Pillow decodes
/// them. It tells the first oddity only: what is missing besides, nobody knows.
const HARMLESS: [&str; 4] = [
    "extraneous bytes before marker",
    "unknown JFIF revision",
    "Unknown Adobe color transform",
    "Invalid SOS parameters",
];

/// But not where pixels begin again after a part that was damaged.
const RESTARTS: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;

/// A decompressor that has read the header of some bytes.
#[derive(Debug)]
pub(super) struct Decompressor<'a> {
    handle: NonNull<c_void>,
    bytes: &'a [u8],
    width: u32,
    height: u32,
    colours: Colours,
}

impl Drop for Decompressor<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and not used again.
        unsafe { turbo::tj3Destroy(self.handle.as_ptr()) }
    }
}

impl<'a> Decompressor<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        // SAFETY: takes no memory of ours.
        let handle = unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let handle = NonNull::new(handle).ok_or("there is no memory for its decoder")?;
        let mut this = Self { handle, bytes, width: 0, height: 0, colours: Colours::Rgb };
        this.set(turbo::TJPARAM_TJPARAM_SCANLIMIT, SCANS_MAX)?;
        // Colour profiles are not used, and may be damaged.
        this.set(turbo::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        // SAFETY: the handle is valid, and pointer and length are those of one slice.
        let status = unsafe {
            turbo::tj3DecompressHeader(
                handle.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as turbo::size_t,
            )
        };
        this.check(status)?;
        // Not known where a file has tables only.
        let size = [turbo::TJPARAM_TJPARAM_JPEGWIDTH, turbo::TJPARAM_TJPARAM_JPEGHEIGHT]
            .map(|side| u32::try_from(this.get(side)).ok().filter(|side| *side > 0));
        let [Some(width), Some(height)] = size else {
            return Err("the image ends before its size is told".to_owned());
        };
        (this.width, this.height) = (width, height);
        this.colours = match this.get(turbo::TJPARAM_TJPARAM_COLORSPACE) as turbo::TJCS {
            turbo::TJCS_TJCS_GRAY => Colours::Grey,
            turbo::TJCS_TJCS_CMYK | turbo::TJCS_TJCS_YCCK => Colours::Cmyk,
            _ => Colours::Rgb,
        };
        Ok(this)
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    pub(super) fn colours(&self) -> Colours {
        self.colours
    }

    /// Pixels from where one region can begin to where the next can, of an image at full size. None
    /// where there is nothing but the whole image at full size.
    pub(super) fn block_width(&self) -> Option<u32> {
        if self.get(turbo::TJPARAM_TJPARAM_LOSSLESS) == 1 {
            return None;
        }
        match self.get(turbo::TJPARAM_TJPARAM_SUBSAMP) {
            turbo::TJSAMP_TJSAMP_444 | turbo::TJSAMP_TJSAMP_440 | turbo::TJSAMP_TJSAMP_GRAY => {
                Some(8)
            }
            turbo::TJSAMP_TJSAMP_422 | turbo::TJSAMP_TJSAMP_420 => Some(16),
            turbo::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        }
    }

    /// A region of the image whose sides are divided by `divisor` (1, 2, 4 or 8) into `pixels`, row
    /// by row.
    pub(super) fn decode(
        &mut self,
        divisor: u32,
        region: Region,
        pixels: &mut [u8],
    ) -> Result<(), String> {
        let [left, top, width, height] = [region.left, region.top, region.width, region.height];
        let (width_all, height_all) = (self.width.div_ceil(divisor), self.height.div_ceil(divisor));
        // What the library is told below, and what it then writes. No width and no height would
        // mean all, and without loss it does not divide.
        if width == 0
            || height == 0
            || left.saturating_add(width) > width_all
            || top.saturating_add(height) > height_all
            || (divisor != 1 && self.block_width().is_none())
            || pixels.len() != width as usize * height as usize * self.colours.channels()
        {
            return Err(format!(
                "a part of {width}x{height} at ({left}, {top}) in {} bytes is not within \
                 {width_all}x{height_all}",
                pixels.len()
            ));
        }
        let factor = turbo::tjscalingfactor { num: 1, denom: divisor as c_int };
        // All zeros: the whole image, which may have colours that cannot be cut.
        let is_whole = (width, height) == (width_all, height_all);
        let [x, y, w, h] = if is_whole {
            [0; 4]
        } else {
            [left, top, width, height].map(|pixels| pixels as c_int)
        };
        let handle = self.handle.as_ptr();
        // SAFETY: the handle is valid.
        self.check(unsafe { turbo::tj3SetScalingFactor(handle, factor) })?;
        // SAFETY: as above.
        self.check(unsafe { turbo::tj3SetCroppingRegion(handle, turbo::tjregion { x, y, w, h }) })?;
        // SAFETY: pointer and length are those of one slice. The library writes `height` rows of
        // `width` pixels, which is what `pixels` has: checked above, against the header of the same
        // bytes.
        let status = unsafe {
            turbo::tj3Decompress8(
                handle,
                self.bytes.as_ptr(),
                self.bytes.len() as turbo::size_t,
                pixels.as_mut_ptr(),
                0,
                pixel_format(self.colours),
            )
        };
        self.check(status)
    }

    fn set(&mut self, parameter: turbo::TJPARAM, value: c_int) -> Result<(), String> {
        // SAFETY: the handle is valid.
        self.check(unsafe { turbo::tj3Set(self.handle.as_ptr(), parameter as c_int, value) })
    }

    fn get(&self, parameter: turbo::TJPARAM) -> c_int {
        // SAFETY: the handle is valid.
        unsafe { turbo::tj3Get(self.handle.as_ptr(), parameter as c_int) }
    }

    /// The library's message, unless it is a harmless one: the first warning's, or the error's if one
    /// followed.
    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a string of the handle, or of this thread, that the next call may change.
        let message = unsafe { CStr::from_ptr(turbo::tj3GetErrorStr(self.handle.as_ptr())) };
        let message = message.to_string_lossy();
        let is_harmless = HARMLESS.iter().any(|harmless| message.contains(harmless));
        let is_lost =
            RESTARTS.map(|marker| format!("marker {marker:#04x}")).any(|it| message.ends_with(&it));
        if is_harmless && !is_lost {
            return Ok(());
        }
        // Without the function's name.
        Err(message.split_once("(): ").map_or(&*message, |(_, problem)| problem).to_owned())
    }
}

fn pixel_format(colours: Colours) -> c_int {
    match colours {
        Colours::Grey => turbo::TJPF_TJPF_GRAY,
        Colours::Rgb => turbo::TJPF_TJPF_RGB,
        Colours::Cmyk => turbo::TJPF_TJPF_CMYK,
    }
}
