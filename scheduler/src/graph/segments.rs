//! What a block has of each partition of a hash shuffle: its file has the partitions' segments one behind the
//! other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The rows of one partition in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The partition.
    pub partition: u32,
    /// Where it begins in the file.
    pub at: u32,
    /// Its bytes.
    pub bytes: u32,
    /// Its rows.
    pub rows: u32,
    /// CRC-32 of its bytes.
    pub checksum: u32,
}

/// The segments of one block, in the order of the partitions, each of which begins where the one before it ends.
/// A partition without rows has none. Sixteen bytes of each are kept, written down, and told.
#[derive(Clone, PartialEq, Eq)]
pub struct Segments(Arc<[u8]>);

/// Bytes that are kept of a segment: the partition, where it ends, its rows, its checksum.
const RECORD_BYTES: usize = 16;

impl Segments {
    /// Partitions of a shuffle at most.
    pub const PARTITIONS_MAX: usize = 1 << 16;

    /// Bytes of all segments of a block at most.
    pub const BYTES_MAX: usize = Self::PARTITIONS_MAX * RECORD_BYTES;

    /// Of these, which are in their order.
    pub fn new(segments: &[Segment]) -> Self {
        let record = |segment: &Segment| {
            let end = segment.at.saturating_add(segment.bytes);
            [segment.partition, end, segment.rows, segment.checksum].map(u32::to_le_bytes)
        };
        Self(segments.iter().flat_map(record).flatten().collect())
    }

    /// Of the bytes of others. None if they are not that.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let records = bytes.len() / RECORD_BYTES;
        let is_whole = bytes.len().is_multiple_of(RECORD_BYTES);
        if !is_whole || records > Self::PARTITIONS_MAX {
            return None;
        }
        let found = Self(bytes.into());
        let ascends = |number: usize| {
            let numbers = (0..records).map(|at| found.number(at, number));
            numbers.is_sorted_by(|a, b| a < b)
        };
        (ascends(0) && ascends(1)).then_some(found)
    }

    /// As [`Self::from_bytes`] takes them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes of all of them: of the file.
    pub fn file_bytes(&self) -> u64 {
        self.len().checked_sub(1).map_or(0, |last| self.number(last, 1).into())
    }

    /// The rows of all of them.
    pub fn rows(&self) -> u64 {
        self.iter().map(|segment| u64::from(segment.rows)).sum()
    }

    /// That of a partition, if it has rows.
    pub fn of(&self, partition: u32) -> Option<Segment> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = usize::midpoint(from, to);
            match self.number(middle, 0).cmp(&partition) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Some(self.get(middle)),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Segment> {
        (0..self.len()).map(|at| self.get(at))
    }

    fn len(&self) -> usize {
        self.0.len() / RECORD_BYTES
    }

    fn get(&self, at: usize) -> Segment {
        let begin = at.checked_sub(1).map_or(0, |before| self.number(before, 1));
        Segment {
            partition: self.number(at, 0),
            at: begin,
            bytes: self.number(at, 1) - begin,
            rows: self.number(at, 2),
            checksum: self.number(at, 3),
        }
    }

    fn number(&self, at: usize, place: usize) -> u32 {
        let from = at * RECORD_BYTES + place * size_of::<u32>();
        let bytes = self.0.get(from..).and_then(|rest| rest.first_chunk());
        u32::from_le_bytes(bytes.copied().unwrap_or_default())
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} segments of {} rows", self.len(), self.rows())
    }
}

/// As text where people can read it.
impl Serialize for Segments {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.serialize_str(&STANDARD_NO_PAD.encode(self.bytes())),
            false => self.bytes().serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Segments {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = match from.is_human_readable() {
            true => STANDARD_NO_PAD.decode(String::deserialize(from)?).ok(),
            false => Some(Vec::deserialize(from)?),
        };
        let found = bytes.and_then(|bytes| Self::from_bytes(&bytes));
        found.ok_or_else(|| D::Error::custom("segments that are not in order, or damaged"))
    }
}

/// Rows by partition, of all of these. Nothing if some are not dealt out.
pub(super) fn rows_by_partition<'a>(
    blocks: impl IntoIterator<Item = Option<&'a Segments>>,
) -> Option<BTreeMap<u32, u64>> {
    let mut rows = BTreeMap::new();
    for segments in blocks {
        for segment in segments?.iter() {
            *rows.entry(segment.partition).or_default() += u64::from(segment.rows);
        }
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use forebay_testkit::random::Random;

    use super::*;

    fn random(random: &mut Random, partitions: u32) -> Vec<Segment> {
        let mut at = 0;
        let mut all = vec![];
        for partition in (0..partitions).filter(|_| random.chance(60)).collect::<Vec<_>>() {
            let bytes = 1 + random.below(1 << 20) as u32;
            let (rows, checksum) = (1 + random.below(1000) as u32, random.number() as u32);
            all.push(Segment { partition, at, bytes, rows, checksum });
            at += bytes;
        }
        all
    }

    #[test]
    fn each_partition_has_its_segment_or_none() {
        let mut rng = Random::new(1);
        for partitions in [0, 1, 2, 7, 1000] {
            let expected = random(&mut rng, partitions);
            let packed = Segments::new(&expected);
            assert_eq!(packed.bytes().len(), 16 * expected.len());
            assert_eq!(packed.iter().collect::<Vec<_>>(), expected);
            for partition in 0..partitions + 2 {
                let found = expected.iter().find(|segment| segment.partition == partition);
                assert_eq!(packed.of(partition), found.copied());
            }
            let end = expected.last().map_or(0, |last| u64::from(last.at + last.bytes));
            assert_eq!(packed.file_bytes(), end);
            let text = serde_json::to_string(&packed).unwrap();
            assert_eq!(serde_json::from_str::<Segments>(&text).unwrap(), packed);
            assert_eq!(Segments::from_bytes(packed.bytes()), Some(packed));
        }
    }

    #[test]
    fn what_is_not_in_order_is_refused() {
        let segment = |partition, at, bytes| Segment { partition, at, bytes, rows: 1, checksum: 7 };
        for damaged in [
            vec![segment(1, 0, 5), segment(1, 5, 5)],
            vec![segment(2, 0, 5), segment(1, 5, 5)],
            vec![segment(1, 0, 5), segment(2, 5, 0)],
            vec![segment(1, 9, 5), segment(2, 5, 2)],
        ] {
            let packed = Segments::new(&damaged);
            assert_eq!(Segments::from_bytes(packed.bytes()), None, "{damaged:?}");
            let text = serde_json::to_string(&packed).unwrap();
            serde_json::from_str::<Segments>(&text).unwrap_err();
        }
        let whole = Segments::new(&[segment(1, 0, 5)]);
        assert_eq!(Segments::from_bytes(&whole.bytes()[1..]), None);
        serde_json::from_str::<Segments>("\"?\"").unwrap_err();
    }

    #[test]
    fn rows_are_counted_by_partition_if_all_are_dealt_out() {
        let segment = |partition, rows| Segment { partition, at: 0, bytes: 1, rows, checksum: 0 };
        let (one, other) =
            (Segments::new(&[segment(1, 5), segment(4, 2)]), Segments::new(&[segment(4, 3)]));
        let rows = rows_by_partition([Some(&one), Some(&other)]).unwrap();
        assert_eq!(rows, [(1, 5), (4, 5)].into());
        assert_eq!(rows_by_partition([Some(&one), None]), None);
    }
}
