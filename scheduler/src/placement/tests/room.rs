//! Budgets where the bytes lie: workers that may keep so much, and no more.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::graph::Action;

/// What a worker was asked to hold at the most, with what was expected of tasks.
type Peaks = BTreeMap<String, u64>;

/// Runs a job to its end. `output` says what a unit gives on a worker; of the readers one at a time ends, and gives
/// nothing.
fn peaks(
    graph: &mut JobGraph,
    workers: &[WorkerState],
    output: impl Fn(u32, &str) -> u64,
) -> Peaks {
    let mut peaks = Peaks::new();
    let note = |graph: &JobGraph, peaks: &mut Peaks| {
        for worker in workers {
            let peak = peaks.entry(worker.id.to_string()).or_default();
            *peak = graph.bytes_on(&worker.id).max(*peak);
        }
    };
    let mut readers = VecDeque::new();
    for _ in 0..1000 {
        let bindings = round(graph, workers);
        note(graph, &mut peaks);
        for Binding { bound, worker, .. } in bindings {
            if bound.unit.stage == StageId(0) {
                finish(graph, bound.task, &[output(bound.unit.index, worker.as_str())]);
            } else {
                readers.push_back(bound.task);
            }
        }
        note(graph, &mut peaks);
        readers.pop_front().iter().for_each(|task| finish(graph, *task, &[]));
        if !graph.is_running_job() {
            return peaks;
        }
    }
    panic!("the job stands still: {:?}", graph.units().collect::<Vec<_>>());
}

/// Scans whose blocks are read one at a time, within no other budget than that of workers.
fn scans(count: u32) -> JobGraph {
    let mut reader = infer();
    reader.group_bytes_max = 1;
    job(vec![scan(count), reader], &[(0, 1, BLOCK, u64::MAX)])
}

fn count_on(bindings: &[Binding], worker: &str) -> usize {
    bindings.iter().filter(|binding| binding.worker.as_str() == worker).count()
}

#[test]
fn a_small_worker_is_given_what_it_has_room_for_and_a_large_one_more() {
    let small = worker("small", 8, 0).with_work_bytes(250);
    let large = worker("large", 8, 0).with_work_bytes(1000);
    let workers = [small, large, worker("gpu", 0, 1)];
    // A task of 100 bytes is left room for, which reads what there is.
    let bindings = round(&mut scans(50), &workers);
    assert_eq!((count_on(&bindings, "small"), count_on(&bindings, "large")), (1, 8));
    // In the end both are full: the readers give nothing, and need no room.
    let peaks = peaks(&mut scans(50), &workers, |_, _| 100);
    assert_eq!((peaks["small"], peaks["large"]), (200, 1000));
}

#[test]
fn a_worker_that_does_not_say_what_it_may_keep_is_given_what_its_cores_take() {
    let small = worker("small", 8, 0).with_work_bytes(250);
    let workers = [small, worker("any", 8, 0), worker("gpu", 0, 1)];
    let peaks = peaks(&mut scans(50), &workers, |_, _| 100);
    assert!(peaks["small"] <= 250 && peaks["any"] > 1000, "{peaks:?}");
}

#[test]
fn outputs_that_differ_by_ten_exceed_what_a_worker_may_keep_by_one_of_them_at_most() {
    let workers = [worker("a", 8, 0).with_work_bytes(3000), worker("gpu", 0, 1)];
    let skewed = |unit: u32, _: &str| if unit % 10 == 9 { 1000 } else { 100 };
    let peaks = peaks(&mut scans(200), &workers, skewed);
    assert!((2000..=4000).contains(&peaks["a"]), "{peaks:?}");
}

#[test]
fn what_tasks_give_is_learned_for_each_worker() {
    let [heavy, light] = ["heavy", "light"].map(|name| worker(name, 4, 0).with_work_bytes(6000));
    let workers = [heavy, light, worker("gpu", 0, 1)];
    let mut graph = scans(100);
    let bindings = round(&mut graph, &workers);
    let output = |worker: &WorkerId| if worker.as_str() == "heavy" { 1000 } else { 100 };
    for Binding { bound, worker, .. } in bindings {
        finish(&mut graph, bound.task, &[output(&worker)]);
    }
    let scans: Vec<_> = round(&mut graph, &workers)
        .into_iter()
        .filter(|binding| binding.bound.unit.stage == StageId(0))
        .collect();
    // Four times 1,000 bytes lie on one of them, and 100 are left for a reader.
    assert_eq!((count_on(&scans, "heavy"), count_on(&scans, "light")), (1, 4));
    let expected = |worker: &WorkerState| graph.bytes_on(&worker.id);
    assert_eq!((expected(&workers[0]), expected(&workers[1])), (5000, 800));
}

#[test]
fn what_a_lost_worker_held_and_gave_is_forgotten() {
    let bounded = |name: &str| worker(name, 2, 0).with_work_bytes(300);
    let workers = [bounded("a"), worker("gpu", 0, 1)];
    let mut graph = scans(9);
    let paper = &mut PaperBudget::default();
    let mut fleet = fleet(&workers);
    let mut placed = |graph: &mut JobGraph, fleet: &mut Fleet| {
        let bindings = place(&mut [job_of(graph, &mut *paper)], fleet, Millis(0));
        assert!(fleet.is_exact(&[job_of(graph, &mut *paper)]));
        bindings
    };
    for binding in placed(&mut graph, &mut fleet) {
        finish(&mut graph, binding.bound.task, &[150]);
    }
    let bindings = placed(&mut graph, &mut fleet);
    assert_eq!(count_on(&bindings, "a"), 0, "{bindings:?}");
    let a = WorkerId::new("a");
    assert_eq!(fleet.worker(&a).unwrap().used_work_bytes, 300);
    graph.apply(Event::WorkerLost { worker: a.clone() }, Millis(0));
    assert_eq!(graph.bytes_on(&a), 0);
    fleet.attend(vec![bounded("b"), worker("gpu", 0, 1)]);
    let bindings = placed(&mut graph, &mut fleet);
    assert_eq!(count_on(&bindings, "b"), 1, "{bindings:?}");
}

