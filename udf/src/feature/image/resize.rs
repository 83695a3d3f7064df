//! Resampling, as Pillow does it: a filter whose support grows with the reduction (antialiased).

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use serde::{Deserialize, Serialize};

use super::limits::check_size;
use super::orientation::Part;
use super::pixels::{Mode, Pixels};

/// How a pixel is made from those around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    /// The pixel that is nearest, without antialiasing.
    Nearest,
    /// The mean of the pixels that become one.
    Box,
    /// Weights that fall in a straight line.
    #[default]
    Bilinear,
    /// A cubic curve, sharper.
    Bicubic,
    /// A windowed sinc of three lobes, the sharpest.
    Lanczos,
}

impl Filter {
    const ALL: [Self; 5] = [Self::Nearest, Self::Box, Self::Bilinear, Self::Bicubic, Self::Lanczos];

    fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Box => "box",
            Self::Bilinear => "bilinear",
            Self::Bicubic => "bicubic",
            Self::Lanczos => "lanczos",
        }
    }

    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|filter| filter.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no filter '{name}'; the filters are {names}")
        })
    }

    /// How many pixels around a place are looked at, if `scale` pixels become one.
    pub(super) fn support(self, scale: f64) -> f64 {
        let radius = match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        };
        radius * scale.max(1.0)
    }

    fn algorithm(self) -> ResizeAlg {
        match self {
            Self::Nearest => ResizeAlg::Nearest,
            Self::Box => ResizeAlg::Convolution(FilterType::Box),
            Self::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Self::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Self::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        }
    }
}

/// Resamples images one after the other, in the same memory.
#[derive(Default)]
pub(crate) struct Resampler(Resizer);

impl std::fmt::Debug for Resampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resampler")
    }
}

impl Resampler {
    /// A part of an image, or all of it, as an image of `width` times `height`.
    pub(super) fn resize(
        &mut self,
        image: &Pixels<'_>,
        part: Option<Part>,
        (width, height): (u32, u32),
        filter: Filter,
    ) -> Result<Pixels<'static>, String> {
        check_size(width, height)?;
        let kind = match image.mode {
            Mode::L => PixelType::U8,
            Mode::La => PixelType::U8x2,
            Mode::Rgb => PixelType::U8x3,
            Mode::Rgba => PixelType::U8x4,
        };
        let source = ImageRef::new(image.width, image.height, &image.data, kind)
            .map_err(|e| e.to_string())?;
        let mut target = Image::new(width, height, kind);
        let mut options = ResizeOptions::new().resize_alg(filter.algorithm());
        if let Some(part) = part {
            options = options.crop(part.left, part.top, part.width, part.height);
        }
        self.0.resize(&source, &mut target, &options).map_err(|e| e.to_string())?;
        Pixels::try_new(width, height, image.mode, target.into_vec())
    }
}
