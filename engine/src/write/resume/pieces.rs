//! Pieces of files, and parts of them.

use super::input::Input;

/// Where a piece may begin and end in a file that can be cut: at multiples of it, and at the end. So pieces
/// of different sizes cover the same.
const UNIT: u64 = 1 << 20;

/// What is read in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// The files, in the order of their rows.
    pub files: Vec<InputFile>,
}

/// A file that is read in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFile {
    /// The file.
    pub input: Input,
    /// Which of a statement's scans reads it: several may read the same file.
    pub scan: usize,
    /// What of it makes rows.
    pub reads: Reads,
}

/// What of a file makes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Its bytes: a part of them can be read alone.
    Bytes,
    /// Its bytes, all together.
    Whole,
    /// The file itself, which is a row even if it is empty.
    File,
}

impl InputFile {
    /// How far its pieces go.
    pub(super) fn end(&self) -> u64 {
        match self.reads {
            Reads::Bytes | Reads::Whole => self.input.size,
            Reads::File => self.input.size.max(1),
        }
    }
}

/// Bytes of a file: of formats with rows in groups or in lines those that begin there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Which file.
    pub file: usize,
    /// The first byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
}

impl Piece {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.file == other.file && self.start < other.end && other.start < self.end
    }
}

impl Inputs {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(InputFile::end).sum()
    }

    /// All of it, in parts of about so many bytes: each file that can be cut is cut at multiples of 1 MiB. How it is cut
    /// depends on the files alone.
    pub fn in_parts(&self, part_bytes: u64) -> Vec<Vec<Piece>> {
        self.parts(self.missing(std::iter::empty()), part_bytes)
    }

    /// What these pieces do not cover, in order.
    pub(in crate::write) fn missing(&self, covered: impl Iterator<Item = Piece>) -> Vec<Piece> {
        let mut covered: Vec<Piece> = covered.collect();
        covered.sort_unstable();
        let mut covered = covered.into_iter().peekable();
        let mut missing = vec![];
        for (file, read) in self.files.iter().enumerate() {
            let mut start = 0;
            while let Some(piece) = covered.next_if(|piece| piece.file == file) {
                missing.push(Piece { file, start, end: piece.start });
                start = start.max(piece.end);
            }
            missing.push(Piece { file, start, end: read.end() });
        }
        missing.retain(|piece| piece.bytes() > 0);
        missing
    }

    /// The same in parts of about so many bytes.
    pub(in crate::write) fn parts(&self, missing: Vec<Piece>, part_bytes: u64) -> Vec<Vec<Piece>> {
        let mut parts = vec![];
        let mut part: Vec<Piece> = vec![];
        let mut room = part_bytes;
        for mut piece in missing {
            while piece.bytes() > 0 {
                let end = self.end(&piece, room);
                part.push(Piece { end, ..piece });
                room = room.saturating_sub(end - piece.start);
                piece.start = end;
                if room == 0 || piece.bytes() > 0 {
                    parts.push(std::mem::take(&mut part));
                    room = part_bytes;
                }
            }
        }
        if !part.is_empty() {
            parts.push(part);
        }
        parts
    }

    /// Where a part ends that begins with a piece and has so much room.
    fn end(&self, piece: &Piece, room: u64) -> u64 {
        if self.files[piece.file].reads != Reads::Bytes {
            return piece.end;
        }
        let last = piece.start.saturating_add(room) / UNIT * UNIT;
        let least = (piece.start / UNIT + 1) * UNIT;
        last.max(least).min(piece.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inputs(sizes: &[u64], reads: Reads) -> Inputs {
        let input = |at: usize, size| Input {
            store: "file:///".to_owned(),
            path: at.to_string(),
            size,
            version: String::new(),
        };
        let file =
            |(at, size): (usize, &u64)| InputFile { input: input(at, *size), scan: 0, reads };
        Inputs { files: sizes.iter().enumerate().map(file).collect() }
    }

    #[test]
    fn parts_have_about_the_size_that_they_are_to_have() {
        let inputs = inputs(&[3 * UNIT + 5, 10, 0, UNIT], Reads::Bytes);
        let all = inputs.missing([].into_iter());
        let told = |parts: Vec<Vec<Piece>>| {
            let piece = |piece: &Piece| (piece.file, piece.start, piece.end);
            parts.iter().map(|part| part.iter().map(piece).collect()).collect::<Vec<Vec<_>>>()
        };
        assert_eq!(
            told(inputs.parts(all.clone(), 2 * UNIT)),
            [vec![(0, 0, 2 * UNIT)], vec![(0, 2 * UNIT, 3 * UNIT + 5), (1, 0, 10), (3, 0, UNIT)]]
        );
        assert_eq!(told(inputs.parts(all.clone(), 1)).len(), 6);
        assert_eq!(told(inputs.parts(all, u64::MAX)).len(), 1);
    }

    #[test]
    fn a_file_that_is_a_row_is_one_even_if_it_is_empty() {
        let inputs = inputs(&[0, 5, 0], Reads::File);
        let all = inputs.missing([].into_iter());
        let ends: Vec<u64> = all.iter().map(|piece| piece.end).collect();
        assert_eq!(ends, [1, 5, 1]);
        assert_eq!(inputs.parts(all, 1).len(), 3);
    }

    proptest! {
        #[test]
        fn whatever_was_covered_the_rest_is_computed_once(
            sizes in prop::collection::vec(0..5 * UNIT, 1..6),
            reads in prop::sample::select(vec![Reads::Bytes, Reads::Whole, Reads::File]),
            earlier in 1..6 * UNIT,
            later in 1..6 * UNIT,
            kept in prop::collection::vec(any::<bool>(), 40),
        ) {
            let inputs = inputs(&sizes, reads);
            let all = inputs.parts(inputs.missing([].into_iter()), earlier);
            let kept = all.into_iter().zip(&kept).filter(|(_, kept)| **kept);
            let kept: Vec<Piece> = kept.flat_map(|(part, _)| part).collect();
            let missing = inputs.missing(kept.iter().copied());
            let rest = inputs.parts(missing, later);
            prop_assert!(rest.iter().all(|part| !part.is_empty()));
            let mut pieces: Vec<Piece> = rest.into_iter().flatten().chain(kept).collect();
            pieces.sort_unstable();
            // Each byte is in one of them.
            let ends: Vec<u64> = inputs.files.iter().map(InputFile::end).collect();
            for (file, size) in ends.iter().enumerate() {
                let of_file = pieces.iter().filter(|piece| piece.file == file);
                let end = of_file.fold(0, |end, piece| {
                    assert_eq!(piece.start, end);
                    piece.end
                });
                prop_assert_eq!(end, *size);
            }
            let whole = pieces.iter().all(|p| p.start == 0 && p.end == ends[p.file]);
            prop_assert!(reads == Reads::Bytes || whole);
        }
    }
}
