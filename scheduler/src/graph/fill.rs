//! How full streaming edges are, and what more would be on them.

use super::ids::StageId;
use super::job::JobGraph;
use super::spec::{EdgeKind, Granularity};
use super::stage::Edge;

/// No task is taken to have less of its output unread than this, in thousandths: its readers may get slower.
const UNREAD_MILLI_MIN: u64 = 125;

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
    pub fn budgeted_outputs(&self, stage: StageId) -> impl Iterator<Item = EdgeFill> {
        let found = &self.stages[stage.at()];
        let edges = found.outputs.iter().map(|edge| &self.edges[edge.at()]);
        edges.filter(|edge| edge.is_budgeted).map(|edge| {
            let unread = self.unread_milli(edge);
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
    /// law), both as seen of late.
    fn unread_milli(&self, edge: &Edge) -> u64 {
        let task_ms = self.stages[edge.spec.from.at()].learned.mean_ms();
        let streams = edge.spec.kind == EdgeKind::Streaming(Granularity::Block);
        match edge.lies_ms.filter(|_| streams && task_ms > 0) {
            Some(lies_ms) => (1000 * lies_ms / task_ms).clamp(UNREAD_MILLI_MIN, 1000),
            None => 1000,
        }
    }
}
