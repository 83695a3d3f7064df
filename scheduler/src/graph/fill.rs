//! How full streaming edges and workers are, and what more would be on them.

use super::ids::{Millis, StageId, TaskId, WorkerId};
use super::job::JobGraph;
use super::spec::{EdgeKind, Granularity};
use super::stage::Edge;

/// No task is taken to have less of its output unread than this, in thousandths: its readers may stop while it runs.
const UNREAD_MILLI_MIN: u64 = 250;

/// How full a streaming edge is.
#[derive(Clone, Copy, Debug)]
pub struct EdgeFill {
    /// The most that the two below may be together.
    pub budget_bytes: u64,
    /// Bytes sealed that the consumer is not done with.
    pub unconsumed_bytes: u64,
    /// What its running producers are expected to add at a time, while the consumer reads.
    pub expected_bytes: u64,
    /// And what one more of them would.
    pub next_bytes: u64,
}

impl JobGraph {
    /// The streaming edges out of a stage whose bytes are bounded.
    pub fn budgeted_outputs(&self, stage: StageId, now: Millis) -> impl Iterator<Item = EdgeFill> {
        let found = &self.stages[stage.at()];
        let edges = found.outputs.iter().map(|edge| &self.edges[edge.at()]);
        edges.filter(|edge| edge.is_budgeted).map(move |edge| {
            let unread = self.unread_milli(edge, now);
            EdgeFill {
                budget_bytes: edge.spec.budget_bytes,
                unconsumed_bytes: edge.unconsumed_bytes,
                expected_bytes: found.expected_left.saturating_mul(unread) / 1000,
                next_bytes: found.learned.expected_bytes().saturating_mul(unread).div_ceil(1000),
            }
        })
    }

    /// Whether all that a stage writes is read and deleted while the job goes on: who holds its tasks back waits for
    /// room that will be there.
    pub fn is_drained(&self, stage: StageId) -> bool {
        let outputs = &self.stages[stage.at()].outputs;
        !outputs.is_empty() && outputs.iter().all(|edge| self.edges[edge.at()].is_budgeted)
    }

    /// Bytes on a worker that somebody has yet to read, with what the tasks that run there are expected to add at a
    /// time. What is kept there after it was read does not count: it goes when there is no room.
    pub fn bytes_on(&self, worker: &WorkerId) -> u64 {
        let held = self.holdings.get(worker).map_or(0, |held| held.bytes - held.kept_bytes);
        let tasks = self.slots.get(worker).into_iter().flatten();
        tasks.map(|task| self.task(*task).adds_bytes()).fold(held, u64::saturating_add)
    }

    /// [`Self::bytes_on`] of all workers that have tasks or blocks.
    pub fn bytes_by_worker(&self) -> impl Iterator<Item = (&WorkerId, u64)> {
        let runs_only = |worker: &&WorkerId| !self.holdings.contains_key(*worker);
        let workers = self.holdings.keys().chain(self.slots.keys().filter(runs_only));
        workers.map(|worker| (worker, self.bytes_on(worker)))
    }

    /// What a task is expected to add at a time to what lies unread on its worker.
    pub fn adds_bytes(&self, task: TaskId) -> u64 {
        self.task(task).adds_bytes()
    }

    /// What one more task of a stage is expected to add to that at a time.
    pub fn next_bytes_on(&self, worker: &WorkerId, stage: StageId, now: Millis) -> u64 {
        let expected = self.stages[stage.at()].learned.expected_bytes_on(worker);
        expected.saturating_mul(self.unread_milli_of(stage, now)).div_ceil(1000)
    }

    /// The part of a task's output that lies there unread at a time. A file goes with its last reader.
    pub(super) fn unread_milli_of(&self, stage: StageId, now: Millis) -> u64 {
        let edges = self.stages[stage.at()].outputs.iter().map(|edge| &self.edges[edge.at()]);
        edges.map(|edge| self.unread_milli(edge, now)).max().unwrap_or(1000)
    }

    /// Of what a task writes, how many thousandths lie there at a time and are not read. All of it, unless blocks
    /// are read while it runs: then a part that follows from how long they lie and how long it runs (Little's
    /// law), both as seen of late. How soon a client reads on is its own affair.
    fn unread_milli(&self, edge: &Edge, now: Millis) -> u64 {
        let task_ms = self.stages[edge.spec.from.at()].learned.mean_ms();
        let streams = edge.spec.kind == EdgeKind::Streaming(Granularity::Block)
            && !self.stages[edge.spec.to.at()].spec.is_client;
        let Some(lies_ms) = edge.lies_ms.filter(|_| streams && task_ms > 0) else { return 1000 };
        // Where nothing is read any more, what lies there will for as long at least.
        let waits_ms = if edge.unconsumed_bytes > 0 { now.since(edge.waits_since) } else { 0 };
        (lies_ms.max(waits_ms).saturating_mul(1000) / task_ms).clamp(UNREAD_MILLI_MIN, 1000)
    }
}
