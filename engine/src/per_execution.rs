//! State that the partitions of one execution of an operator share.

use std::sync::{Arc, Weak};

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use parking_lot::Mutex;

/// One value per execution of a plan node, handed to each of its partitions once.
///
/// An execution is known by its task context, because a plan may be executed again, even while it
/// runs, and partitions are asked for in any order, late, or never. The value is kept until the
/// last partition has it: a partition may be asked for after another one has read everything, and
/// must find the same execution, at its end. Asking for a partition again begins the next one.
#[derive(Debug)]
pub(crate) struct PerExecution<T> {
    current: Mutex<Option<Current<T>>>,
}

#[derive(Debug)]
struct Current<T> {
    value: Arc<T>,
    context: Weak<TaskContext>,
    /// Partitions that have not asked yet.
    left: Vec<usize>,
}

impl<T> Default for PerExecution<T> {
    fn default() -> Self {
        Self { current: Mutex::new(None) }
    }
}

impl<T> PerExecution<T> {
    /// The value of this context's execution if it has not handed out `partition` yet, or of a new
    /// one.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get(
        &self,
        partition: usize,
        partitions: usize,
        context: &Arc<TaskContext>,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let context = Arc::downgrade(context);
        let mut current = self.current.lock();
        let (value, left) = match current.take() {
            Some(Current { value, context: known, mut left })
                if left.contains(&partition) && known.ptr_eq(&context) =>
            {
                left.retain(|other| *other != partition);
                (value, left)
            }
            _ => (Arc::new(make()?), (0..partitions).filter(|other| *other != partition).collect()),
        };
        if !left.is_empty() {
            *current = Some(Current { value: Arc::clone(&value), context, left });
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
        let (one, two) = (Arc::new(TaskContext::default()), Arc::new(TaskContext::default()));
        let mut get = |partition, context| {
            let make = || {
                next += 1;
                Ok(next)
            };
            *values.get(partition, 2, context, make).unwrap()
        };
        let found = [get(0, &one), get(1, &one), get(1, &one), get(0, &one), get(0, &one)];
        assert_eq!(found, [1, 1, 2, 2, 3]);
        assert_eq!(get(1, &two), 4, "the first run was never asked for its partition 1");
        values.forget();
        assert_eq!(*values.get(0, 2, &two, || Ok(9)).unwrap(), 9);
    }
}
