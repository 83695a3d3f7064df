//! Byte permits: what the exchange may hold, reserved in the query's memory pool.
//!
//! A permit is taken before a block is held and returned when it is dropped. The budget admits one
//! block of any size while it holds none, so that no size of block and no limit of a pool can stop
//! the exchange. The pool may refuse that one block too: it then passes unreserved, because its
//! producer holds its memory already, and the pool's limit is never exceeded in our name.

use std::sync::Arc;
use std::task::Waker;

use datafusion::execution::memory_pool::MemoryReservation;
use parking_lot::Mutex;

/// How many bytes may be held, and how many are.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held_bytes: usize,
    held_bytes_peak: usize,
    reservation: MemoryReservation,
    waiting: Vec<Waker>,
}

/// Bytes taken from a [`Budget`], returned on drop.
#[derive(Debug)]
pub(super) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
    reserved_bytes: usize,
}

impl Budget {
    pub(super) fn new(bytes_max: usize, reservation: MemoryReservation) -> Self {
        let state = State { held_bytes: 0, held_bytes_peak: 0, reservation, waiting: Vec::new() };
        Self { bytes_max, state: Mutex::new(state) }
    }

    /// Takes bytes, or keeps the waker for when some are returned.
    pub(super) fn try_take(self: &Arc<Self>, bytes: usize, waker: &Waker) -> Option<Permit> {
        let mut state = self.state.lock();
        let alone = state.held_bytes == 0;
        let fits = state.held_bytes.saturating_add(bytes) <= self.bytes_max;
        let reserved = (alone || fits) && state.reservation.try_grow(bytes).is_ok();
        if !reserved && !alone {
            if !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
                state.waiting.push(waker.clone());
            }
            return None;
        }
        // A block without bytes counts as one, or several of them would all be "alone".
        let held = bytes.max(1);
        state.held_bytes += held;
        debug_assert!(
            alone || state.held_bytes <= self.bytes_max.max(1),
            "{} bytes held of {}",
            state.held_bytes,
            self.bytes_max
        );
        state.held_bytes_peak = state.held_bytes_peak.max(state.held_bytes);
        let reserved_bytes = if reserved { bytes } else { 0 };
        Some(Permit { budget: Arc::clone(self), bytes: held, reserved_bytes })
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(super) fn held_bytes_peak(&self) -> usize {
        self.state.lock().held_bytes_peak
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.state.lock().held_bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.budget.state.lock();
            state.held_bytes -= self.bytes;
            state.reservation.shrink(self.reserved_bytes);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
    use futures::task::noop_waker;

    fn budget(bytes_max: usize, pool: &Arc<dyn MemoryPool>) -> Arc<Budget> {
        Arc::new(Budget::new(bytes_max, MemoryConsumer::new("test").register(pool)))
    }

    #[test]
    fn what_does_not_fit_waits_until_a_permit_returns() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let budget = budget(100, &pool);
        let (waker, woken) = crate::testing::flag_waker();
        let first = budget.try_take(60, &waker).unwrap();
        assert!(budget.try_take(60, &waker).is_none());
        let second = budget.try_take(40, &waker).unwrap();
        assert_eq!(pool.reserved(), 100);
        assert!(!woken.get());
        drop(first);
        assert!(woken.get());
        drop(second);
        assert_eq!((pool.reserved(), budget.held_bytes(), budget.held_bytes_peak()), (0, 0, 100));
    }

    #[test]
    fn a_block_of_any_size_passes_alone() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(50));
        let budget = budget(100, &pool);
        let oversized = budget.try_take(5000, &noop_waker()).unwrap();
        assert_eq!(pool.reserved(), 0, "refused by the pool, so not counted there");
        assert!(budget.try_take(1, &noop_waker()).is_none());
        drop(oversized);
        assert!(budget.try_take(40, &noop_waker()).is_some());
    }

    #[test]
    fn what_the_pool_refuses_waits_like_what_the_budget_refuses() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(50));
        let budget = budget(1000, &pool);
        let first = budget.try_take(40, &noop_waker()).unwrap();
        assert!(budget.try_take(20, &noop_waker()).is_none());
        drop(first);
        assert!(budget.try_take(20, &noop_waker()).is_some());
    }

    #[test]
    fn empty_blocks_are_not_unlimited() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(50));
        let budget = budget(2, &pool);
        let _one = budget.try_take(0, &noop_waker()).unwrap();
        assert!(budget.held_bytes() > 0);
    }
}
