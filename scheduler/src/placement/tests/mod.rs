//! Fit, order, budgets and failures; the simulation tries them in all combinations.

mod admission;
mod early;
mod failures;
mod fit;
mod fleet;
mod memory;
mod order;
mod room;

use super::*;
use crate::graph::{
    BlockReport, EdgeKind, EdgeSpec, Event, Granularity, JobGraph, JobSpec, Millis, StageId,
    StageSpec, TaskId, WorkerId,
};
use crate::resources::{AcceleratorNeed, Need, WHOLE};

const BLOCK: EdgeKind = EdgeKind::Streaming(Granularity::Block);
const MIB: u64 = 1 << 20;

fn worker(name: &str, cpus: u32, devices: usize) -> WorkerState {
    let devices = vec![Device::new("cuda", 16 * MIB); devices];
    WorkerState::new(WorkerId::new(name), cpus * WHOLE, 64 * MIB).with_devices(devices)
}

fn accelerator(milli: u32) -> Need {
    Need::cpus(0).with_accelerator(AcceleratorNeed::try_new(milli).unwrap())
}

fn scan(partitions: u32) -> StageSpec {
    StageSpec::new("scan", Need::cpus(1000), partitions)
        .with_replayable()
        .with_output_bytes_guess(100)
}

fn infer() -> StageSpec {
    StageSpec::new("infer", accelerator(1000), 0).with_replayable().with_output_bytes_guess(100)
}

fn job(stages: Vec<StageSpec>, edges: &[(u32, u32, EdgeKind, u64)]) -> JobGraph {
    let edge = |(from, to, kind, budget): &(u32, u32, EdgeKind, u64)| {
        EdgeSpec::new(StageId(*from), StageId(*to), *kind).with_budget_bytes(*budget)
    };
    let edges = edges.iter().map(edge).collect();
    JobGraph::try_new(JobSpec { stages, edges, ..JobSpec::default() }).unwrap()
}

fn job_of<'a>(graph: &'a mut JobGraph, paper: &'a mut PaperBudget) -> Job<'a> {
    Job { id: "job", graph, weight: 1, admission: Admission::Reserve, paper }
}

fn round(graph: &mut JobGraph, workers: &[WorkerState]) -> Vec<Binding> {
    let paper = &mut PaperBudget::default();
    place(&mut [job_of(graph, paper)], &mut fleet(workers), Millis(0))
}

/// Workers of which nothing is known yet.
fn fleet(workers: &[WorkerState]) -> Fleet {
    let mut fleet = Fleet::default();
    fleet.attend(workers.to_vec());
    fleet
}

/// Unit and worker of each binding.
fn told(bindings: &[Binding]) -> Vec<String> {
    let one = |binding: &Binding| format!("{} on {}", binding.bound.unit, binding.worker);
    bindings.iter().map(one).collect()
}

fn seal(graph: &mut JobGraph, task: TaskId, seq: u32, bytes: u64) {
    let block = BlockReport { seq, bytes, rows: 1, checksum: 1, run: None, segments: None };
    graph.apply(Event::BlockSealed { task, block }, Millis(0));
}

fn finish(graph: &mut JobGraph, task: TaskId, sizes: &[u64]) {
    let report = |(seq, bytes): (u32, &u64)| BlockReport {
        seq,
        bytes: *bytes,
        rows: 1,
        checksum: 1,
        run: None,
        segments: None,
    };
    let blocks = (0..).zip(sizes).map(report).collect();
    graph.apply(Event::TaskFinished { task, blocks }, Millis(0));
}
