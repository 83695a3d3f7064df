//! An image in memory.

use std::borrow::Cow;

/// What the channels of a pixel are. The names are those of Pillow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mode {
    /// Grey.
    L,
    /// Grey and opacity.
    La,
    /// Red, green, blue.
    Rgb,
    /// Red, green, blue, opacity.
    Rgba,
}

impl Mode {
    pub(super) const ALL: [Self; 4] = [Self::L, Self::La, Self::Rgb, Self::Rgba];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::L => "L",
            Self::La => "LA",
            Self::Rgb => "RGB",
            Self::Rgba => "RGBA",
        }
    }

    /// How many bytes a pixel has.
    pub(crate) fn channels(self) -> usize {
        match self {
            Self::L => 1,
            Self::La => 2,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }

    pub(super) fn parse(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            format!(
                "there is no mode '{name}'; the modes are {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// An image of 8 bits per channel, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pixels<'a> {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) mode: Mode,
    pub(super) data: Cow<'a, [u8]>,
}

impl<'a> Pixels<'a> {
    /// Checks that there are as many bytes as pixels.
    pub(super) fn try_new(
        width: u32,
        height: u32,
        mode: Mode,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Self, String> {
        let data = data.into();
        let expected = width as usize * height as usize * mode.channels();
        if width == 0 || height == 0 || data.len() != expected {
            return Err(format!(
                "an image of {width}x{height} in mode {} has {} bytes, expected {expected}",
                mode.name(),
                data.len()
            ));
        }
        Ok(Self { width, height, mode, data })
    }

    /// The same image in another mode. Opacity is dropped as it is, without a background; grey is
    /// ITU-R 601's, rounded as in Pillow.
    pub(super) fn into_mode(self, mode: Mode) -> Self {
        use Mode::{L, La, Rgb, Rgba};
        let data = match (self.mode, mode) {
            (from, to) if from == to => return self,
            (L, La) => self.map(|[l]: [u8; 1]| [l, 255]),
            (L, Rgb) => self.map(|[l]: [u8; 1]| [l; 3]),
            (L, Rgba) => self.map(|[l]: [u8; 1]| [l, l, l, 255]),
            (La, L) => self.map(|[l, _]: [u8; 2]| [l]),
            (La, Rgb) => self.map(|[l, _]: [u8; 2]| [l; 3]),
            (La, Rgba) => self.map(|[l, a]: [u8; 2]| [l, l, l, a]),
            (Rgb, L) => self.map(|rgb: [u8; 3]| [grey(rgb)]),
            (Rgb, La) => self.map(|rgb: [u8; 3]| [grey(rgb), 255]),
            (Rgb, Rgba) => self.map(|[r, g, b]: [u8; 3]| [r, g, b, 255]),
            (Rgba, L) => self.map(|[r, g, b, _]: [u8; 4]| [grey([r, g, b])]),
            (Rgba, La) => self.map(|[r, g, b, a]: [u8; 4]| [grey([r, g, b]), a]),
            (Rgba, Rgb) => self.map(|[r, g, b, _]: [u8; 4]| [r, g, b]),
            // Equal modes, which the first arm has.
            (L, L) | (La, La) | (Rgb, Rgb) | (Rgba, Rgba) => return self,
        };
        Self { mode, data: Cow::Owned(data), ..self }
    }

    fn map<const FROM: usize, const TO: usize>(
        &self,
        one: impl Fn([u8; FROM]) -> [u8; TO],
    ) -> Vec<u8> {
        let (pixels, _) = self.data.as_chunks::<FROM>();
        pixels.iter().flat_map(|pixel| one(*pixel)).collect()
    }

    /// The middle of the image.
    pub(super) fn center_crop(&self, width: u32, height: u32) -> Result<Pixels<'static>, String> {
        let start = |side: u32, part: u32| margin(u64::from(side), part) as u32;
        self.crop(start(self.width, width), start(self.height, height), width, height)
    }

    /// A part of the image.
    pub(super) fn crop(
        &self,
        left: u32,
        top: u32,
        width: u32,
        height: u32,
    ) -> Result<Pixels<'static>, String> {
        let fits = |start: u32, length: u32, side: u32| {
            length > 0 && start.checked_add(length).is_some_and(|end| end <= side)
        };
        if !fits(left, width, self.width) || !fits(top, height, self.height) {
            return Err(format!(
                "a crop of {width}x{height} at ({left}, {top}) is not within an image of {}x{}",
                self.width, self.height
            ));
        }
        let bytes = self.mode.channels();
        let row = |y: u32| {
            let start = (y as usize * self.width as usize + left as usize) * bytes;
            &self.data[start..start + width as usize * bytes]
        };
        let data: Vec<u8> = (top..top + height).flat_map(row).copied().collect();
        Pixels::try_new(width, height, self.mode, data)
    }
}

/// Half of what is left over, rounded as torchvision rounds it.
pub(super) fn margin(whole: u64, part: u32) -> f64 {
    ((whole.saturating_sub(u64::from(part))) as f64 / 2.0).round_ties_even()
}

fn grey([r, g, b]: [u8; 3]) -> u8 {
    let sum = u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000;
    (sum >> 16) as u8
}
