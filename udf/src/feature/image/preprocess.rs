//! The recipe of image classifiers in one step: the shorter side to `resize` (or both), then the middle.
//!
//! ```text
//!  bytes ──> what stays of it and around ──> resampled, made upright ──> crop x crop x 3
//!            (a JPEG: only this is decoded, at 1/2 to 1/8 if it is large)
//! ```
//!
//! Only the part that stays is resampled, which gives the same pixels as resampling all and cutting
//! out the middle.

use serde::{Deserialize, Serialize};

use super::decode::{Format, decode_stored, guarded};
use super::jpeg::Jpeg;
use super::limits::{PIXELS_MAX, check_size};
use super::orientation::{Orientation, Part};
use super::pixels::{Mode, Pixels, margin};
use super::resize::{Filter, Resampler};

/// A reduced image has at least this many times the pixels of a side that the result needs. With
/// fewer, the difference to an image that was resampled as a whole can be seen.
const HEADROOM: u32 = 2;

/// Which sides of an image are resized to the number of pixels that a recipe says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// The shorter one; the image keeps its proportions.
    #[default]
    Shorter,
    /// Both, whatever the proportions are.
    Both,
}

/// Where the middle begins, if what is cut off on both sides is an odd number of pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Middle {
    /// At half of it, rounded to an even number: as torchvision does.
    #[default]
    Rounded,
    /// At half of it, rounded down: as transformers does.
    Floored,
}

impl Middle {
    /// Whether it need not be said.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Pixels in front of the middle `part` of `whole`.
    fn start(self, whole: u64, part: u32) -> f64 {
        match self {
            Self::Rounded => margin(whole, part),
            Self::Floored => (whole.saturating_sub(u64::from(part)) / 2) as f64,
        }
    }
}

/// What an image becomes: `crop` times `crop` pixels of RGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Recipe {
    /// Pixels of the sides that are resized, before the crop.
    pub(crate) resize: u32,
    /// Pixels of the sides of the result, which is the middle. Not more than `resize`.
    pub(crate) crop: u32,
    /// How pixels are resampled.
    filter: Filter,
    /// Which sides are resized.
    fit: Fit,
    /// What the middle is.
    middle: Middle,
}

/// Memory that one image after the other uses.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    resampler: Resampler,
    /// The bytes of an image as it is stored.
    stored: Vec<u8>,
}

/// An image as it is stored, or less of it.
struct Stored {
    pixels: Pixels<'static>,
    /// What stays, as a part of `pixels`.
    part: Part,
    orientation: Orientation,
}

impl Recipe {
    /// # Errors
    /// If no such image can be made.
    pub(crate) fn try_new(resize: u32, crop: u32) -> Result<Self, String> {
        if resize > 0 && crop > 0 && crop <= resize && check_size(resize, resize).is_ok() {
            Ok(Self {
                resize,
                crop,
                filter: Filter::default(),
                fit: Fit::default(),
                middle: Middle::default(),
            })
        } else {
            Err(format!(
                "resize is {resize} and crop is {crop}, expected a crop of 1 to resize, and no \
                 more than {PIXELS_MAX} pixels"
            ))
        }
    }

    /// The same by another filter.
    pub(crate) fn with_filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    /// The same with other sides that are resized.
    pub(crate) fn with_fit(self, fit: Fit) -> Self {
        Self { fit, ..self }
    }

    /// The same with another middle.
    pub(crate) fn with_middle(self, middle: Middle) -> Self {
        Self { middle, ..self }
    }

    /// Bytes of the result.
    pub(crate) fn bytes(self) -> usize {
        self.crop as usize * self.crop as usize * Mode::Rgb.channels()
    }

    /// The pixels of one image: [`Self::bytes`], row by row, RGB.
    ///
    /// # Errors
    /// Why it cannot be decoded.
    pub(crate) fn apply(self, bytes: &[u8], workspace: &mut Workspace) -> Result<Vec<u8>, String> {
        let Workspace { resampler, stored: memory } = workspace;
        guarded(
            |format| {
                let stored = self.decode(format, bytes, std::mem::take(memory))?;
                let size = (self.crop, self.crop);
                let small =
                    resampler.resize(&stored.pixels, Some(stored.part), size, self.filter)?;
                *memory = stored.pixels.data.into_owned();
                Ok(stored.orientation.apply(small).into_mode(Mode::Rgb).data.into_owned())
            },
            bytes,
        )
    }

    fn decode(self, format: Format, bytes: &[u8], memory: Vec<u8>) -> Result<Stored, String> {
        if format == Format::Jpeg {
            return self.decode_jpeg(&mut Jpeg::open(bytes)?, memory);
        }
        let (pixels, orientation) = decode_stored(bytes, format)?;
        // Before resampling, which would weigh colours by their opacity.
        let pixels = if pixels.mode == Mode::L { pixels } else { pixels.into_mode(Mode::Rgb) };
        let part = self.stored_part((pixels.width, pixels.height), orientation);
        let part = part.within(pixels.width, pixels.height);
        Ok(Stored { pixels, part, orientation })
    }

    fn decode_jpeg(self, jpeg: &mut Jpeg<'_>, memory: Vec<u8>) -> Result<Stored, String> {
        let part = self.stored_part(jpeg.size(), jpeg.orientation);
        let reduction = jpeg.reduction_to(self.resize.saturating_mul(HEADROOM));
        let pixels = part.width.max(part.height) / f64::from(reduction.divisor());
        let support = self.filter.support(pixels / f64::from(self.crop));
        let decoded = jpeg.decode_part(part, reduction, support, memory)?;
        Ok(Stored { pixels: decoded.pixels, part: decoded.part, orientation: jpeg.orientation })
    }

    /// What stays, as a part of the stored image.
    fn stored_part(self, stored_size: (u32, u32), orientation: Orientation) -> Part {
        let upright_size = orientation.size(stored_size);
        orientation.stored_part(self.part(upright_size), upright_size)
    }

    /// What of an image stays. Sizes are rounded as torchvision's `Resize` rounds them.
    fn part(self, (width, height): (u32, u32)) -> Part {
        let (shorter, longer) = (width.min(height), width.max(height));
        let resized_longer = u64::from(self.resize) * u64::from(longer) / u64::from(shorter);
        let side = |side: u32| {
            let is_resized = side == shorter || self.fit == Fit::Both;
            let resized = if is_resized { u64::from(self.resize) } else { resized_longer };
            let start = self.middle.start(resized, self.crop);
            let pixels = f64::from(side) / resized as f64;
            (start * pixels, f64::from(self.crop) * pixels)
        };
        let ((left, width), (top, height)) = (side(width), side(height));
        Part { left, top, width, height }
    }
}
