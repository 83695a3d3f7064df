//! A batch that does not fit into the device's memory is halved and tried again.
//!
//! Pure: the runs of rows still to do, and what is known to fit.

/// Runs of rows of one batch that are still to be computed, in order.
#[derive(Debug)]
pub(super) struct Halving {
    /// The next run last.
    todo: Vec<(usize, usize)>,
}

impl Halving {
    /// A batch of so many rows failed as a whole; `None` if it cannot be halved.
    pub(super) fn of(rows: usize) -> Option<Self> {
        let mut halving = Self { todo: Vec::new() };
        halving.halve(0, rows).then_some(halving)
    }

    /// The next run: its first row and how many.
    pub(super) fn next(&mut self) -> Option<(usize, usize)> {
        self.todo.pop()
    }

    /// A run failed as well; `false` if it is a single row.
    pub(super) fn halve(&mut self, start: usize, rows: usize) -> bool {
        if rows < 2 {
            return false;
        }
        let first = rows.div_ceil(2);
        self.todo.push((start + first, rows - first));
        self.todo.push((start, first));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_is_done_once_and_in_order(rows in 2usize..500, fits in 1usize..100) {
            let mut halving = Halving::of(rows).unwrap();
            let mut done = 0;
            while let Some((start, count)) = halving.next() {
                if count > fits {
                    prop_assert!(halving.halve(start, count));
                } else {
                    prop_assert_eq!(start, done);
                    done += count;
                }
            }
            prop_assert_eq!(done, rows);
        }
    }

    #[test]
    fn a_single_row_cannot_be_halved() {
        assert!(Halving::of(1).is_none());
        assert!(!Halving::of(2).unwrap().halve(0, 1));
    }
}
