//! What the client of a job has.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{TaskId, UnitId};

use super::scenario::Rows;

/// What the client has read.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) rows: Rows,
    /// How many blocks of each unit, where that was promised in order.
    pub(super) blocks: BTreeMap<UnitId, u32>,
    pub(super) ended: BTreeSet<TaskId>,
    /// What it has read, and was never told that this is known.
    pub(super) unconfirmed: BTreeSet<UnitId>,
}
