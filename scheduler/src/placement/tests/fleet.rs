//! What is remembered from one round to the next is what a count from nothing finds.

use forebay_engine::{ErrorKind, RemoteError};
use forebay_testkit::random::Random;

use super::*;

const JOBS: usize = 4;
const NAMES: [&str; JOBS] = ["a", "b", "c", "d"];

/// Jobs that come, go, end and are there again, on workers that come, go and change.
#[test]
fn what_is_taken_of_workers_is_exact_whatever_comes_and_goes() {
    let mut placed = 0;
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let mut fleet = Fleet::default();
        let mut graphs: [JobGraph; JOBS] = std::array::from_fn(|_| some_job(&mut random));
        let mut papers: [PaperBudget; JOBS] = std::array::from_fn(|_| PaperBudget::default());
        let mut running = vec![];
        fleet.attend(some_workers(&mut random));
        for _ in 0..40 {
            if random.chance(20) {
                fleet.attend(some_workers(&mut random));
            }
            for _ in 0..random.below(6) {
                something_happens(&mut random, &mut graphs, &mut running);
            }
            let jobs = graphs.iter_mut().zip(&mut papers).zip(NAMES);
            let mut jobs: Vec<_> = jobs
                .map(|((graph, paper), id)| Job { id, ..job_of(graph, paper) })
                .filter(|_| random.chance(90))
                .collect();
            let bindings = place(&mut jobs, &mut fleet, Millis(0));
            assert!(fleet.is_exact(&jobs), "seed {seed}: {fleet:?}");
            for binding in bindings {
                let job = NAMES.iter().position(|name| *name == jobs[binding.job].id).unwrap();
                running.push((job, binding.bound.task, binding.worker));
                placed += 1;
            }
        }
    }
    assert!(placed > 10_000, "{placed} tasks");
}

fn some_job(random: &mut Random) -> JobGraph {
    let mut graph = job(vec![scan(20), infer()], &[(0, 1, BLOCK, random.between(100, 1000))]);
    graph.apply(Event::Started, Millis(0));
    graph
}

fn some_workers(random: &mut Random) -> Vec<WorkerState> {
    let names = ["x", "y", "z"].into_iter().filter(|_| random.chance(80)).collect::<Vec<_>>();
    let one = |name| {
        let mut worker = worker(name, random.between(0, 4) as u32, random.index(3));
        worker.is_draining = random.chance(10);
        let work_bytes = if random.chance(50) { random.between(50, 1000) } else { u64::MAX };
        worker.with_work_bytes(work_bytes)
    };
    names.into_iter().map(one).collect()
}

fn something_happens(
    random: &mut Random,
    graphs: &mut [JobGraph; JOBS],
    running: &mut Vec<(usize, TaskId, WorkerId)>,
) {
    if random.chance(3) {
        let job = random.index(JOBS);
        let why = RemoteError::new(ErrorKind::Canceled, "nobody wants it");
        graphs[job].apply(Event::Canceled(why), Millis(0));
    }
    if running.is_empty() {
        return;
    }
    let (job, task, worker) = running.swap_remove(random.index(running.len()));
    match random.below(10) {
        0 => {
            graphs[job].apply(Event::WorkerLost { worker }, Millis(0));
        }
        1 => {
            graphs[job].apply(Event::TaskEnded { task }, Millis(0));
        }
        _ => finish(&mut graphs[job], task, &[50]),
    }
}
