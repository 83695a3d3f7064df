//! A batch that fails is halved and tried again: until it fits into the device's memory, or until
//! the row at fault is alone. So what becomes of a row never depends on the rows around it.
//!
//! Pure: the runs of rows still to do.

/// Runs of rows of one batch that are still to be done, in order.
#[derive(Debug)]
pub(super) struct Bisection {
    /// The next run last.
    todo: Vec<(usize, usize)>,
}

impl Bisection {
    /// All rows of a batch, as one run.
    pub(super) fn of(rows: usize) -> Self {
        Self { todo: vec![(0, rows)] }
    }

    /// The next run: its first row and how many.
    pub(super) fn next(&mut self) -> Option<(usize, usize)> {
        self.todo.pop()
    }

    /// The run that came last failed: its halves come next. `false` if it is a single row.
    pub(super) fn halve(&mut self, (start, rows): (usize, usize)) -> bool {
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
        fn every_row_is_done_once_and_in_order(rows in 1usize..500, fits in 1usize..100) {
            let mut bisection = Bisection::of(rows);
            let mut done = 0;
            while let Some((start, count)) = bisection.next() {
                if count > fits {
                    prop_assert!(bisection.halve((start, count)));
                } else {
                    prop_assert_eq!(start, done);
                    done += count;
                }
            }
            prop_assert_eq!(done, rows);
        }

        #[test]
        fn a_row_at_fault_ends_up_alone(rows in 1usize..500, bad in 0usize..500) {
            let bad = bad % rows;
            let mut bisection = Bisection::of(rows);
            let (mut alone, mut good) = (Vec::new(), 0);
            while let Some((start, count)) = bisection.next() {
                let fails = (start..start + count).contains(&bad);
                match fails && !bisection.halve((start, count)) {
                    true => alone.push(start),
                    false if !fails => good += count,
                    false => {}
                }
            }
            prop_assert_eq!((alone, good), (vec![bad], rows - 1));
        }
    }

    #[test]
    fn a_single_row_cannot_be_halved() {
        assert!(!Bisection::of(1).halve((0, 1)));
    }
}
