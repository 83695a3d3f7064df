//! Fit, shares, order and budgets; the simulation tries them in all combinations.

use forebay_engine::{ErrorKind, RemoteError};

use super::*;
use crate::graph::{
    BlockReport, EdgeKind, EdgeSpec, Event, Failure, FailureKind, Granularity, JobGraph, JobSpec,
    Millis, StageId, StageSpec, TaskId, WorkerId,
};
use crate::resources::{AcceleratorNeed, Lease, Need, WHOLE};

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
    Job { graph, weight: 1, admission: Admission::Reserve, paper }
}

fn round(graph: &mut JobGraph, workers: &[WorkerState]) -> Vec<Binding> {
    let paper = &mut PaperBudget::default();
    place(&mut [job_of(graph, paper)], workers, Millis(0))
}

/// Unit and worker of each binding.
fn told(bindings: &[Binding]) -> Vec<String> {
    let one = |binding: &Binding| format!("{} on {}", binding.bound.unit, binding.worker);
    bindings.iter().map(one).collect()
}

fn seal(graph: &mut JobGraph, task: TaskId, seq: u32, bytes: u64) {
    let block = BlockReport { seq, bytes, rows: 1, checksum: 1 };
    graph.apply(Event::BlockSealed { task, block }, Millis(0));
}

fn finish(graph: &mut JobGraph, task: TaskId, sizes: &[u64]) {
    let report =
        |(seq, bytes): (u32, &u64)| BlockReport { seq, bytes: *bytes, rows: 1, checksum: 1 };
    let blocks = (0..).zip(sizes).map(report).collect();
    graph.apply(Event::TaskFinished { task, blocks }, Millis(0));
}

#[test]
fn a_need_is_a_fraction_of_one_device_or_whole_devices() {
    for milli in [1, 500, 1000, 3000] {
        assert_eq!(AcceleratorNeed::try_new(milli).unwrap().milli(), milli);
    }
    for milli in [0, 1500] {
        let error = AcceleratorNeed::try_new(milli).unwrap_err().to_string();
        assert!(error.contains(&milli.to_string()), "{error}");
    }
}

#[test]
fn fractions_are_packed_so_that_whole_devices_stay_whole() {
    let mut found = worker("w", 1, 2);
    let half = accelerator(500);
    let mut placed = vec![];
    for need in [&half, &half, &accelerator(400)] {
        let lease = found.fit(need).unwrap();
        found.take(need, &lease);
        placed.extend(lease.devices);
    }
    assert_eq!(placed, [0, 0, 1]);
    assert_eq!(found.fit(&accelerator(1000)), None);
    let lease = Lease { devices: vec![1] };
    found.release(&accelerator(400), &lease);
    assert_eq!(found.fit(&accelerator(1000)), Some(lease));
    assert_eq!(found.fit(&accelerator(2000)), None);
}

#[test]
fn memory_of_devices_and_machines_labels_and_kinds_count() {
    let mut found = worker("w", 2, 1);
    found.labels.insert("ssd".to_owned());
    let with = |milli, mib| {
        let need = AcceleratorNeed::try_new(milli).unwrap().with_memory_bytes(mib * MIB);
        Need::cpus(0).with_accelerator(need)
    };
    found.take(&with(100, 10), &Lease { devices: vec![0] });
    assert!(found.fit(&with(100, 6)).is_some());
    assert!(found.fit(&with(100, 7)).is_none());
    let kind = AcceleratorNeed::try_new(100).unwrap().with_kind("rocm");
    assert!(found.fit(&Need::cpus(0).with_accelerator(kind)).is_none());
    let labels = |name: &str| Need { labels: [name.to_owned()].into(), ..Need::default() };
    assert!(found.fit(&labels("ssd")).is_some() && found.fit(&labels("hdd")).is_none());
    assert!(found.fit(&Need { memory_bytes: 65 * MIB, ..Need::default() }).is_none());
    found.used_cpus_milli = 2000;
    assert!(found.fit(&Need::cpus(0)).is_some(), "a need of no cores takes none");
    assert!(found.fit(&Need::cpus(1)).is_none());
}

