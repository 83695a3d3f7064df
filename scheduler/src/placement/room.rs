//! Whether a worker has room for what one more task writes, under [`Admission::Reserve`](super::Admission::Reserve).
//!
//! The budgets of edges and jobs are sums over the cluster, and could all lie on one worker. So one that says how
//! much it may keep is given a task only if that has room for what lies there to be read, what the tasks that run
//! there are expected to add, and what this one is. Others are as if they had room for everything.

use crate::graph::{JobGraph, Millis, StageId};

use super::workers::WorkerState;

/// What a task of one stage leaves free, in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    stage: StageId,
    now: Millis,
    left_bytes: u64,
    most_bytes: u64,
}

impl Room {
    /// What runs behind a source makes room. So that it can, a source leaves room for a task of each stage that
    /// does, or half of a worker's if that is less. `most_bytes` is what the largest worker may keep that could run it.
    pub(super) fn of(graph: &JobGraph, stage: StageId, now: Millis, most_bytes: u64) -> Self {
        let behind = graph.consumers_first().filter(|stage| graph.has_streaming_input(*stage));
        let bytes = behind.map(|stage| graph.learned(stage).expected_bytes());
        let left_bytes = match graph.has_streaming_input(stage) {
            true => 0,
            false => bytes.fold(0, u64::saturating_add),
        };
        Self { stage, now, left_bytes, most_bytes }
    }

    /// Whether the next task has room on a worker. One that has it nowhere, however empty workers are, has it on the
    /// largest one when that is.
    pub(super) fn is_on(&self, graph: &JobGraph, worker: &WorkerState) -> bool {
        if worker.work_bytes == u64::MAX {
            return true;
        }
        let bytes = self.next_bytes(graph, worker).min(self.within(self.most_bytes));
        bytes == 0 || worker.used_work_bytes.saturating_add(bytes) <= self.within(worker.work_bytes)
    }

    /// How full a worker would be with it, in thousandths.
    pub(super) fn fullness(&self, graph: &JobGraph, worker: &WorkerState) -> u64 {
        if worker.work_bytes == u64::MAX {
            return 0;
        }
        let bytes = worker.used_work_bytes.saturating_add(self.next_bytes(graph, worker));
        bytes.saturating_mul(1000) / worker.work_bytes.max(1)
    }

    fn next_bytes(&self, graph: &JobGraph, worker: &WorkerState) -> u64 {
        graph.next_bytes_on(&worker.id, self.stage, self.now)
    }

    fn within(&self, bytes: u64) -> u64 {
        bytes - self.left_bytes.min(bytes / 2)
    }
}

/// Whether what a stage reads is more than what it writes, so that nothing is gained by holding it back. What writes
/// more than it reads may have one task, or what it reads would never go.
pub(super) fn makes_room(graph: &JobGraph, stage: StageId) -> bool {
    let shrinks = graph.learned(stage).expansion() < 1.0 || graph.running(stage) == 0;
    graph.has_streaming_input(stage) && shrinks
}
