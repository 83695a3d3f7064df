//! How full streaming edges are, and what more would be on them.

use super::ids::{Millis, StageId};
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
