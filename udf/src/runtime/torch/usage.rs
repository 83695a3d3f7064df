//! What batches take of a CUDA device's memory.
//!
//! libtorch keeps what a batch has freed for the next one, so what is missing since the model was loaded is what
//! the largest batch so far took, and what others have taken meanwhile. That errs on the side of smaller batches,
//! and less so once the others have gone.

use super::super::replica::{Device, Usage};
use super::shim;

/// A device's memory at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Baseline {
    free: u64,
}

impl Baseline {
    /// That of now; `None` where it is not known.
    pub(super) fn of(device: Device) -> Option<Self> {
        free(device).map(|free| Self { free })
    }

    /// What was taken since, of what could be.
    pub(super) fn usage(self, device: Device) -> Usage {
        let now = free(device);
        Usage { busy: None, bytes: now.map(|now| self.taken(now)), free: now.map(|_| self.free) }
    }

    fn taken(self, free_now: u64) -> u64 {
        self.free.saturating_sub(free_now)
    }
}

fn free(device: Device) -> Option<u64> {
    let Device::Cuda(ordinal) = device else { return None };
    shim::device_memory(ordinal).ok().map(|(free, _)| free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_was_taken() {
        let baseline = Baseline { free: 100 };
        assert_eq!((baseline.taken(30), baseline.taken(100), baseline.taken(120)), (70, 0, 0));
        assert_eq!(Baseline::of(Device::Cpu), None);
        assert_eq!(baseline.usage(Device::Cpu), Usage::default());
    }
}
