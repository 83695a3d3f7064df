//! What happened that cannot be read off the units and the tasks.

use serde::{Deserialize, Serialize};

use super::action::Cause;
use super::ids::{Millis, UnitId};

/// Units that ran again, and reports that came too late.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct History {
    pub(super) recomputed: Vec<Recomputed>,
    /// Reports of attempts that no longer ran, or of attempts that never were.
    pub(super) stale_reports: u64,
}

impl History {
    pub(super) fn recomputed(&mut self, unit: UnitId, why: Cause, at: Millis) {
        self.recomputed.push(Recomputed { unit, why, at });
    }
}

/// A unit that was done and had to run again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recomputed {
    /// The unit, once for each time.
    pub unit: UnitId,
    /// What was lost that somebody needs.
    pub why: Cause,
    /// When that was decided.
    pub at: Millis,
}