#[test]
fn what_is_missing_is_named_and_what_there_is() {
    let workers = [worker("small", 1, 0), worker("large", 8, 1)];
    let kind = AcceleratorNeed::try_new(2000).unwrap().with_kind("cuda");
    let need = Need::cpus(500).with_accelerator(kind);
    let error = could_ever_fit(&workers, &need).unwrap_err().to_string();
    let parts = [
        "needs 0.5 cores, 2 accelerators (kind: cuda)",
        "the best of 2 workers is large with 8 cores",
        "accelerators [cuda 16 MiB]",
    ];
    for part in parts {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let error = could_ever_fit(&[], &need).unwrap_err().to_string();
    assert!(error.contains("no worker is there"), "{error}");
    let mut busy = worker("busy", 1, 1);
    busy.used_cpus_milli = 1000;
    assert_eq!(could_ever_fit(std::slice::from_ref(&busy), &Need::cpus(1000)), Ok(()));
    let text = waiting_for(&[busy], &Need::cpus(1000));
    assert!(text.contains("1 could run it and are busy"), "{text}");
}

#[test]
fn slots_are_what_fits_at_once() {
    let found = worker("w", 4, 2);
    let cases = [
        (Need::cpus(1500), 2),
        (accelerator(400), 4),
        (accelerator(2000), 1),
        (accelerator(3000), 0),
    ];
    for (need, slots) in cases {
        assert_eq!(found.slots(&need), slots, "{need}");
    }
}

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
fn producers_are_admitted_while_their_output_fits() {
    let workers = [worker("a", 8, 0), worker("g", 0, 1)];
    let mut graph = job(vec![scan(8), infer()], &[(0, 1, BLOCK, 250)]);
    let bindings = round(&mut graph, &workers);
    assert_eq!(bindings.len(), 2, "each is expected to give 100 bytes of 250");
    finish(&mut graph, bindings[0].bound.task, &[40]);
    // 40 sealed, 100 expected of the one that runs, and 40 of each new one.
    let bindings = round(&mut graph, &workers);
    assert_eq!(told(&bindings), ["1.0 on g", "0.2 on a", "0.3 on a"]);
}

#[test]
fn one_producer_is_admitted_however_large_its_output() {
    let workers = [worker("a", 8, 1)];
    let mut graph = job(vec![scan(8), infer()], &[(0, 1, BLOCK, 1)]);
    assert_eq!(round(&mut graph, &workers).len(), 1);
    assert_eq!(round(&mut graph, &workers).len(), 0);
}

#[test]
fn bytes_never_exceed_the_budget_while_a_slow_consumer_drains_them() {
    let workers = [worker("a", 8, 0), worker("g", 0, 1)];
    let mut consumer = infer();
    consumer.group_bytes_max = 1;
    for (budget, most) in [(250, 250), (1, 100), (u64::MAX, 5000)] {
        let mut graph = job(vec![scan(50), consumer.clone()], &[(0, 1, BLOCK, budget)]);
        let mut seen_most = 0;
        let mut consuming = None;
        for _ in 0..200 {
            for binding in round(&mut graph, &workers) {
                match binding.bound.unit.stage {
                    StageId(0) => finish(&mut graph, binding.bound.task, &[50, 50]),
                    _ => consuming = Some(binding.bound.task),
                }
            }
            let fill = graph.budgeted_outputs(StageId(0)).next().unwrap();
            seen_most = seen_most.max(fill.unconsumed_bytes + fill.expected_bytes);
            consuming.take().iter().for_each(|task| finish(&mut graph, *task, &[]));
        }
        assert!(!graph.is_running_job(), "budget {budget}");
        assert!(seen_most <= most && seen_most >= most.min(250), "{seen_most} of {budget}");
    }
}

#[test]
fn without_admission_everything_runs_that_fits() {
    let workers = [worker("a", 8, 1)];
    let mut graph = job(vec![scan(9), infer()], &[(0, 1, BLOCK, 1)]);
    let paper = &mut PaperBudget::default();
    let jobs = &mut [Job { admission: Admission::Off, ..job_of(&mut graph, paper) }];
    assert_eq!(place(jobs, &workers, Millis(0)).len(), 8);
}

#[test]
fn half_of_the_jobs_budget_is_kept_for_what_runs_behind_the_sources() {
    let workers = [worker("a", 8, 1)];
    let stages = || vec![scan(8), infer(), infer()];
    let mut graph = job(stages(), &[(0, 1, BLOCK, u64::MAX), (1, 2, BLOCK, u64::MAX)]);
    graph.set_buffered_bytes_max(800);
    assert_eq!(round(&mut graph, &workers).len(), 4);
    let mut graph = job(vec![scan(8), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    graph.set_buffered_bytes_max(800);
    assert_eq!(round(&mut graph, &workers).len(), 8, "nothing runs behind that has a budget");
}

#[test]
fn budgets_that_hold_each_other_back_do_not_stop_a_job() {
    // Two scans stream to two joins; each join also waits for an aggregate of the other's scan.
    let edges = [
        (0, 2, BLOCK, 1),
        (1, 3, BLOCK, 1),
        (1, 4, EdgeKind::Blocking, 0),
        (0, 5, EdgeKind::Blocking, 0),
        (4, 2, EdgeKind::Broadcast, 0),
        (5, 3, EdgeKind::Broadcast, 0),
    ];
    let join = || StageSpec::new("join", Need::cpus(1000), 0);
    let total = || StageSpec::new("total", Need::cpus(1000), 1);
    let stages = vec![scan(3), scan(3), join(), join(), total(), total()];
    let mut graph = job(stages, &edges);
    let workers = [worker("a", 1, 0)];
    for _ in 0..100 {
        for binding in round(&mut graph, &workers) {
            finish(&mut graph, binding.bound.task, &[10]);
        }
    }
    assert!(!graph.is_running_job(), "{:?}", graph.units().collect::<Vec<_>>());
}

#[test]
fn a_unit_that_failed_goes_to_another_worker_if_there_is_one() {
    let mut graph = job(vec![scan(1)], &[]);
    let workers = [worker("a", 1, 0), worker("b", 1, 0)];
    let fail = |graph: &mut JobGraph, task| {
        let failure = Failure::new(FailureKind::Passing, "no");
        graph.apply(Event::TaskFailed { task, failure }, Millis(0));
        graph.advance(Millis(1_000_000));
    };
    let first = round(&mut graph, &workers);
    assert_eq!(told(&first), ["0.0 on a"]);
    fail(&mut graph, first[0].bound.task);
    let second = round(&mut graph, &workers);
    assert_eq!(told(&second), ["0.0 on b"]);
    fail(&mut graph, second[0].bound.task);
    assert_eq!(told(&round(&mut graph, &workers[..1])), ["0.0 on a"], "there is no other");
}

#[test]
fn a_worker_that_stops_gets_nothing_and_a_canceled_task_still_counts() {
    let mut graph = job(vec![scan(2)], &[]);
    let mut workers = [worker("a", 1, 0)];
    workers[0].is_draining = true;
    assert!(round(&mut graph, &workers).is_empty());
    workers[0].is_draining = false;
    let task = round(&mut graph, &workers)[0].bound.task;
    graph.apply(Event::Canceled(RemoteError::new(ErrorKind::Canceled, "")), Millis(0));
    let mut other = job(vec![scan(1)], &[]);
    let mut papers = [PaperBudget::default(), PaperBudget::default()];
    let mut together = |graph: &mut JobGraph, other: &mut JobGraph| {
        let [first, second] = &mut papers;
        let mut jobs = [job_of(graph, first), job_of(other, second)];
        place(&mut jobs, &workers, Millis(0)).len()
    };
    assert_eq!(together(&mut graph, &mut other), 0);
    graph.apply(Event::TaskEnded { task }, Millis(0));
    assert_eq!(together(&mut graph, &mut other), 1);
}

#[test]
fn jobs_share_by_their_weights() {
    let mut graphs = [job(vec![scan(99)], &[]), job(vec![scan(99)], &[])];
    let mut papers = [PaperBudget::default(), PaperBudget::default()];
    let mut jobs: Vec<_> = graphs
        .iter_mut()
        .zip(&mut papers)
        .zip([1, 3])
        .map(|((graph, paper), weight)| Job { weight, ..job_of(graph, paper) })
        .collect();
    let bindings = place(&mut jobs, &[worker("a", 12, 0)], Millis(0));
    let of = |job| bindings.iter().filter(|binding| binding.job == job).count();
    assert_eq!((of(0), of(1)), (3, 9));
}

#[test]
fn the_papers_policy_starts_sources_at_the_rate_of_the_pipeline() {
    let workers = [worker("a", 2, 0), worker("g", 0, 1)];
    let mut graph = job(vec![scan(9), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    graph.set_buffered_bytes_max(250);
    let mut paper = PaperBudget::default();
    let mut at = |graph: &mut JobGraph, now| {
        let paper = &mut paper;
        let job = Job { admission: Admission::Paper, ..job_of(graph, paper) };
        place(&mut [job], &workers, Millis(now))
    };
    // All of the memory at first: two of 100 bytes, though more would fit the cores later.
    let bindings = at(&mut graph, 0);
    assert_eq!(bindings.len(), 2);
    for binding in bindings {
        let report = BlockReport { seq: 0, bytes: 100, rows: 1, checksum: 1 };
        let event = Event::TaskFinished { task: binding.bound.task, blocks: vec![report] };
        graph.apply(event, Millis(4000));
    }
    // T = 4 s on E = 2 slots: P = 2 s, so that a second earns half a partition; one is left from
    // before, and four seconds have passed.
    let bindings = at(&mut graph, 4000);
    let sources = bindings.iter().filter(|binding| binding.bound.unit.stage == StageId(0));
    assert_eq!(sources.count(), 2);
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
    let mut counted = |graph: &mut JobGraph| {
        let jobs = &mut [job_of(graph, &mut *paper)];
        super::policy::place_counted(jobs, &workers, Millis(0))
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
    assert!(steps_most < 10 * WORKERS, "{steps_most} steps for one task");
}

/// A scan's output, written on a worker, that a reader on another one could not have.
fn unreadable(on: &WorkerState, reader: &WorkerState) -> JobGraph {
    let mut graph = job(vec![scan(1), infer()], &[(0, 1, BLOCK, u64::MAX)]);
    let scan = round(&mut graph, std::slice::from_ref(on)).remove(0).bound;
    finish(&mut graph, scan.task, &[1]);
    let read = round(&mut graph, std::slice::from_ref(reader)).remove(0).bound;
    let failure = Failure::new(FailureKind::BlockLost(scan.unit.block(0)), "silent");
    graph.apply(Event::TaskFailed { task: read.task, failure }, Millis(0));
    graph
}

#[test]
fn what_could_not_be_read_from_a_worker_waits_for_another_one() {
    let (a, b, reader) = (worker("a", 1, 0), worker("b", 1, 0), worker("g", 0, 1));
    let mut busy = b.clone();
    busy.used_cpus_milli = 1000;
    let mut graph = unreadable(&a, &reader);
    assert_eq!(told(&round(&mut graph, &[a.clone(), busy, reader.clone()])), [""; 0]);
    assert_eq!(told(&round(&mut graph, &[a.clone(), b, reader.clone()])), ["0.0 on b"]);
    let alone = round(&mut unreadable(&a, &reader), &[a, reader]);
    assert_eq!(told(&alone), ["0.0 on a"]);
}

/// Its disk fails each task at once, so that it would always be the one that is free.
#[test]
fn a_worker_whose_disk_fails_gets_nothing_as_long_as_there_are_others() {
    let mut graph = job(vec![scan(9)], &[]);
    let workers = [worker("bad", 4, 0), worker("good", 1, 0)];
    let bad = WorkerId::new("bad");
    let bound = round(&mut graph, &workers);
    for binding in &bound {
        let task = binding.bound.task;
        let failure = Failure::new(FailureKind::DiskBroken, "input/output error");
        if binding.worker == bad {
            graph.apply(Event::TaskFailed { task, failure }, Millis(0));
        }
    }
    assert!(bound.iter().any(|binding| binding.worker == bad));
    let busy = round(&mut graph, &workers);
    assert_eq!(told(&busy), [""; 0], "it waits for the good one");
    let alone = round(&mut graph, &workers[..1]);
    assert!(!alone.is_empty(), "better than to wait for ever");
}
