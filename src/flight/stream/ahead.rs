//! What a window may take while another one is read.
//!
//! Whoever reads a window has it merged as they read, if it was sorted in parts or is on disk, and its merge wants memory
//! for the next rows of each part. The window cannot be made anew by then, as some of its rows have been read. Those
//! behind it can, and go to disk before that: so they leave a part of the limit, and stop at their first rows.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::execution::runtime_env::RuntimeEnv;
use tokio::sync::SetOnce;

/// This part of the limit is left to what is read.
const LEFT_TO_READING: usize = 4;

/// A pool as a window sees it that is not read yet.
#[derive(Debug)]
pub(super) struct AheadPool {
    pool: Arc<dyn MemoryPool>,
    read: SetOnce<()>,
}

impl AheadPool {
    pub(super) fn over(pool: Arc<dyn MemoryPool>) -> Arc<Self> {
        Arc::new(Self { pool, read: SetOnce::new() })
    }

    /// From now on the window may take what there is.
    pub(super) fn begin_reading(&self) {
        self.read.set(()).ok();
    }

    /// Until then.
    pub(super) async fn until_read(&self) {
        self.read.wait().await;
    }

    /// What a window runs with that takes its memory here.
    pub(super) fn context(self: Arc<Self>, of: &TaskContext) -> Arc<TaskContext> {
        let runtime = RuntimeEnv { memory_pool: self, ..of.runtime_env().as_ref().clone() };
        Arc::new(TaskContext::new(
            of.task_id(),
            of.session_id(),
            of.session_config().clone(),
            of.scalar_functions().clone(),
            of.higher_order_functions().clone(),
            of.aggregate_functions().clone(),
            of.window_functions().clone(),
            Arc::new(runtime),
        ))
    }
}

impl MemoryPool for AheadPool {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if let MemoryLimit::Finite(limit) = self.pool.memory_limit()
            && !self.read.initialized()
        {
            let (taken, most) = (self.pool.reserved(), limit - limit / LEFT_TO_READING);
            if taken.saturating_add(additional) > most {
                return Err(resources_datafusion_err!(
                    "no {additional} bytes for {}, of a window that is not read yet: {taken} are taken, of {most} that such \
                     windows may take of the memory limit of {limit}",
                    reservation.consumer().name()
                ));
            }
        }
        self.pool.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

impl fmt::Display for AheadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pool)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::{GreedyMemoryPool, UnboundedMemoryPool};

    use super::*;

    #[test]
    fn a_window_that_is_not_read_leaves_a_quarter() {
        let all: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let read = MemoryConsumer::new("read").register(&all);
        let ahead = AheadPool::over(Arc::clone(&all));
        let pool: Arc<dyn MemoryPool> = Arc::clone(&ahead) as _;
        let next = MemoryConsumer::new("next").register(&pool);
        read.try_grow(30).unwrap();
        next.try_grow(45).unwrap();
        let error = next.try_grow(1).unwrap_err().to_string();
        assert!(error.contains("no 1 bytes for next, of a window that is not read yet"), "{error}");
        read.try_grow(25).expect("it was left");
        read.free();
        ahead.begin_reading();
        next.try_grow(55).unwrap();
        next.try_grow(1).expect_err("there is no more");
        drop(next);
        assert_eq!(all.reserved(), 0);
    }

    #[test]
    fn where_memory_has_no_limit_there_is_none() {
        let pool: Arc<dyn MemoryPool> = AheadPool::over(Arc::new(UnboundedMemoryPool::default()));
        MemoryConsumer::new("next").register(&pool).try_grow(usize::MAX / 2).unwrap();
    }
}
