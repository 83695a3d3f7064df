//! What is learned of a model's batches on one type of device in one precision: a small state machine, into
//! which batches go and out of which the size of the next ones comes.
//!
//! Three things limit a batch, and each is learned by itself: what is worth while ([`Search`], on devices where
//! that is not known beforehand), what did not fit into memory ([`Room`]), and what the device says it has left.
//! So a device that others fill makes batches small for as long as that lasts, and what was learned about rates
//! is still there afterwards.

use std::time::Duration;

use super::room::{Room, is_full};
use super::search::{Best, Search};

/// A batch that a device computed, or could not.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Rows of the batch.
    pub rows: u64,
    /// Padded size: in tokens, or in rows for models without tokens.
    pub padded: u64,
    /// For how long the device computed; `None` if the batch did not fit into its memory.
    pub busy: Option<Duration>,
    /// What it took of the device's memory, where that is known.
    pub memory: Option<Taken>,
}

/// What a batch took of its device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes, the model not included.
    pub bytes: u64,
    /// Bytes that a batch may take at this moment.
    pub bytes_max: u64,
}

/// Where a search for the size of batches begins and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchRange {
    /// The first size.
    pub start: u64,
    /// The largest.
    pub largest: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Learner {
    /// `None` where batches are as large as the model's declaration says.
    search: Option<Search>,
    room: Room,
    /// What fits into the memory that was left last.
    fits_now: Option<u64>,
    /// Rows in a unit of padded size, lately.
    rows_per_unit: Option<f64>,
}

/// How much of what is known of the rows in a unit is forgotten with each batch.
const FORGETS: f64 = 0.1;

impl Learner {
    /// One that knows what was found earlier.
    pub(super) fn new(range: Option<SearchRange>, fits: Option<u64>, found: Option<Best>) -> Self {
        Self {
            search: range.map(|range| Search::new(range.start, range.largest, found)),
            room: Room::known(fits),
            fits_now: None,
            rows_per_unit: None,
        }
    }

    /// What the next batches may be at most, in units of padded size; `None` if nothing is known that they
    /// should not exceed.
    pub(super) fn size(&self) -> Option<u64> {
        let trial = self.search.as_ref().map(Search::size);
        let limits = [trial, self.room.limit(), self.fits_now];
        limits.into_iter().flatten().min().map(|size| size.max(1))
    }

    /// Whether a size is looked for that is worth while.
    pub(super) fn searches(&self) -> bool {
        self.search.is_some()
    }

    /// What did not fit once and may not be exceeded for a while.
    pub(super) fn room(&self) -> Option<u64> {
        self.room.limit()
    }

    /// The size that is worth while, once it is known.
    pub(super) fn found(&self) -> Option<Best> {
        self.search.as_ref().and_then(Search::found)
    }

    /// Rows in a unit of padded size; `None` before the first batch.
    pub(super) fn rows_per_unit(&self) -> Option<f64> {
        self.rows_per_unit
    }

    /// Learns from a batch; tells whether it is something to be kept.
    pub(super) fn observe(&mut self, batch: &Observed) -> bool {
        let size = batch.padded;
        let Some(busy) = batch.busy else {
            // A single row cannot be divided, so nothing is learned of how it could fit.
            return batch.rows > 1 && self.room.did_not_fit(size);
        };
        self.room.fitted(size);
        let Some(search) = &mut self.search else { return false };
        if size > 0 {
            let rows = batch.rows as f64 / size as f64;
            let known = self.rows_per_unit.unwrap_or(rows);
            self.rows_per_unit = Some(known + FORGETS * (rows - known));
        }
        let rate = size as f64 / busy.as_secs_f64();
        let has_ended = search.measured(size, rate);
        self.remember_memory(batch);
        has_ended
    }

    /// A small batch says little of what a large one takes, since something is taken for any.
    fn remember_memory(&mut self, batch: &Observed) {
        let Some(Taken { bytes, bytes_max }) = batch.memory.filter(|taken| taken.bytes > 0) else {
            return;
        };
        if self.size().is_some_and(|limit| is_full(batch.padded, limit)) {
            let fits = u128::from(batch.padded) * u128::from(bytes_max) / u128::from(bytes);
            self.fits_now = Some(u64::try_from(fits).unwrap_or(u64::MAX).max(1));
        }
    }
}

#[cfg(test)]
mod tests;
