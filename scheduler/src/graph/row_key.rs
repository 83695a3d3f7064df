//! Keys of rows as bytes, and what lies between two of them.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Where a row stands in an order: bytes that compare as the rows do. Of a longer key, the first bytes, which
/// are a key as well, not behind that of the row.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl From<RowKey> for String {
    fn from(key: RowKey) -> Self {
        format!("{key:?}")
    }
}

impl TryFrom<String> for RowKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
        match digits {
            Some(digits) if digits.len().is_multiple_of(2) => {
                Ok(Self(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()))
            }
            _ => Err(format!("'{text}' is no key: expected pairs of hexadecimal digits")),
        }
    }
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

    /// Whether a block may have rows of it whose first row has the key `first`, and the block behind it `next`.
    /// What is not known may be anything.
    pub(super) fn meets(&self, first: Option<&RowKey>, next: Option<&RowKey>) -> bool {
        let begins_behind =
            self.to.as_ref().zip(first).is_some_and(|(to, first)| first.bytes() >= to.bytes());
        // A key that `from` begins with may stand for a row behind `from`.
        let ends_before = self.from.as_ref().zip(next).is_some_and(|(from, next)| {
            next.bytes() < from.bytes() && !from.bytes().starts_with(next.bytes())
        });
        !begins_behind && !ends_before
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
        for damaged in ["\"0\"", "\"0g\"", "\"+1\"", "7"] {
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

    /// Blocks that are left out have no row of the range, whatever is beyond the bytes that are kept.
    #[test]
    fn a_block_is_left_out_only_if_none_of_its_rows_can_be_in_the_range() {
        let range = KeyRange { from: Some(key(&[3, 3])), to: Some(key(&[5])) };
        let meets = |first: &[u8], next: &[u8]| range.meets(Some(&key(first)), Some(&key(next)));
        assert!(!meets(&[1], &[2]));
        assert!(!meets(&[1], &[3, 2]));
        // Of rows before `from`, and perhaps of some that are not.
        assert!(meets(&[1], &[3]));
        assert!(meets(&[1], &[3, 3]));
        assert!(meets(&[4, 9], &[9]));
        assert!(!meets(&[5], &[9]));
        assert!(!meets(&[5, 0], &[9]));
        assert!(range.meets(Some(&key(&[1])), None) && range.meets(None, None));
        assert!(!range.meets(Some(&key(&[6])), None));
        assert!(KeyRange::default().is_all() && KeyRange::default().meets(None, None));
    }
}
