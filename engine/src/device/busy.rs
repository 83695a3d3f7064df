//! For how long a device has computed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time in which at least one batch computed on a device.
#[derive(Debug, Default)]
pub(super) struct BusyTime(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Batches that compute.
    batches: u32,
    /// Since when there are some.
    since: Option<Instant>,
    /// Before that.
    total: Duration,
}

/// A batch that computes, as long as it is held.
#[derive(Debug)]
pub(super) struct Computing(Arc<BusyTime>);

impl BusyTime {
    /// A batch begins.
    pub(super) fn begin(self: &Arc<Self>) -> Computing {
        let mut state = self.0.lock();
        state.batches += 1;
        state.since.get_or_insert_with(Instant::now);
        Computing(Arc::clone(self))
    }

    /// Until now.
    pub(super) fn total(&self) -> Duration {
        let state = self.0.lock();
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.batches -= 1;
        if state.batches == 0 {
            let since = state.since.take();
            state.total += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(20);

    #[test]
    fn batches_at_the_same_time_count_once_and_pauses_do_not() {
        let busy = Arc::new(BusyTime::default());
        assert_eq!(busy.total(), Duration::ZERO);
        let start = Instant::now();
        let (first, second) = (busy.begin(), busy.begin());
        std::thread::sleep(STEP);
        drop(first);
        assert!(busy.total() >= STEP);
        drop(second);
        let total = busy.total();
        assert!(total <= start.elapsed());
        std::thread::sleep(STEP);
        assert_eq!(busy.total(), total);
    }
}
