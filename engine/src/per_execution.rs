//! State that the partitions of one execution of an operator share.

use std::sync::Arc;

use datafusion::common::Result;
use parking_lot::Mutex;

/// One value per execution of a plan node, handed to each of its partitions once.
///
/// It is kept until the last partition has it: a partition may be asked for after another one has
/// read everything, and must find the same execution, at its end. Asking for a partition again
/// begins the next execution.
#[derive(Debug)]
pub(crate) struct PerExecution<T> {
    current: Mutex<Option<Current<T>>>,
}

#[derive(Debug)]
struct Current<T> {
    value: Arc<T>,
    /// Partitions that have not asked yet.
    left: Vec<usize>,
}

impl<T> Default for PerExecution<T> {
    fn default() -> Self {
        Self { current: Mutex::new(None) }
    }
}

impl<T> PerExecution<T> {
    /// The value of the execution that has not handed out `partition` yet, or of a new one.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get(
        &self,
        partition: usize,
        partitions: usize,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut current = self.current.lock();
        let (value, left) = match current.take() {
            Some(Current { value, mut left }) if left.contains(&partition) => {
                left.retain(|other| *other != partition);
                (value, left)
            }
            _ => (Arc::new(make()?), (0..partitions).filter(|other| *other != partition).collect()),
        };
        if !left.is_empty() {
            *current = Some(Current { value: Arc::clone(&value), left });
        }
        Ok(value)
    }

    /// Ends the current execution, even if not every partition was asked for.
    pub(crate) fn forget(&self) {
        *self.current.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_share_a_value_and_a_second_run_gets_its_own() {
        let (values, mut next) = (PerExecution::default(), 0);
        let mut get = |partition| {
            *values
                .get(partition, 2, || {
                    next += 1;
                    Ok(next)
                })
                .unwrap()
        };
        assert_eq!([get(0), get(1), get(1), get(0), get(0), get(0)], [1, 1, 2, 2, 3, 4]);
        values.forget();
        assert_eq!(*values.get(1, 2, || Ok(9)).unwrap(), 9);
    }
}