#[test]
fn where_no_worker_may_keep_what_a_task_gives_one_at_a_time_runs_on_the_largest() {
    let workers = [
        worker("less", 8, 0).with_work_bytes(4),
        worker("more", 8, 0).with_work_bytes(10),
        worker("gpu", 0, 1),
    ];
    let bindings = round(&mut scans(8), &workers);
    assert_eq!(told(&bindings), ["0.0 on more"]);
    let peaks = peaks(&mut scans(8), &workers, |_, _| 100);
    assert_eq!((peaks["less"], peaks["more"]), (0, 100));
}

#[test]
fn a_job_of_which_nothing_runs_has_one_task_however_full_workers_are() {
    let workers = [worker("small", 8, 0).with_work_bytes(100), worker("gpu", 0, 1)];
    let (mut first, mut second) = (scans(8), scans(8));
    let (papers, mut fleet) =
        (&mut [PaperBudget::default(), PaperBudget::default()], fleet(&workers));
    let mut placed = |first: &mut JobGraph, second: &mut JobGraph| {
        let [one, other] = &mut *papers;
        let mut jobs = [job_of(first, one), Job { id: "other", ..job_of(second, other) }];
        let bindings = place(&mut jobs, &mut fleet, Millis(0));
        [0, 1].map(|job| bindings.iter().filter(|binding| binding.job == job).count())
    };
    assert_eq!(placed(&mut first, &mut second), [1, 1]);
    assert_eq!(placed(&mut first, &mut second), [0, 0]);
}

/// What waits for the whole of a stage makes no room before: its producers go where there is some, and everywhere
/// when there is none.
#[test]
fn the_output_of_a_shuffle_goes_where_there_is_room_and_does_not_wait_for_it() {
    let small = worker("small", 4, 0).with_work_bytes(250);
    let large = worker("large", 4, 0).with_work_bytes(1000);
    let workers = [small, large];
    let total = StageSpec::new("total", Need::cpus(1000), 1);
    let mut graph = job(vec![scan(30), total], &[(0, 1, EdgeKind::Blocking, 0)]);
    let counts = [(); 4].map(|()| {
        let bindings = round(&mut graph, &workers);
        bindings.iter().for_each(|binding| finish(&mut graph, binding.bound.task, &[100]));
        (count_on(&bindings, "small"), count_on(&bindings, "large"))
    });
    // In the third round there is room for two more when it begins.
    assert_eq!(counts, [(2, 4), (0, 4), (0, 4), (4, 4)]);
}

#[test]
fn what_reads_more_than_it_writes_runs_on_a_full_worker_and_what_writes_more_one_at_a_time() {
    for (output, readers) in [(10, 2), (300, 1)] {
        let workers = [worker("a", 4, 3).with_work_bytes(400)];
        let mut reader = infer();
        reader.group_bytes_max = 1;
        let edges = [(0, 1, BLOCK, u64::MAX), (1, 2, BLOCK, u64::MAX)];
        let mut graph = job(vec![scan(9), reader, infer()], &edges);
        let first = round(&mut graph, &workers);
        first.iter().for_each(|binding| finish(&mut graph, binding.bound.task, &[200, 200, 200]));
        // It is fuller than it may be, and what a reader gives is not known yet.
        let first = round(&mut graph, &workers);
        assert_eq!(told(&first), ["1.0 on a"]);
        first.iter().for_each(|binding| finish(&mut graph, binding.bound.task, &[output]));
        let next = round(&mut graph, &workers);
        let next = told(&next).iter().filter(|unit| unit.starts_with("1.")).count();
        assert_eq!(next, readers, "each gives {output} bytes");
    }
}

#[test]
fn what_was_read_and_is_kept_takes_no_room() {
    let workers = [worker("a", 8, 0).with_work_bytes(200), worker("gpu", 0, 1)];
    let mut graph = scans(3);
    let first = round(&mut graph, &workers);
    first.iter().for_each(|binding| finish(&mut graph, binding.bound.task, &[100]));
    let a = WorkerId::new("a");
    assert_eq!(graph.bytes_on(&a), 100);
    let reader = round(&mut graph, &workers);
    let reader = reader.iter().find(|binding| binding.bound.unit.stage == StageId(1)).unwrap();
    let actions =
        graph.apply(Event::TaskFinished { task: reader.bound.task, blocks: vec![] }, Millis(0));
    assert!(!actions.iter().any(|action| matches!(action, Action::FreeBlock { .. })));
    let held: u64 = graph.held_bytes().filter(|(worker, _)| **worker == a).map(|(_, b)| b).sum();
    assert_eq!((held, graph.bytes_on(&a)), (100, 0));
    assert_eq!(count_on(&round(&mut graph, &workers), "a"), 2);
}
