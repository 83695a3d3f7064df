//! Which job, which stage, which worker, and how much at a time.

use super::*;
use crate::graph::{Segment, Segments};
use crate::resources::Lease;

#[test]
fn a_task_without_an_accelerator_leaves_accelerated_workers_alone_if_it_can() {
    let workers = [worker("gpu", 2, 1), worker("cpu", 2, 0)];
    let mut graph = job(vec![scan(3), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    let bindings = round(&mut graph, &workers);
    assert_eq!(told(&bindings), ["0.0 on cpu", "0.1 on cpu", "0.2 on gpu"]);
}

#[test]
fn accelerators_come_first_and_where_the_block_lies() {
    let workers = [worker("a", 1, 1), worker("b", 1, 1), worker("c", 1, 0)];
    let mut graph = job(vec![scan(5), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    let bindings = round(&mut graph, &workers);
    assert_eq!(told(&bindings), ["0.0 on c", "0.1 on a", "0.2 on b"]);
    seal(&mut graph, bindings[2].bound.task, 0, 100);
    seal(&mut graph, bindings[0].bound.task, 0, 100);
    let bound = round(&mut graph, &workers);
    assert_eq!(told(&bound), ["1.0 on b", "1.1 on a"]);
    assert_eq!(bound[0].lease, Lease { devices: vec![0] });
    assert_eq!(bound[1].bound.inputs[0].worker, WorkerId::new("c"), "the next best is to fetch");
}

#[test]
fn small_blocks_are_put_together_up_to_the_stages_maximum() {
    let workers = [worker("a", 1, 1)];
    let mut consumer = infer();
    consumer.group_bytes_max = 25;
    let mut graph = job(vec![scan(1), consumer], &[(0, 1, BLOCK, u64::MAX)]);
    let task = round(&mut graph, &workers)[0].bound.task;
    (0..5).for_each(|seq| seal(&mut graph, task, seq, 10));
    let bindings = round(&mut graph, &workers);
    assert_eq!(bindings.len(), 1);
    assert_eq!(bindings[0].bound.inputs.len(), 2);
}

#[test]
fn where_much_is_waiting_a_task_takes_more_rows_and_leaves_the_others_theirs() {
    let workers = [worker("a", 1, 2)];
    let mut consumer = infer();
    consumer.group_rows_max = 1;
    let mut graph = job(vec![scan(1), consumer], &[(0, 1, BLOCK, u64::MAX)]);
    let task = round(&mut graph, &workers)[0].bound.task;
    (0..40).for_each(|seq| seal(&mut graph, task, seq, 10));
    let blocks = |bindings: &[Binding]| -> Vec<usize> {
        bindings.iter().map(|binding| binding.bound.inputs.len()).collect()
    };
    let bindings = round(&mut graph, &workers);
    assert_eq!(blocks(&bindings), [10, 7], "a quarter of 40, a quarter of 30");
    bindings.iter().for_each(|binding| finish(&mut graph, binding.bound.task, &[]));
    for expected in [[5, 4], [3, 2], [2, 1]] {
        let bindings = round(&mut graph, &workers);
        assert_eq!(blocks(&bindings), expected);
        bindings.iter().for_each(|binding| finish(&mut graph, binding.bound.task, &[]));
    }
}

#[test]
fn jobs_share_by_their_weights() {
    let mut graphs = [job(vec![scan(99)], &[]), job(vec![scan(99)], &[])];
    let mut papers = [PaperBudget::default(), PaperBudget::default()];
    let mut jobs: Vec<_> = graphs
        .iter_mut()
        .zip(&mut papers)
        .zip([("light", 1), ("heavy", 3)])
        .map(|((graph, paper), (id, weight))| Job { id, weight, ..job_of(graph, paper) })
        .collect();
    let bindings = place(&mut jobs, &mut fleet(&[worker("a", 12, 0)]), Millis(0));
    let of = |job| bindings.iter().filter(|binding| binding.job == job).count();
    assert_eq!((of(0), of(1)), (3, 9));
}

/// 10,000 blocks and 1,000 workers: the work of a decision does not grow with their product.
#[test]
fn a_decision_is_cheap_at_scale() {
    const WORKERS: u64 = 1000;
    let names = (0..WORKERS).map(|at| format!("w{at}"));
    let workers: Vec<_> = names.map(|name| worker(&name, 2, 1)).collect();
    let mut consumer = infer();
    consumer.group_bytes_max = 1;
    let mut graph = job(vec![scan(1000), consumer], &[(0, 1, BLOCK, u64::MAX)]);
    let paper = &mut PaperBudget::default();
    let mut fleet = fleet(&workers);
    let mut counted = |graph: &mut JobGraph| {
        let bindings = place(&mut [job_of(graph, &mut *paper)], &mut fleet, Millis(0));
        (bindings, fleet.steps)
    };
    let (producers, steps) = counted(&mut graph);
    assert_eq!(producers.len(), 1000);
    assert!(steps < 20 * WORKERS, "{steps} steps for 1,000 tasks");
    for binding in &producers {
        (0..10).for_each(|seq| seal(&mut graph, binding.bound.task, seq, 10));
    }
    // A thousand at once: each reads what lies on its worker.
    let (consumers, steps) = counted(&mut graph);
    assert_eq!(consumers.len(), 1000);
    assert!(consumers.iter().all(|binding| binding.bound.inputs[0].worker == binding.worker));
    assert!(steps < 20 * WORKERS, "{steps} steps for 1,000 tasks");
    // One at a time, while everything else is busy.
    let mut steps_most = 0;
    for binding in consumers.iter().take(100) {
        finish(&mut graph, binding.bound.task, &[1]);
        let (next, steps) = counted(&mut graph);
        assert_eq!(next.len(), 1);
        steps_most = steps_most.max(steps);
    }
    assert!(steps_most < 100, "{steps_most} steps for one task");
}

/// Of four units that merge two belong together; what they give is read by partition.
fn merged() -> JobGraph {
    let merges = scan(4).with_units_together(2);
    let reduces = StageSpec::new("reduces", Need::cpus(1000), 4);
    let edge = EdgeSpec::new(StageId(0), StageId(1), EdgeKind::Hash).lying_together();
    let spec = JobSpec { stages: vec![merges, reduces], edges: vec![edge], ..JobSpec::default() };
    JobGraph::try_new(spec).unwrap()
}

/// A task ends that has given two partitions.
fn give(graph: &mut JobGraph, task: TaskId, partitions: [u32; 2]) {
    let segment = |(at, partition): (u32, u32)| Segment {
        partition,
        at: 10 * at,
        bytes: 10,
        rows: 1,
        checksum: 1,
    };
    let segments: Vec<_> = (0..).zip(partitions).map(segment).collect();
    let segments = Some(Segments::new(&segments));
    let block = BlockReport { seq: 0, bytes: 20, rows: 2, checksum: 1, run: None, segments };
    graph.apply(Event::TaskFinished { task, blocks: vec![block] }, Millis(0));
}

#[test]
fn what_belongs_together_is_merged_on_one_worker_and_read_there() {
    let workers = [worker("a", 2, 0), worker("b", 2, 0)];
    let mut graph = merged();
    let bindings = round(&mut graph, &workers);
    assert_eq!(told(&bindings), ["0.0 on a", "0.2 on b", "0.1 on a", "0.3 on b"]);
    for binding in bindings {
        // The first two have the last partitions.
        let partitions = if binding.bound.unit.index < 2 { [2, 3] } else { [0, 1] };
        give(&mut graph, binding.bound.task, partitions);
    }
    let bindings = round(&mut graph, &workers);
    assert_eq!(told(&bindings), ["1.2 on a", "1.3 on a", "1.0 on b", "1.1 on b"]);
}

#[test]
fn a_worker_that_is_free_reads_what_lies_elsewhere() {
    let mut graph = merged();
    for binding in round(&mut graph, &[worker("a", 4, 0)]) {
        give(&mut graph, binding.bound.task, [0, 1]);
    }
    let bindings = round(&mut graph, &[worker("b", 4, 0)]);
    assert_eq!(bindings.len(), 4, "{:?}", told(&bindings));
}
