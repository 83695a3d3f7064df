//! Which producer may start, so that what is written and not read stays within a budget.
//!
//! Bytes are charged to their producer, wherever they lie: when an accelerator is slow, it is the
//! scan before it that stops.

use crate::graph::{JobGraph, Millis, StageId};

use super::workers::WorkerState;

/// Whether one more task of a stage may start under [`Admission::Reserve`](super::Admission::Reserve).
///
/// With nothing in flight on its edges a producer may always start, however large its output:
/// otherwise nothing would ever fill them.
pub(super) fn reserve_admits(graph: &JobGraph, stage: StageId, now: Millis) -> bool {
    let mut expected = 0;
    let mut is_idle = true;
    let mut has_outputs = false;
    for edge in graph.budgeted_outputs(stage, now) {
        has_outputs = true;
        expected = edge.next_bytes.max(expected);
        let in_flight = edge.unconsumed_bytes.saturating_add(edge.expected_bytes);
        if in_flight == 0 {
            continue;
        }
        is_idle = false;
        if in_flight.saturating_add(edge.next_bytes) > edge.budget_bytes {
            return false;
        }
    }
    !has_outputs || is_idle || buffered(graph, now).saturating_add(expected) <= share(graph, stage)
}

/// What the whole job has in flight.
fn buffered(graph: &JobGraph, now: Millis) -> u64 {
    let edges = graph.consumers_first().flat_map(|stage| graph.budgeted_outputs(stage, now));
    let bytes = edges.map(|edge| edge.unconsumed_bytes.saturating_add(edge.expected_bytes));
    bytes.fold(0, u64::saturating_add)
}

/// Half of the job's budget is kept for the outputs of what runs behind the sources, so that it
/// can finish and make room. Where nothing behind a source has a budget, nothing is kept.
fn share(graph: &JobGraph, stage: StageId) -> u64 {
    let max = graph.limits().buffered_bytes_max;
    let is_behind = |stage: &StageId| graph.has_streaming_input(*stage);
    let mut behind = graph.consumers_first().filter(is_behind);
    let shares = behind.any(|stage| graph.budgeted_outputs(stage, Millis(0)).next().is_some());
    if shares && !graph.has_streaming_input(stage) { max / 2 } else { max }
}

/// What the paper's policy remembers of one job.
#[derive(Clone, Debug, Default)]
pub struct PaperBudget {
    bytes: f64,
    ticked: Option<Millis>,
}

/// One operator of a pipeline, as the paper's formula sees it.
#[derive(Clone, Copy, Debug)]
pub struct Operator {
    /// `T`: mean time of a task, in seconds.
    pub task_s: f64,
    /// `E`: how many of its tasks can run at once.
    pub slots: f64,
    /// `O / I`: bytes out per byte in.
    pub expansion: f64,
}

/// `P = Σ (T_i / E_i) · α_{i-1}` with `α_i = α_{i-1} · O_i / I_i`: the seconds that the pipeline
/// needs for one source partition, if all slots are used by all operators in turn.
pub fn seconds_per_partition(operators: impl IntoIterator<Item = Operator>) -> f64 {
    let mut alpha = 1.0;
    let mut seconds = 0.0;
    for operator in operators {
        seconds += operator.task_s / operator.slots.max(1.0) * alpha;
        alpha *= operator.expansion;
    }
    seconds
}

impl PaperBudget {
    /// Once a second, each source earns its partition divided by `P`. Starts with all of the
    /// memory.
    pub(super) fn tick(&mut self, graph: &JobGraph, workers: &[WorkerState], now: Millis) {
        let Some(ticked) = self.ticked else {
            self.bytes = graph.limits().buffered_bytes_max as f64;
            self.ticked = Some(now);
            return;
        };
        let seconds = now.since(ticked) / 1000;
        if seconds == 0 {
            return;
        }
        self.ticked = Some(ticked.after(seconds * 1000));
        for source in graph.consumers_first().filter(|stage| is_source(graph, *stage)) {
            let needed = seconds_per_partition(pipeline(graph, source, workers));
            if needed > 0.0 {
                let partition = graph.learned(source).mean_bytes() as f64;
                self.bytes += seconds as f64 * partition / needed;
            }
        }
    }

    pub(super) fn admits(&self, graph: &JobGraph, stage: StageId) -> bool {
        if is_source(graph, stage) {
            self.bytes >= graph.learned(stage).expected_bytes() as f64
        } else {
            let mut edges = graph.budgeted_outputs(stage, Millis(0));
            edges.all(|edge| edge.unconsumed_bytes < edge.budget_bytes)
        }
    }

    pub(super) fn spend(&mut self, graph: &JobGraph, stage: StageId) {
        if is_source(graph, stage) {
            self.bytes -= graph.learned(stage).expected_bytes() as f64;
        }
    }
}

/// The stages from which bytes come that somebody reads while they come.
fn is_source(graph: &JobGraph, stage: StageId) -> bool {
    !graph.has_streaming_input(stage) && graph.streams_to(stage).next().is_some()
}

/// A source, and what it streams to. Where a stage has several consumers, the first one counts.
fn pipeline(graph: &JobGraph, source: StageId, workers: &[WorkerState]) -> Vec<Operator> {
    let mut operators = vec![];
    let mut next = Some(source);
    while let Some(stage) = next {
        let need = &graph.stage(stage).need;
        let learned = graph.learned(stage);
        let slots = workers.iter().map(|worker| worker.slots(need)).fold(0, u64::saturating_add);
        // What a source reads is not known; its own output is the unit that all others scale.
        let expansion = if stage == source { 1.0 } else { learned.expansion() };
        let task_s = learned.mean_ms() as f64 / 1000.0;
        operators.push(Operator { task_s, slots: slots as f64, expansion });
        next = graph.streams_to(stage).next();
    }
    operators
}

/// What a stage has sealed and its consumers have not consumed: the paper runs the operator with
/// the least first.
pub(super) fn buffered_output(graph: &JobGraph, stage: StageId) -> u64 {
    let edges = graph.budgeted_outputs(stage, Millis(0));
    edges.map(|edge| edge.unconsumed_bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_example_of_the_paper_needs_three_seconds_per_partition() {
        let load = Operator { task_s: 12.0, slots: 6.0, expansion: 2.0 };
        let infer = Operator { task_s: 2.0, slots: 4.0, expansion: 1.0 };
        assert_eq!(seconds_per_partition([load, infer]), 3.0);
    }
}
