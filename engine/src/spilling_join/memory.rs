//! What a join holds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytesize::ByteSize;
use datafusion::common::utils::memory::estimate_memory_size;
use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

use crate::unreserved::UNRESERVED_BYTES_MAX;

/// This part of the limit is left to others, and to joins that want little: what is behind a join can often not do
/// without any.
const LEFT_TO_OTHERS: usize = 8;

/// This part of the limit a join may hold whatever the pool says, and at most [`ANYWAY_BYTES_MAX`]: with one
/// batch at a time it would read the other side once for each.
const ANYWAY: usize = 64;

const ANYWAY_BYTES_MIN: usize = 16 << 10;
const ANYWAY_BYTES_MAX: usize = 1 << 20;

/// What is behind a join, and brings its rows into their order, has as much to itself: DataFusion's sort ends the
/// query when it is refused its first batch, and may be refused because of the join that it reads.
const OF_A_SORT_MIN: usize = 32 << 20;

/// The pool of a sort behind a join: as much as is [left to others](LEFT_TO_OTHERS).
pub(super) fn of_sort(pool: &dyn MemoryPool) -> Arc<dyn MemoryPool> {
    let part = match pool.memory_limit() {
        MemoryLimit::Finite(limit) => limit / LEFT_TO_OTHERS,
        MemoryLimit::Infinite | MemoryLimit::Unknown => UNRESERVED_BYTES_MAX,
    };
    Arc::new(GreedyMemoryPool::new(part.clamp(OF_A_SORT_MIN, UNRESERVED_BYTES_MAX)))
}

/// What one of DataFusion's joins holds. To that it is the pool: what it asks for has been reserved when its
/// build side was gathered, and is freed when it lets go of it.
#[derive(Debug)]
pub(super) struct Memory {
    held: MemoryReservation,
    pool: Arc<dyn MemoryPool>,
    /// What DataFusion's join has asked for.
    asked: AtomicUsize,
}

impl Memory {
    pub(super) fn new(name: String, pool: &Arc<dyn MemoryPool>) -> Self {
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        Self { held: consumer.register(pool), pool: Arc::clone(pool), asked: AtomicUsize::new(0) }
    }

    /// Whether a table of so many rows and bytes may be held. Then it is.
    pub(super) fn hold(&self, rows: usize, bytes: usize) -> Result<bool> {
        let wanted = of_table(rows, bytes)?;
        let more = wanted.saturating_sub(self.held.size());
        let limit = self.limit().unwrap_or(usize::MAX);
        let little = limit / ANYWAY;
        if wanted <= little.clamp(ANYWAY_BYTES_MIN, ANYWAY_BYTES_MAX) {
            self.held.grow(more);
            return Ok(true);
        }
        if self.held.try_grow(more).is_err() {
            return Ok(false);
        }
        let leaves_room = self.pool.reserved() <= limit - limit / LEFT_TO_OTHERS;
        if wanted > little && !leaves_room {
            self.held.shrink(more);
            return Ok(false);
        }
        Ok(true)
    }

    /// Holds a table of one batch, which is there whatever the pool says.
    ///
    /// # Errors
    /// If the pool refuses more than an operator may hold without having asked.
    pub(super) fn hold_anyway(&self, rows: usize, bytes: usize, join: &str) -> Result<()> {
        let wanted = of_table(rows, bytes)?;
        let more = wanted.saturating_sub(self.held.size());
        if self.held.try_grow(more).is_ok() {
            return Ok(());
        }
        if wanted > UNRESERVED_BYTES_MAX {
            let limit =
                self.limit().map_or("full".to_owned(), |limit| ByteSize(limit as u64).to_string());
            return Err(resources_datafusion_err!(
                "{join}: {rows} rows take {} at once, and the memory limit of {limit} has no room for them; raise \
                 --memory-limit, or give it smaller rows",
                ByteSize(wanted as u64)
            ));
        }
        self.held.grow(more);
        Ok(())
    }

    /// Lets go of all.
    pub(super) fn release(&self) {
        self.held.free();
    }

    fn limit(&self) -> Option<usize> {
        match self.pool.memory_limit() {
            MemoryLimit::Finite(bytes) => Some(bytes),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        }
    }

    fn ask(&self, bytes: usize) {
        let asked = self.asked.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A table of an array is estimated only when its keys are known. It takes hardly more than one of hashes.
        self.held.grow(asked.saturating_sub(self.held.size()));
    }
}

/// The bytes of DataFusion's table of so many rows, and of what it notes of each.
fn of_table(rows: usize, bytes: usize) -> Result<usize> {
    const FIXED: usize = 256;
    let noted = rows.div_ceil(8);
    let table = match u32::try_from(rows) {
        Ok(_) => estimate_memory_size::<(u32, u64)>(rows, FIXED)?,
        Err(_) => estimate_memory_size::<(u64, u64)>(rows, FIXED)?,
    };
    Ok(bytes.saturating_add(table).saturating_add(noted))
}

impl MemoryPool for Memory {
    fn name(&self) -> &str {
        "join"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        self.ask(additional);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        self.asked.fetch_sub(shrink, Ordering::Relaxed);
        self.held.shrink(shrink.min(self.held.size()));
    }

    fn try_grow(&self, _: &MemoryReservation, additional: usize) -> Result<()> {
        self.ask(additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.held.size()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.pool.memory_limit()
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(used: {})", self.held.consumer().name(), ByteSize(self.held.size() as u64))
    }
}
