//! Cuts the rows of a window into batches.
//!
//! A batch costs rows × its longest row, so rows of similar length belong together: a window is
//! sorted by length before it is cut. Longest first, because the batch that may not fit into the
//! device's memory is then the first one, not the last one after an hour.

use std::cmp::Reverse;

use forebay_udf::model::BatchLimits;

/// A row of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Which block of the window it is in.
    pub(super) block: u32,
    /// Which row of that block it is.
    pub(super) index: u32,
    /// In tokens; 0 if it has none or is NULL.
    pub(super) length: u32,
    /// Of model input.
    pub(super) bytes: u64,
}

/// In which order the rows of a window are cut into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batching {
    /// As they came.
    Rows,
    /// Longest first.
    Tokens,
}

/// Cuts rows into batches within the limits; every row is in exactly one. A batch has at least one
/// row, even if that row alone exceeds a limit.
/// `multiple`: what lengths are rounded up to.
pub(super) fn cut(
    mut rows: Vec<Row>,
    batching: Batching,
    limits: &BatchLimits,
    multiple: u32,
) -> Vec<Vec<Row>> {
    if batching == Batching::Tokens {
        rows.sort_by_key(|row| Reverse(row.length));
    }
    let mut batches = Vec::new();
    let empty = Size::rounded_to(multiple);
    let mut size = empty;
    let mut start = 0;
    for (end, row) in rows.iter().enumerate() {
        let grown = size.with(row);
        if end > start && !grown.is_within(limits) {
            batches.push(rows[start..end].to_vec());
            start = end;
            size = empty.with(row);
        } else {
            size = grown;
        }
    }
    if start < rows.len() {
        batches.push(rows[start..].to_vec());
    }
    batches
}

/// What a batch's limits are about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) rows: u64,
    longest: u64,
    /// What lengths are rounded up to; 0 if they are not.
    multiple: u64,
    pub(super) bytes: u64,
}

impl Size {
    /// Of no rows yet, whose length is rounded up to a multiple of this.
    pub(super) fn rounded_to(multiple: u32) -> Self {
        Self { multiple: u64::from(multiple), ..Self::default() }
    }

    #[must_use]
    pub(super) fn with(self, row: &Row) -> Self {
        Self {
            rows: self.rows + 1,
            longest: self.longest.max(u64::from(row.length)),
            multiple: self.multiple,
            bytes: self.bytes.saturating_add(row.bytes),
        }
    }

    /// Of a batch and another one.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            longest: self.longest.max(other.longest),
            multiple: self.multiple,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Tokens that the device computes.
    pub(super) fn padded(&self) -> u64 {
        self.rows * self.longest.next_multiple_of(self.multiple.max(1))
    }

    pub(super) fn is_within(&self, limits: &BatchLimits) -> bool {
        self.rows <= u64::from(limits.max_rows)
            && limits.max_tokens.is_none_or(|max| self.padded() <= u64::from(max))
            && limits.max_bytes.is_none_or(|max| self.bytes <= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(lengths: &[u32]) -> Vec<Row> {
        let row = |(index, length): (usize, &u32)| Row {
            block: 0,
            index: u32::try_from(index).unwrap(),
            length: *length,
            bytes: u64::from(*length) * 8,
        };
        lengths.iter().enumerate().map(row).collect()
    }

    fn limits(max_rows: u32, max_tokens: Option<u32>, max_bytes: Option<u64>) -> BatchLimits {
        BatchLimits { max_rows, max_tokens, max_bytes, window_rows: 1000 }
    }

    #[test]
    fn similar_lengths_share_a_batch_and_the_longest_come_first() {
        let batches = cut(rows(&[1, 9, 2, 8]), Batching::Tokens, &limits(10, Some(18), None), 1);
        let lengths: Vec<Vec<u32>> =
            batches.iter().map(|batch| batch.iter().map(|row| row.length).collect()).collect();
        assert_eq!(lengths, [vec![9, 8], vec![2, 1]]);
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_batch_within_the_limits(
            lengths in prop::collection::vec(0u32..300, 0..200),
            max_rows in 1u32..40,
            max_tokens in prop::option::of(1u32..2000),
            max_bytes in prop::option::of(1u64..9000),
            by_length: bool,
            multiple in 1u32..20,
        ) {
            let limits = limits(max_rows, max_tokens, max_bytes);
            let batching = if by_length { Batching::Tokens } else { Batching::Rows };
            let batches = cut(rows(&lengths), batching, &limits, multiple);
            for batch in &batches {
                prop_assert!(!batch.is_empty());
                // Counted the naive way.
                let longest = batch.iter().map(|row| row.length).max().unwrap_or(0);
                let count = u32::try_from(batch.len()).unwrap();
                if batch.len() > 1 {
                    prop_assert!(count <= max_rows);
                    prop_assert!(max_tokens.is_none_or(|max| count * longest.next_multiple_of(multiple) <= max));
                    let bytes: u64 = batch.iter().map(|row| row.bytes).sum();
                    prop_assert!(max_bytes.is_none_or(|max| bytes <= max));
                }
            }
            let flat: Vec<Row> = batches.concat();
            if by_length {
                prop_assert!(flat.is_sorted_by_key(|row| Reverse(row.length)));
            } else {
                prop_assert!(flat.is_sorted_by_key(|row| row.index));
            }
            let mut indexes: Vec<u32> = flat.iter().map(|row| row.index).collect();
            indexes.sort_unstable();
            prop_assert!(indexes.into_iter().eq(0..u32::try_from(lengths.len()).unwrap()));
        }

        /// No batch could have taken the first row of the next one.
        #[test]
        fn batches_are_as_full_as_the_limits_allow(
            lengths in prop::collection::vec(1u32..100, 0..100),
            max_rows in 1u32..20,
            max_tokens in 1u32..500,
        ) {
            let limits = limits(max_rows, Some(max_tokens), None);
            let batches = cut(rows(&lengths), Batching::Tokens, &limits, 1);
            for pair in batches.windows(2) {
                let size = pair[0].iter().fold(Size::default(), |size, row| size.with(row));
                prop_assert!(!size.with(&pair[1][0]).is_within(&limits));
            }
        }
    }
}
