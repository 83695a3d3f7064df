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

/// A sort may hold so many times what it held when it puts its rows together to order them at once, whatever the pool
/// says: columns that had a buffer in common get one each, and rows that are never NULL a bit. It needs that memory, and
/// there is no other way to give back what it holds.
const TOGETHER: usize = 2;

/// How many sorts there are in each pool, by its address.
static SORTS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

/// A pool as a sort sees it. What merges ask for goes to the pool itself.
#[derive(Debug)]
pub(super) struct Share {
    pool: Arc<dyn MemoryPool>,
    limit: usize,
    /// By the sort.
    held: AtomicUsize,
    /// What it held when it gave back what it keeps for merges, as it does just before it puts rows together; nothing
    /// once it has given back some of its rows.
    together: AtomicUsize,
}

impl Share {
    /// Of a pool with this limit, for as long as it lives.
    pub(super) fn of(pool: Arc<dyn MemoryPool>, limit: usize) -> Self {
        *SORTS.lock().entry(address(&pool)).or_default() += 1;
        Self { pool, limit, held: AtomicUsize::new(0), together: AtomicUsize::new(0) }
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
            self.held.fetch_sub(shrink, Ordering::Relaxed);
            self.together.store(0, Ordering::Relaxed);
        } else {
            self.together.store(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if !is_sort(reservation) {
            return self.pool.try_grow(reservation, additional);
        }
        let wanted = self.held.load(Ordering::Relaxed).saturating_add(additional);
        let together = self.together.load(Ordering::Relaxed).saturating_mul(TOGETHER);
        if wanted <= ANYWAY_BYTES.max(together) {
            self.grow(reservation, additional);
            return Ok(());
        }
        let share = self.bytes();
        if wanted > share {
            return Err(resources_datafusion_err!(
                "a sort wants {wanted} bytes, and its share of the memory limit is {share}"
            ));
        }
        self.pool.try_grow(reservation, additional)?;
        self.held.fetch_add(additional, Ordering::Relaxed);
        Ok(())
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
    fn a_sort_may_put_its_rows_together_whatever_the_pool_says() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(64 << 20));
        let share: Arc<dyn MemoryPool> = Arc::new(Share::of(Arc::clone(&pool), 64 << 20));
        let merge = MemoryConsumer::new("merge").register(&share);
        let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&share);
        merge.try_grow(1 << 20).unwrap();
        sort.try_grow(40 << 20).unwrap();
        sort.try_grow(9 << 20).expect_err("a quarter is left to merges");
        merge.free();
        sort.try_resize(70 << 20).unwrap();
        assert_eq!(pool.reserved(), 70 << 20);
        sort.try_resize(30 << 20).unwrap();
        sort.try_grow(19 << 20).expect_err("rows are in order");
        let other = MemoryConsumer::new("other").register(&pool);
        other.try_grow((64 << 20) - pool.reserved()).unwrap();
        sort.try_grow(1 << 20).expect_err("its share has room, but others have it");
    }
}
