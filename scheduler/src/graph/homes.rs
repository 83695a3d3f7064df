//! Where the partitions of a hash shuffle lie that have been merged.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ids::WorkerId;

/// Bytes of each partition, by the worker to which they were written.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Homes(BTreeMap<u32, BTreeMap<WorkerId, u64>>);

impl Homes {
    pub(super) fn add(&mut self, partition: u32, worker: WorkerId, bytes: u64) {
        let there = self.0.entry(partition).or_default().entry(worker).or_default();
        *there = there.saturating_add(bytes);
    }

    /// The worker that has most of a partition.
    pub(super) fn of(&self, partition: u32) -> Option<(&WorkerId, u64)> {
        let all = self.0.get(&partition)?.iter().map(|(worker, bytes)| (worker, *bytes));
        all.max_by_key(|(_, bytes)| *bytes)
    }

    pub(super) fn forget(&mut self, worker: &WorkerId) {
        for workers in self.0.values_mut() {
            workers.remove(worker);
        }
    }
}
