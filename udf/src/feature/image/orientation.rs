//! How the camera was held.

use super::pixels::Pixels;

/// What makes a stored image upright: first rows become columns, then it is mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orientation {
    swaps_axes: bool,
    mirrors_x: bool,
    mirrors_y: bool,
}

/// A part of an image, not necessarily of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Part {
    /// The same part of an image whose sides are divided.
    pub(super) fn divided_by(self, divisor: u32) -> Self {
        let [left, top, width, height] =
            [self.left, self.top, self.width, self.height].map(|at| at / f64::from(divisor));
        Self { left, top, width, height }
    }

    pub(super) fn moved_by(self, x: f64, y: f64) -> Self {
        Self { left: self.left + x, top: self.top + y, ..self }
    }

    /// What of it is in an image of this size: sums of parts of pixels may be a little beyond.
    pub(super) fn within(self, width: u32, height: u32) -> Self {
        let side = |start: f64, length: f64, side: u32| {
            let start = start.max(0.0);
            (start, length.min(f64::from(side) - start))
        };
        let (left, width) = side(self.left, self.width, width);
        let (top, height) = side(self.top, self.height, height);
        Self { left, top, width, height }
    }
}

impl From<image::metadata::Orientation> for Orientation {
    fn from(orientation: image::metadata::Orientation) -> Self {
        Self::from_exif(orientation.to_exif())
    }
}

impl Orientation {
    /// By the number that EXIF gives it; as stored for one that it does not know.
    pub(super) fn from_exif(number: u8) -> Self {
        let (swaps_axes, mirrors_x, mirrors_y) = match number {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Self { swaps_axes, mirrors_x, mirrors_y }
    }

    /// Of the EXIF block of a file, which may be damaged.
    pub(super) fn of_exif(block: &[u8]) -> Self {
        image::metadata::Orientation::from_exif_chunk(block).map(Self::from).unwrap_or_default()
    }

    /// The upright size of an image of this stored size, and the other way round.
    pub(super) fn size(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.swaps_axes { (height, width) } else { (width, height) }
    }

    /// Where a part of the upright image is in the stored one, given the upright size.
    pub(super) fn stored_part(self, part: Part, (width, height): (u32, u32)) -> Part {
        let Part { mut left, mut top, width: part_width, height: part_height } = part;
        if self.mirrors_x {
            left = f64::from(width) - left - part_width;
        }
        if self.mirrors_y {
            top = f64::from(height) - top - part_height;
        }
        if self.swaps_axes {
            Part { left: top, top: left, width: part_height, height: part_width }
        } else {
            Part { left, top, width: part_width, height: part_height }
        }
    }

    /// Makes a stored image upright.
    pub(super) fn apply(self, stored: Pixels<'_>) -> Pixels<'_> {
        if self == Self::default() {
            return stored;
        }
        let (width, height) = self.size((stored.width, stored.height));
        let bytes = stored.mode.channels();
        let mut data = Vec::with_capacity(stored.data.len());
        for y in 0..height {
            let y = if self.mirrors_y { height - 1 - y } else { y };
            for x in 0..width {
                let x = if self.mirrors_x { width - 1 - x } else { x };
                let (column, row) = if self.swaps_axes { (y, x) } else { (x, y) };
                let start = (row as usize * stored.width as usize + column as usize) * bytes;
                data.extend_from_slice(&stored.data[start..start + bytes]);
            }
        }
        Pixels { width, height, mode: stored.mode, data: data.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pixels::Mode;
    use super::*;

    /// ```text
    /// 1 2 3
    /// 4 5 6
    /// ```
    fn stored() -> Pixels<'static> {
        Pixels::try_new(3, 2, Mode::L, vec![1, 2, 3, 4, 5, 6]).unwrap()
    }

    #[test]
    fn every_orientation_of_exif_is_undone() {
        // What Pillow's `ImageOps.exif_transpose` gives.
        let cases: [(u8, [u8; 6]); 8] = [
            (1, [1, 2, 3, 4, 5, 6]),
            (2, [3, 2, 1, 6, 5, 4]),
            (3, [6, 5, 4, 3, 2, 1]),
            (4, [4, 5, 6, 1, 2, 3]),
            (5, [1, 4, 2, 5, 3, 6]),
            (6, [4, 1, 5, 2, 6, 3]),
            (7, [6, 3, 5, 2, 4, 1]),
            (8, [3, 6, 2, 5, 1, 4]),
        ];
        for (number, expected) in cases {
            assert_eq!(*Orientation::from_exif(number).apply(stored()).data, expected, "{number}");
        }
    }

    #[test]
    fn a_part_of_the_upright_image_is_found_in_the_stored_one() {
        for number in 1..=8 {
            let orientation = Orientation::from_exif(number);
            let upright = orientation.apply(stored());
            let size = (upright.width, upright.height);
            for (x, y) in (0..size.0).flat_map(|x| (0..size.1).map(move |y| (x, y))) {
                let one = Part { left: f64::from(x), top: f64::from(y), width: 1.0, height: 1.0 };
                let part = orientation.stored_part(one, size);
                let found = stored().data[(part.top * 3.0 + part.left) as usize];
                assert_eq!(found, upright.data[(y * size.0 + x) as usize], "{number} {x} {y}");
            }
        }
    }
}
