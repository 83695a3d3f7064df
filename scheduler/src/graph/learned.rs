//! What has been seen of a stage's tasks, from which the next one's output is expected.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::ids::WorkerId;

/// Units remembered. Few, so that a change of the data shows soon.
const RECENT_MAX: usize = 32;

/// Units after which a worker's own count on it, in place of those of all workers.
const OWN_MIN: u32 = 3;

/// A worker's largest output is forgotten by this part of what others are smaller, with each of them.
const OWN_FADES: u64 = 8;

/// No first guess is larger, so that sums over tasks do not overflow.
const GUESS_MAX: u64 = 1 << 44;

/// Sizes and times of the units of one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    guess: u64,
    recent: VecDeque<u64>,
    expected: u64,
    /// Of each worker: keys may be skewed, and workers are given what lies on them.
    own: BTreeMap<WorkerId, Own>,
    units: u64,
    bytes_in: u64,
    bytes_out: u64,
    busy_ms: u64,
}

/// The outputs of one worker's units. Small: there may be as many as workers, stages and jobs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Own {
    units: u32,
    expected: u64,
}

impl Own {
    fn record(&mut self, bytes: u64) {
        self.units = self.units.saturating_add(1);
        let smaller = self.expected.saturating_sub(bytes);
        self.expected = bytes.max(self.expected - smaller.div_ceil(OWN_FADES));
    }
}

impl Learned {
    pub(super) fn new(guess: u64) -> Self {
        let recent = VecDeque::with_capacity(RECENT_MAX);
        let guess = guess.min(GUESS_MAX);
        Self {
            guess,
            recent,
            expected: guess,
            own: BTreeMap::new(),
            units: 0,
            bytes_in: 0,
            bytes_out: 0,
            busy_ms: 0,
        }
    }

    pub(super) fn record(
        &mut self,
        worker: &WorkerId,
        bytes_in: u64,
        bytes_out: u64,
        busy_ms: u64,
    ) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(bytes_out);
        self.own.entry(worker.clone()).or_default().record(bytes_out);
        self.units += 1;
        self.bytes_in = self.bytes_in.saturating_add(bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(bytes_out);
        self.busy_ms = self.busy_ms.saturating_add(busy_ms);
        self.expected = self.high_quantile();
    }

    /// A worker never comes back.
    pub(super) fn forget(&mut self, worker: &WorkerId) {
        self.own.remove(worker);
    }

    /// Nine tenths of the recent units gave no more than this.
    fn high_quantile(&self) -> u64 {
        let mut sizes: Vec<_> = self.recent.iter().copied().collect();
        sizes.sort_unstable();
        let at = (sizes.len() * 9).div_ceil(10).saturating_sub(1);
        sizes.get(at).copied().unwrap_or(self.guess)
    }

    /// Expected output of the next unit, in bytes: high rather than low.
    pub fn expected_bytes(&self) -> u64 {
        self.expected
    }

    /// The same if the unit runs on this worker.
    pub fn expected_bytes_on(&self, worker: &WorkerId) -> u64 {
        let own = self.own.get(worker).filter(|own| own.units >= OWN_MIN);
        own.map_or(self.expected, |own| own.expected)
    }

    /// Mean output of a unit so far, in bytes.
    pub fn mean_bytes(&self) -> u64 {
        self.bytes_out.checked_div(self.units).unwrap_or(self.guess)
    }

    /// Mean time of a task so far, in milliseconds; 0 if none has ended.
    pub fn mean_ms(&self) -> u64 {
        self.busy_ms.checked_div(self.units).unwrap_or(0)
    }

    /// Bytes out per byte in; 1 if nothing is known.
    pub fn expansion(&self) -> f64 {
        match self.bytes_in {
            0 => 1.0,
            bytes_in => self.bytes_out as f64 / bytes_in as f64,
        }
    }
}
