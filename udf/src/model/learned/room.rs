//! How large a batch fits into a device's memory, learned from batches that did not.
//!
//! Between the largest size that fitted and the smallest that did not the answer is bisected. It holds for a
//! moment only: others use the device too. So it is kept for some batches, and then larger ones are tried
//! again, as congestion control does after a loss (Jacobson, "Congestion avoidance and control", 1988); each
//! attempt in vain doubles the number of batches until the next.
//!
//! Pure: sizes in, a limit out.

/// Batches that are computed before larger ones are tried again.
pub(super) const PATIENCE: u32 = 8;
/// After many attempts in vain.
const PATIENCE_MAX: u32 = 1024;
/// The answer is as exact as one part of so many.
const EXACT_TO: u64 = 32;

/// What is known of the device's room for batches.
#[derive(Clone, Debug)]
pub(super) struct Room {
    known: Known,
    /// The largest batch that fitted, since one of its size did not.
    largest: u64,
    patience: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// Every batch fitted.
    Nothing,
    /// Batches of `fits` did (0: none is known), and those of `over` did not.
    Between { fits: u64, over: u64 },
    /// Hardly more than `fits` does. For `left` more batches nothing larger is tried.
    Held { fits: u64, left: u32 },
    /// It is time to try more than `fits`.
    Growing { fits: u64 },
}

impl Room {
    /// Of a device on which a batch of more than `fits` did not fit, if one did not.
    pub(super) fn known(fits: Option<u64>) -> Self {
        let known = fits.map_or(Known::Nothing, |fits| Known::Held { fits, left: PATIENCE });
        Self { known, largest: 0, patience: PATIENCE }
    }

    /// The largest batch that is to be tried; `None` if there is no reason for a limit.
    pub(super) fn limit(&self) -> Option<u64> {
        match self.known {
            Known::Nothing => None,
            Known::Between { fits, over } => Some((fits + (over - fits) / 2).max(1)),
            Known::Held { fits, .. } => Some(fits),
            Known::Growing { fits } => Some(fits.saturating_mul(2)),
        }
    }

    /// A batch of this size was computed.
    pub(super) fn fitted(&mut self, size: u64) {
        self.largest = self.largest.max(size);
        match self.known {
            Known::Nothing => {}
            // One that was on its way before the limit was.
            Known::Between { over, .. } if size >= over => {
                self.known = Known::Growing { fits: size }
            }
            Known::Between { fits, over } => self.known = self.narrowed(fits.max(size), over),
            Known::Held { fits, .. } if !is_full(size, fits) => {}
            Known::Held { fits, left: 0 | 1 } => self.known = Known::Growing { fits },
            Known::Held { fits, left } => self.known = Known::Held { fits, left: left - 1 },
            Known::Growing { fits } if size > fits => {
                self.known = Known::Growing { fits: size };
                self.patience = PATIENCE;
            }
            Known::Growing { .. } => {}
        }
    }

    /// A batch of this size did not fit; tells whether that is news.
    pub(super) fn did_not_fit(&mut self, size: u64) -> bool {
        // A larger one was on its way before the limit was, or is one row.
        if self.limit().is_some_and(|limit| size > limit) {
            return false;
        }
        if self.largest >= size {
            self.largest = 0;
        }
        if let Known::Growing { .. } = self.known {
            self.patience = self.patience.saturating_mul(2).min(PATIENCE_MAX);
        }
        self.known = self.narrowed(self.largest, size);
        true
    }

    fn narrowed(&self, fits: u64, over: u64) -> Known {
        if fits > 0 && over - fits <= (fits / EXACT_TO).max(1) {
            Known::Held { fits, left: self.patience }
        } else {
            Known::Between { fits, over }
        }
    }
}

/// Whether a batch is of the size that it may have, but for a rest that no row fitted into.
pub(super) fn is_full(size: u64, limit: u64) -> bool {
    size.saturating_mul(8) >= limit.saturating_mul(7)
}
