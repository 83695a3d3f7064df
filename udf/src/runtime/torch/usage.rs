//! What batches take of a CUDA device's memory.
//!
//! libtorch keeps what a batch has freed for the next one, so what is missing since the model was loaded is what
//! the largest batch so far took, and what others have taken meanwhile. A smaller batch is counted as its part of
//! that: were it all its own, batches that have to be smaller would seem to take as much as before, and would be
//! made smaller again until they are one row. That errs on the side of smaller batches, and less so once the
//! others have gone.

use std::sync::atomic::{AtomicU64, Ordering};

use super::super::replica::{Device, Usage};
use super::shim;

/// A device's memory when a model was loaded, and what was kept of it for batches since.
#[derive(Debug)]
pub(super) struct Baseline {
    free: u64,
    /// Padded size of the largest batch that memory is kept for.
    largest: AtomicU64,
}

impl Baseline {
    /// That of now; `None` where it is not known.
    pub(super) fn of(device: Device) -> Option<Self> {
        free(device).map(|free| Self { free, largest: AtomicU64::new(0) })
    }

    /// What a batch of this padded size took, of what could be taken.
    pub(super) fn usage(&self, device: Device, padded: usize) -> Usage {
        let now = free(device);
        let bytes = now.map(|now| self.taken(now, padded as u64));
        Usage { busy: None, bytes, free: now.map(|_| self.free) }
    }

    /// Nothing is kept for batches any more.
    pub(super) fn forget(&self) {
        self.largest.store(0, Ordering::Relaxed);
    }

    fn taken(&self, free_now: u64, padded: u64) -> u64 {
        let largest = self.largest.fetch_max(padded, Ordering::Relaxed).max(padded).max(1);
        let missing = u128::from(self.free.saturating_sub(free_now));
        let part = missing * u128::from(padded) / u128::from(largest);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

fn free(device: Device) -> Option<u64> {
    let Device::Cuda(ordinal) = device else { return None };
    shim::device_memory(ordinal).ok().map(|(free, _)| free)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(free: u64) -> Baseline {
        Baseline { free, largest: AtomicU64::new(0) }
    }

    #[test]
    fn what_is_missing_was_taken() {
        let baseline = baseline(100);
        assert_eq!([30, 100, 120].map(|free| baseline.taken(free, 8)), [70, 0, 0]);
        assert_eq!(Baseline::of(Device::Cpu).map(|baseline| baseline.free), None);
        assert_eq!(baseline.usage(Device::Cpu, 8), Usage::default());
    }

    #[test]
    fn a_smaller_batch_took_its_part_of_what_is_kept_for_a_larger_one() {
        let baseline = baseline(1000);
        assert_eq!([40, 80, 20].map(|padded| baseline.taken(200, padded)), [800, 800, 200]);
        baseline.forget();
        assert_eq!(baseline.taken(800, 20), 200);
    }

    /// A batch of 900 needs more than may be taken: the next ones are as much smaller as they have to be.
    #[test]
    fn batches_become_as_small_as_they_have_to_be_and_no_smaller() {
        let (baseline, most) = (baseline(2000), 750);
        let mut kept = 0;
        let mut size = 900;
        for _ in 0..100 {
            kept = kept.max(size);
            let bytes = baseline.taken(2000 - kept, size);
            size = size * most / bytes;
        }
        assert_eq!(size, most);
    }
}
