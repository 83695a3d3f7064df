//! How much of what a process writes the page cache takes.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use forebay_engine::Inventory;
use parking_lot::Mutex;

/// This part of the memory at a time. From a tenth of it on, by default, the kernel writes to the disk what waits in the
/// page cache; from a fifth on, whoever writes has to wait for that.
const PART_OF_MEMORY: u64 = 20;

/// After so long the kernel writes to the disk what has waited, by default: the page cache takes as much again.
const WRITTEN_AFTER: Duration = Duration::from_secs(30);

static OF_PROCESS: LazyLock<Arc<Allowance>> =
    LazyLock::new(|| Arc::new(Allowance::new(Inventory::detect().memory / PART_OF_MEMORY)));

/// Bytes that may go by way of the page cache: a bucket of tokens, which fills while time passes.
#[derive(Debug)]
pub(super) struct Allowance {
    bytes_max: u64,
    left: Mutex<Left>,
}

#[derive(Debug)]
struct Left {
    bytes: f64,
    at: Instant,
}

impl Allowance {
    /// Of so many bytes, all of which are left.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, left: Mutex::new(Left { bytes: bytes_max as f64, at: Instant::now() }) }
    }

    /// By the memory of this machine, or of the control group.
    pub(super) fn of_process() -> Arc<Self> {
        Arc::clone(&OF_PROCESS)
    }

    /// Takes so many bytes of it, if they are left.
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.take_at(bytes, Instant::now())
    }

    fn take_at(&self, bytes: u64, now: Instant) -> bool {
        let (most, wanted) = (self.bytes_max as f64, bytes as f64);
        let mut left = self.left.lock();
        let passed = now.saturating_duration_since(left.at).div_duration_f64(WRITTEN_AFTER);
        *left = Left { bytes: (left.bytes + passed * most).min(most), at: now };
        let is_left = left.bytes >= wanted;
        if is_left {
            left.bytes -= wanted;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_there_again_when_the_kernel_has_written_it() {
        let allowance = Allowance::new(1000);
        let start = allowance.left.lock().at;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(allowance.take_at(600, at(0)));
        assert!(!allowance.take_at(600, at(0)));
        assert!(allowance.take_at(400, at(0)));
        assert!(!allowance.take_at(600, at(15)));
        assert!(allowance.take_at(600, at(20)));
        assert!(!allowance.take_at(1001, at(1_000_000)), "no more than there is");
        assert!(allowance.take_at(1000, at(1_000_000)));
    }
}
