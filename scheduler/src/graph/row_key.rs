//! Keys of rows as bytes, and what lies between two of them.

use std::fmt;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where a row stands in an order: bytes that compare as the rows do. Of a longer key, the first bytes, which
/// are a key as well, not behind that of the row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey(Arc<[u8]>);

impl RowKey {
    /// Bytes of a key at most: keys are kept with each block, and written down.
    pub const BYTES_MAX: usize = 256;

    /// The key of these bytes, or of the first of them.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes[..bytes.len().min(Self::BYTES_MAX)].into())
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The first key behind it. None if there may have been more bytes: what begins with them is not behind.
    pub(super) fn next(&self) -> Option<Self> {
        let is_whole = self.0.len() < Self::BYTES_MAX;
        is_whole.then(|| Self(self.0.iter().copied().chain([0]).collect()))
    }
}

impl fmt::Debug for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// As text where people can read it.
impl Serialize for RowKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_str(&format_args!("{self:?}")),
            false => self.bytes().serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for RowKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            return Self::of_text(&String::deserialize(from)?).map_err(D::Error::custom);
        }
        let bytes = Vec::<u8>::deserialize(from)?;
        match bytes.len() <= Self::BYTES_MAX {
            true => Ok(Self(bytes.into())),
            false => Err(D::Error::custom(format!("a key of {} bytes", bytes.len()))),
        }
    }
}

impl RowKey {
    fn of_text(text: &str) -> Result<Self, String> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
        match digits {
            Some(digits)
                if digits.len().is_multiple_of(2) && digits.len() <= 2 * Self::BYTES_MAX =>
            {
                Ok(Self(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()))
            }
            _ => Err(format!(
                "'{text}' is no key: expected up to {} pairs of hexadecimal digits",
                Self::BYTES_MAX
            )),
        }
    }
}

/// What the writer of a sorted run tells of a block, beside what there is to any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBlock {
    /// The key of its first row.
    pub key: RowKey,
    /// The key of the last row of the run, if that is in it.
    pub end: Option<RowKey>,
    /// A sum over the keys of its rows, in whatever order and blocks they are: of a run that is made again it is
    /// the same one, or it has rows with other keys.
    pub digest: u64,
}

/// Rows whose keys are not before `from`, and before `to`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key; none if there are none before it.
    pub from: Option<RowKey>,
    /// The first key that is behind it; none if there is none.
    pub to: Option<RowKey>,
}

impl KeyRange {
    /// Whether it has all rows.
    pub fn is_all(&self) -> bool {
        self.from.is_none() && self.to.is_none()
    }

    /// Whether rows with this key, or with one that begins with it and is longer than what is kept, are behind it,
    /// and so are all rows behind them.
    pub(super) fn is_before(&self, key: &RowKey) -> bool {
        self.to.as_ref().is_some_and(|to| key >= to)
    }

    /// The same for rows before it. What is kept of a longer key has as many bytes as a border can have: where
    /// it is before one, the whole key is as well.
    pub(super) fn is_behind(&self, key: &RowKey) -> bool {
        self.from.as_ref().is_some_and(|from| key < from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bytes: &[u8]) -> RowKey {
        RowKey::new(bytes)
    }

    #[test]
    fn keys_travel_as_text_and_damage_is_an_error() {
        let long = key(&[0xab; 1000]);
        assert_eq!(long.bytes().len(), RowKey::BYTES_MAX);
        for key in [key(&[]), key(&[0, 255, 16]), long] {
            let text = serde_json::to_string(&key).unwrap();
            assert_eq!(serde_json::from_str::<RowKey>(&text).unwrap(), key);
        }
        let too_long = format!("\"{}\"", "ab".repeat(257));
        for damaged in ["\"0\"", "\"0g\"", "\"+1\"", "7", &too_long] {
            serde_json::from_str::<RowKey>(damaged).unwrap_err();
        }
    }

    #[test]
    fn nothing_is_between_a_key_and_the_next_one() {
        let next = key(&[1, 2]).next().unwrap();
        assert_eq!(next.bytes(), [1, 2, 0]);
        assert!(key(&[1, 2]) < next && next <= key(&[1, 2, 0]) && next < key(&[1, 3]));
        assert_eq!(key(&[7; 300]).next(), None);
    }

    #[test]
    fn rows_are_left_out_only_if_none_of_them_can_be_in_the_range() {
        let range = KeyRange { from: Some(key(&[3, 3])), to: Some(key(&[5])) };
        let sides = |bytes: &[u8]| (range.is_behind(&key(bytes)), range.is_before(&key(bytes)));
        for bytes in [&[1][..], &[3], &[3, 2, 9]] {
            assert_eq!(sides(bytes), (true, false));
        }
        for bytes in [&[3, 3][..], &[3, 3, 0], &[4, 9]] {
            assert_eq!(sides(bytes), (false, false));
        }
        for bytes in [&[5][..], &[5, 0], &[6]] {
            assert_eq!(sides(bytes), (false, true));
        }
        let all = KeyRange::default();
        assert!(all.is_all() && !all.is_behind(&key(&[])) && !all.is_before(&key(&[9])));
        // Of these the border is kept, and what is beyond it is not known.
        let (long, longer) = ([7; 256], [7; 300]);
        let range = KeyRange { from: Some(key(&long)), to: None };
        assert!(!range.is_behind(&key(&longer)) && range.is_behind(&key(&long[..255])));
    }
}
