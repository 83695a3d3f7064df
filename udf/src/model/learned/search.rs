//! How large a batch is worth while, learned from how fast batches were.
//!
//! A batch costs a device something, and each row of it something more: rows per second rise with the size and
//! flatten. The first size after which doubling gains little is found by galloping (Bentley and Yao, "An almost
//! optimal algorithm for unbounded searching", 1976), which takes a number of steps logarithmic in the answer.
//!
//! Pure: sizes and rates in, a size out.

use super::room::is_full;

/// What a larger batch must gain for a still larger one to be tried.
const WORTH: f64 = 1.05;
/// Batches of one size whose middle rate is that size's: the first may have to set something up.
const SAMPLES: usize = 3;
/// A rate that differs by this factor is another one.
const OFF: f64 = 1.5;
/// After so many other rates in a row what was learned no longer holds.
const MISSES: u32 = 3;

/// A size, and the padded size that batches of it get through per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    pub(super) size: u64,
    pub(super) rate: f64,
}

/// A search for the size of batches.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// What batches are to be, memory permitting.
    trial: u64,
    largest: u64,
    best: Option<Best>,
    /// Of batches of the size that is tried.
    rates: Vec<f64>,
    /// Whether the best is what is tried.
    is_settled: bool,
    misses: u32,
}

impl Search {
    /// From `start`, up to `largest`; or from what was found earlier.
    pub(super) fn new(start: u64, largest: u64, found: Option<Best>) -> Self {
        let found = found.filter(|best| (1..=largest).contains(&best.size) && best.rate > 0.0);
        Self {
            trial: found.map_or(start, |best| best.size),
            largest,
            best: found,
            rates: Vec::with_capacity(SAMPLES),
            is_settled: found.is_some(),
            misses: 0,
        }
    }

    /// The size of the next batches.
    pub(super) fn size(&self) -> u64 {
        self.trial
    }

    /// What was found, once the search has ended.
    pub(super) fn found(&self) -> Option<Best> {
        self.best.filter(|_| self.is_settled)
    }

    /// A batch of this size was computed at this rate; tells whether the search has ended with it.
    pub(super) fn measured(&mut self, size: u64, rate: f64) -> bool {
        // Batches that were cut before the size was say nothing of it, nor do those that could not be filled.
        let is_of_trial = is_full(size, self.trial) && is_full(self.trial, size);
        if !is_of_trial || !rate.is_finite() || rate <= 0.0 {
            return false;
        }
        self.rates.push(rate);
        if self.rates.len() < SAMPLES {
            return false;
        }
        self.rates.sort_by(f64::total_cmp);
        let middle = Best { size: self.trial, rate: self.rates[SAMPLES / 2] };
        self.rates.clear();
        if self.is_settled { self.watch(middle.rate) } else { self.step(middle) }
    }

    fn step(&mut self, measured: Best) -> bool {
        let gains = self.best.is_none_or(|best| measured.rate > best.rate * WORTH);
        let best = self.best.filter(|best| best.rate >= measured.rate).unwrap_or(measured);
        self.best = Some(best);
        self.is_settled = !gains || self.trial >= self.largest;
        self.trial = match self.is_settled {
            true => best.size,
            false => self.trial.saturating_mul(2).min(self.largest),
        };
        self.is_settled
    }

    /// Looks whether what was found still holds, and begins anew if not: with a smaller size, as the best may
    /// be smaller or larger than it was.
    fn watch(&mut self, rate: f64) -> bool {
        let Some(best) = &mut self.best else { return false };
        if (best.rate / OFF..=best.rate * OFF).contains(&rate) {
            self.misses = 0;
            return false;
        }
        self.misses += 1;
        if self.misses < MISSES {
            return false;
        }
        *self = Self::new((best.size / 2).max(1), self.largest, None);
        true
    }
}
