//! What a decompressor is asked for.

/// What pixels are decoded to.
#[cfg_attr(not(feature = "jpeg"), expect(dead_code, reason = "nothing is decoded then"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Grey,
    Rgb,
    /// For printing.
    Cmyk,
}

impl Colours {
    pub(super) fn channels(self) -> usize {
        match self {
            Self::Grey => 1,
            Self::Rgb => 3,
            Self::Cmyk => 4,
        }
    }
}

/// Pixels of an image whose sides are divided already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}
