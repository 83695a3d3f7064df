//! Byte permits: what the exchange may hold, reserved in the query's memory pool.
//!
//! A permit is taken before a block is held and returned when it is dropped. The budget admits one
//! block of any size while it holds none, so that no block waits for room that there never is. The
//! pool may refuse that one block too. Its producer holds its memory already: it passes
//! [unreserved](crate::unreserved), or is too large for that and ends the query. So the pool's limit
//! is never exceeded in our name, and in fact by a bounded number of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use parking_lot::Mutex;

use crate::unreserved::admit;

/// How many bytes may be held, and how many are.
#[derive(Debug)]
pub(crate) struct Budget {
    /// What is meant to be enough, and what it may grow to.
    bytes: Range,
    bytes_max: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    least: usize,
    most: usize,
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
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
    reserved_bytes: usize,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize, reservation: MemoryReservation) -> Self {
        let state = State { held_bytes: 0, held_bytes_peak: 0, reservation, waiting: Vec::new() };
        let bytes = Range { least: bytes_max, most: bytes_max };
        Self { bytes, bytes_max: AtomicUsize::new(bytes_max), state: Mutex::new(state) }
    }

    /// The same that may become larger, if it is [wanted](Self::want).
    #[must_use]
    pub(super) fn growing_to(mut self, most: usize) -> Self {
        self.bytes.most = most.max(self.bytes.least);
        self
    }

    /// So many bytes would be good to hold: as far as they may be from now on.
    pub(super) fn want(&self, bytes: usize) {
        let Range { least, most } = self.bytes;
        self.bytes_max.store(bytes.clamp(least, most), Ordering::Relaxed);
    }

    /// Takes bytes, or keeps the waker for when some are returned.
    ///
    /// # Errors
    /// The pool's, if it refuses so many bytes although nothing else is held.
    pub(crate) fn try_take(
        self: &Arc<Self>,
        bytes: usize,
        waker: &Waker,
    ) -> Result<Option<Permit>> {
        let mut state = self.state.lock();
        let alone = state.held_bytes == 0;
        let bytes_max = self.bytes_max();
        let fits = state.held_bytes.saturating_add(bytes) <= bytes_max;
        let reserved_bytes = if alone {
            Some(admit(&state.reservation, bytes)?)
        } else if fits {
            state.reservation.try_grow(bytes).ok().map(|()| bytes)
        } else {
            None
        };
        let Some(reserved_bytes) = reserved_bytes else {
            if !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
                state.waiting.push(waker.clone());
            }
            return Ok(None);
        };
        // A block without bytes counts as one, or several of them would all be "alone".
        let held = bytes.max(1);
        state.held_bytes += held;
        debug_assert!(
            alone || state.held_bytes <= bytes_max.max(1),
            "{} bytes held of {bytes_max}",
            state.held_bytes
        );
        state.held_bytes_peak = state.held_bytes_peak.max(state.held_bytes);
        Ok(Some(Permit { budget: Arc::clone(self), bytes: held, reserved_bytes }))
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn held_bytes_peak(&self) -> usize {
        self.state.lock().held_bytes_peak
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.state.lock().held_bytes
    }
}

