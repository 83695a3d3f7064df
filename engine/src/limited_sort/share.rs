//! What a sort may hold.
//!
//! DataFusion's sort holds rows until the pool refuses more, and then merges what it holds into a file. The merge
//! wants memory, too, which it cannot do without: if another sort of the pool has taken the rest by then, the query
//! ends. So sorts leave a part of the limit to merges, and none takes more than its share of what remains.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use parking_lot::Mutex;

/// This part of the limit is left to merges. Sorts count rows twice, for their copy in order; of what that
/// gives back a merge has the keys of all rows, in the format of rows at worst.
const LEFT_TO_MERGES: usize = 4;

/// A sort may hold this whatever the pool says: one that is refused its first batch ends the query.
const ANYWAY_BYTES: usize = 1 << 20;

/// A sort that was refused more may still have this part of what it holds: it puts its rows together, to write them in
/// order, and they may take a little more than they took apart.
const TOGETHER: usize = 16;

/// How many sorts there are in each pool, by its address.
static SORTS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

/// A pool as a sort sees it. What merges ask for goes to the pool itself.
#[derive(Debug)]
pub(super) struct Share {
    pool: Arc<dyn MemoryPool>,
    limit: usize,
    /// By the sort.
    held: AtomicUsize,
    /// What it held when it was refused more, until it has written half of that.
    refused_at: AtomicUsize,
}

impl Share {
    /// Of a pool with this limit, for as long as it lives.
    pub(super) fn of(pool: Arc<dyn MemoryPool>, limit: usize) -> Self {
        *SORTS.lock().entry(address(&pool)).or_default() += 1;
        Self { pool, limit, held: AtomicUsize::new(0), refused_at: AtomicUsize::new(0) }
    }

    fn bytes(&self) -> usize {
        let sorts = SORTS.lock().get(&address(&self.pool)).copied().unwrap_or(1);
        (self.limit - self.limit / LEFT_TO_MERGES) / sorts.max(1)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut all = SORTS.lock();
        let address = address(&self.pool);
        if let Some(sorts) = all.get_mut(&address) {
            *sorts -= 1;
            if *sorts == 0 {
                all.remove(&address);
            }
        }
    }
}

fn address(pool: &Arc<dyn MemoryPool>) -> usize {
    Arc::as_ptr(pool).cast::<()>().addr()
}

/// Whether it is the sort, and not a merge.
fn is_sort(reservation: &MemoryReservation) -> bool {
    reservation.consumer().can_spill()
}

impl MemoryPool for Share {
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
        if is_sort(reservation) {
            self.held.fetch_add(additional, Ordering::Relaxed);
        }
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if is_sort(reservation) {
            let held = self.held.fetch_sub(shrink, Ordering::Relaxed) - shrink;
            if held < self.refused_at.load(Ordering::Relaxed) / 2 {
                self.refused_at.store(0, Ordering::Relaxed);
            }
        }
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if !is_sort(reservation) {
            return self.pool.try_grow(reservation, additional);
        }
        let held = self.held.load(Ordering::Relaxed);
        let wanted = held.saturating_add(additional);
        if wanted <= ANYWAY_BYTES {
            self.grow(reservation, additional);
            return Ok(());
        }
        let share = self.bytes();
        let granted = match wanted > share {
            true => Err(resources_datafusion_err!(
                "a sort wants {wanted} bytes, and its share of the memory limit is {share}"
            )),
            false => self.pool.try_grow(reservation, additional),
        };
        match granted {
            Ok(()) => {
                self.held.fetch_add(additional, Ordering::Relaxed);
                Ok(())
            }
            Err(refused) => {
                let refused_at = self.refused_at.load(Ordering::Relaxed);
                if refused_at == 0 {
                    self.refused_at.store(held, Ordering::Relaxed);
                    return Err(refused);
                }
                if wanted > refused_at + refused_at / TOGETHER {
                    return Err(refused);
                }
                // Of what is left to merges: none of its own runs yet.
                self.grow(reservation, additional);
                Ok(())
            }
        }
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pool)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    use super::*;

    #[test]
    fn a_sort_that_was_refused_may_have_a_little_to_put_its_rows_together() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(64 << 20));
        let share: Arc<dyn MemoryPool> = Arc::new(Share::of(Arc::clone(&pool), 64 << 20));
        let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&share);
        sort.try_grow(47 << 20).unwrap();
        sort.try_grow(2 << 20).expect_err("a quarter is left to merges");
        sort.try_resize(49 << 20).unwrap();
        sort.try_grow(1 << 20).expect_err("a sixteenth, once");
        assert_eq!(pool.reserved(), 49 << 20);
        // It has written most of what it held.
        sort.shrink(41 << 20);
        let other = MemoryConsumer::new("other").register(&pool);
        other.try_grow((64 << 20) - pool.reserved()).unwrap();
        sort.try_grow(8 << 20).expect_err("its share has room, but others have it");
        sort.try_grow(1 << 19).unwrap();
        sort.try_grow(1 << 19).expect_err("a sixteenth of what it held");
    }
}
