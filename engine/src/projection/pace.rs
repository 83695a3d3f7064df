//! How many rows are computed at once.

/// What a slice of rows takes at most, its intermediate results included, if its rows are like
/// those before. Several slices of texts or of small images, few of large ones.
const SLICE_BYTES: usize = 8 << 20;
/// How many times as many rows may follow, so that a few small rows do not promise many.
const GROWTH: usize = 8;

/// Begins with one row.
#[derive(Debug)]
pub(super) struct Pace {
    rows: usize,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { rows: 1 }
    }

    /// How many rows come next, at least one.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// So many rows took so many bytes.
    pub(super) fn learn(&mut self, rows: usize, bytes: usize) {
        if rows == 0 {
            return;
        }
        // The last rows of a batch say nothing of more rows than they are.
        let most = if rows < self.rows { self.rows } else { rows.saturating_mul(GROWTH) };
        let row_bytes = bytes.div_ceil(rows).max(1);
        self.rows = (SLICE_BYTES / row_bytes).min(most).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_grow_step_by_step_and_shrink_at_once() {
        let mut pace = Pace::new();
        let mut rows = vec![];
        for row_bytes in [100, 100, 100, 100, 1 << 20, 16 << 20, 100] {
            rows.push(pace.rows());
            pace.learn(pace.rows(), pace.rows() * row_bytes);
        }
        assert_eq!(rows, [1, 8, 64, 512, 4096, 8, 1]);
        assert_eq!(pace.rows(), 8);
    }

    #[test]
    fn fewer_rows_than_allowed_promise_no_more() {
        let mut pace = Pace::new();
        pace.learn(0, 0);
        assert_eq!(pace.rows(), 1);
        pace.learn(1, 10);
        pace.learn(2, 20);
        assert_eq!(pace.rows(), 8);
    }

    #[test]
    fn what_takes_nothing_is_computed_all_at_once_in_the_end() {
        let mut pace = Pace::new();
        for _ in 0..10 {
            pace.learn(pace.rows(), 0);
        }
        assert_eq!(pace.rows(), SLICE_BYTES);
    }
}