impl Permit {
    /// More is held than was asked for.
    ///
    /// # Errors
    /// The pool's, if it refuses that, and it is too much to pass all the same.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<()> {
        let mut state = self.budget.state.lock();
        self.reserved_bytes += admit(&state.reservation, bytes)?;
        state.held_bytes += bytes;
        self.bytes += bytes;
        Ok(())
    }

    /// Makes it one for so many bytes, which is what is held in the end.
    ///
    /// # Errors
    /// As [`Self::grow`], if that is more than was asked for.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<()> {
        let bytes = bytes.max(1);
        if bytes > self.bytes {
            return self.grow(bytes - self.bytes);
        }
        let waiting = {
            let mut state = self.budget.state.lock();
            state.held_bytes -= self.bytes - bytes;
            let reserved_bytes = self.reserved_bytes.min(bytes);
            state.reservation.shrink(self.reserved_bytes - reserved_bytes);
            (self.bytes, self.reserved_bytes) = (bytes, reserved_bytes);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
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
        let first = budget.try_take(60, &waker).unwrap().unwrap();
        assert!(budget.try_take(60, &waker).unwrap().is_none());
        let second = budget.try_take(40, &waker).unwrap().unwrap();
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
        let oversized = budget.try_take(5000, &noop_waker()).unwrap().unwrap();
        assert_eq!(pool.reserved(), 0, "refused by the pool, so not counted there");
        assert!(budget.try_take(1, &noop_waker()).unwrap().is_none());
        drop(oversized);
        assert!(budget.try_take(40, &noop_waker()).unwrap().is_some());
    }

    #[test]
    fn a_block_that_is_alone_and_larger_than_what_may_pass_unreserved_is_an_error() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(50));
        let budget = budget(100, &pool);
        let large = crate::unreserved::UNRESERVED_BYTES_MAX + 1;
        let error = budget.try_take(large, &noop_waker()).unwrap_err().to_string();
        assert!(error.contains("test: 64.0 MiB at once; raise the memory limit"), "{error}");
        let mut small = budget.try_take(40, &noop_waker()).unwrap().unwrap();
        assert!(small.grow(large).is_err());
        small.grow(10).unwrap();
        assert_eq!((pool.reserved(), budget.held_bytes()), (50, 50));
        drop(small);
        assert_eq!((pool.reserved(), budget.held_bytes()), (0, 0));
    }

    #[test]
    fn what_the_pool_refuses_waits_like_what_the_budget_refuses() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(50));
        let budget = budget(1000, &pool);
        let first = budget.try_take(40, &noop_waker()).unwrap().unwrap();
        assert!(budget.try_take(20, &noop_waker()).unwrap().is_none());
        drop(first);
        assert!(budget.try_take(20, &noop_waker()).unwrap().is_some());
    }

    #[test]
    fn what_turns_out_to_be_less_leaves_room_for_others() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let budget = budget(100, &pool);
        let (waker, woken) = crate::testing::flag_waker();
        let mut permit = budget.try_take(90, &waker).unwrap().unwrap();
        assert!(budget.try_take(50, &waker).unwrap().is_none());
        permit.resize(50).unwrap();
        assert!(woken.get());
        assert_eq!((pool.reserved(), budget.held_bytes()), (50, 50));
        let other = budget.try_take(50, &waker).unwrap().unwrap();
        drop(permit);
        assert_eq!((pool.reserved(), budget.held_bytes()), (50, 50));
        drop(other);
        assert_eq!((pool.reserved(), budget.held_bytes()), (0, 0));
    }

    #[test]
    fn a_budget_grows_with_what_is_wanted_as_far_as_it_may() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let reservation = MemoryConsumer::new("test").register(&pool);
        let budget = Arc::new(Budget::new(100, reservation).growing_to(300));
        for (wanted, expected) in [(0, 100), (200, 200), (400, 300), (50, 100)] {
            budget.want(wanted);
            assert_eq!(budget.bytes_max(), expected, "{wanted}");
        }
        budget.want(200);
        let held = budget.try_take(180, &noop_waker()).unwrap().unwrap();
        // What is held stays, and nothing is added to it.
        budget.want(0);
        assert!(budget.try_take(10, &noop_waker()).unwrap().is_none());
        drop(held);
        assert!(budget.try_take(90, &noop_waker()).unwrap().is_some());
    }

    #[test]
    fn empty_blocks_are_not_unlimited() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(50));
        let budget = budget(2, &pool);
        let _one = budget.try_take(0, &noop_waker()).unwrap().unwrap();
        assert!(budget.held_bytes() > 0);
    }
}
