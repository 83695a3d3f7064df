//! Memory that is there before anybody can ask the pool for it.
//!
//! A batch that an input gives, or that is decoded, takes its memory whatever the pool says then. To
//! wait until the pool has room could be to wait for ever: what is held may be what the others wait
//! for. So it passes, up to a size that a limit which stands for the memory of a machine can bear;
//! beyond that the query ends with the pool's error.

use bytesize::ByteSize;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;

/// Bytes that may be held at one place although the pool has refused them. Enough for usual batches,
/// so that a query does not die of a pool that is full for a moment.
pub const UNRESERVED_BYTES_MAX: usize = 64 << 20;

/// Reserves what is there already; returns how much of it the pool counts: all or nothing.
///
/// # Errors
/// The pool's, if it refuses more than [`UNRESERVED_BYTES_MAX`].
pub fn admit(reservation: &MemoryReservation, bytes: usize) -> Result<usize> {
    match reservation.try_grow(bytes) {
        Ok(()) => Ok(bytes),
        Err(_) if bytes <= UNRESERVED_BYTES_MAX => Ok(0),
        Err(error) => Err(error.context(format!(
            "{}: {} at once; raise the memory limit, or give it smaller rows",
            reservation.consumer().name(),
            ByteSize(bytes as u64)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    #[test]
    fn what_is_there_is_reserved_or_small_or_an_error() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let reservation = MemoryConsumer::new("Reader").register(&pool);
        assert_eq!(admit(&reservation, 60).unwrap(), 60);
        assert_eq!(admit(&reservation, 60).unwrap(), 0, "the limit holds");
        assert_eq!(pool.reserved(), 60);
        let error = admit(&reservation, UNRESERVED_BYTES_MAX + 1).unwrap_err();
        assert_eq!(crate::ErrorKind::of(&error), crate::ErrorKind::ResourceExhausted);
        assert!(error.to_string().contains("Reader: 64.0 MiB at once"), "{error}");
    }
}
