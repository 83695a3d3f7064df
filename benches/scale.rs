//! What one decision of the scheduler costs when the cluster is large: 1,000 workers of 8 slots, 100 jobs, and up
//! to a million tasks, in virtual time. Each task's end is told by itself, and followed by a round of placement,
//! as it is when a thousand workers report one by one. Only what the scheduler does is timed.
//!
//! `cargo bench --bench scale`; with `-- 10000` that many tasks alone.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its results, and one that cannot run should say why at once"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use forebay_scheduler::graph::{
    BlockReport, EdgeKind, EdgeSpec, Event, Granularity, JobGraph, JobSpec, JobStatus, Millis,
    StageId, StageSpec, WorkerId,
};
use forebay_scheduler::placement::{Admission, Fleet, Job, PaperBudget, WorkerState, place};
use forebay_scheduler::resources::Need;
use forebay_testkit::random::Random;

const WORKERS: usize = 1000;
const SLOTS: u32 = 8;
const JOBS: u64 = 100;
const TASKS: [u64; 3] = [10_000, 100_000, 1_000_000];
/// A task that reads has the blocks of so many that scan.
const SCANS_PER_READ: u64 = 4;
const BLOCK_BYTES: u64 = 32 << 20;
/// One in so many workers is lost at once.
const LOST: usize = 10;

fn main() {
    let given: Option<u64> = std::env::args().skip(1).find_map(|word| word.parse().ok());
    for tasks in given.map_or(TASKS.to_vec(), |tasks| vec![tasks]) {
        measure(tasks);
    }
}

fn measure(tasks: u64) {
    let before = resident_bytes();
    let mut cluster = Cluster::new(tasks);
    let made = resident_bytes();
    while cluster.ended < tasks / 2 {
        cluster.go_on();
    }
    let (first, ended) = (cluster.busy, cluster.ended);
    let lost = cluster.lose_workers();
    while !cluster.coming.is_empty() {
        cluster.go_on();
    }
    for (graph, _) in &cluster.jobs {
        assert_eq!(*graph.status(), JobStatus::Finished);
    }
    let units = (JOBS * (cluster.scans + cluster.scans.div_ceil(SCANS_PER_READ))) as f64;
    println!(
        "{{\"name\": \"scheduler, {WORKERS} workers, {} slots, {JOBS} jobs\", \"tasks\": {}, \
         \"ms_per_task\": {:.4}, \"ms_per_task_after_the_loss\": {:.4}, \"workers_lost\": {}, \
         \"seconds_of_their_loss\": {:.3}, \"bytes_per_unit\": {:.0}, \"bytes_per_unit_at_the_end\": {:.0}}}",
        WORKERS * SLOTS as usize,
        cluster.ended,
        1e3 * first.as_secs_f64() / ended as f64,
        1e3 * (cluster.busy - first - lost).as_secs_f64() / (cluster.ended - ended) as f64,
        WORKERS / LOST,
        lost.as_secs_f64(),
        (made.saturating_sub(before)) as f64 / units,
        (resident_bytes().saturating_sub(before)) as f64 / units,
    );
}

/// Jobs and workers, and what happens next, in virtual time.
struct Cluster {
    jobs: Vec<(JobGraph, PaperBudget)>,
    names: Vec<String>,
    workers: Vec<WorkerState>,
    fleet: Fleet,
    /// Ends of tasks: when, which, of which job, and what they report.
    coming: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<(WorkerId, Event)>>,
    now: Millis,
    random: Random,
    scans: u64,
    ended: u64,
    /// What the scheduler has taken for all of it.
    busy: Duration,
}

impl Cluster {
    fn new(tasks: u64) -> Self {
        let scans = tasks * SCANS_PER_READ / (SCANS_PER_READ + 1) / JOBS;
        let graph = || JobGraph::try_new(job(scans as u32)).unwrap();
        let worker =
            |at| WorkerState::new(WorkerId::new(format!("worker-{at:04}")), SLOTS * 1000, 64 << 30);
        let mut cluster = Self {
            jobs: (0..JOBS).map(|_| (graph(), PaperBudget::default())).collect(),
            names: (0..JOBS).map(|at| format!("job-{at}")).collect(),
            workers: (0..WORKERS).map(worker).collect(),
            fleet: Fleet::default(),
            coming: BinaryHeap::new(),
            events: vec![],
            now: Millis::default(),
            random: Random::new(7),
            scans,
            ended: 0,
            busy: Duration::ZERO,
        };
        let now = cluster.now;
        for (graph, _) in &mut cluster.jobs {
            graph.apply(Event::Started, now);
        }
        cluster.fleet.attend(cluster.workers.clone());
        cluster.place();
        cluster
    }

    /// The next task ends, and what is free is given away.
    fn go_on(&mut self) {
        let Reverse((at, number, job)) = self.coming.pop().unwrap();
        self.now = Millis(at);
        // Nothing, if its worker was lost.
        let Some((_, event)) = self.events[number as usize].take() else { return };
        self.ended += 1;
        let start = Instant::now();
        self.jobs[job].0.apply(event, self.now);
        self.busy += start.elapsed();
        self.place();
    }

    fn place(&mut self) {
        let start = Instant::now();
        let jobs = self.jobs.iter_mut().zip(&self.names);
        let mut views: Vec<_> = jobs
            .map(|((graph, paper), id)| Job {
                id,
                graph,
                weight: 1,
                admission: Admission::Reserve,
                paper,
            })
            .collect();
        let bindings = place(&mut views, &mut self.fleet, self.now);
        self.busy += start.elapsed();
        for binding in bindings {
            let task = binding.bound.task;
            let block = BlockReport {
                seq: 0,
                bytes: BLOCK_BYTES,
                rows: 1000,
                checksum: 1,
                run: None,
                segments: None,
            };
            let ends = self.now.after(self.random.between(5_000, 15_000)).0;
            let number = self.events.len() as u64;
            let event = Event::TaskFinished { task, blocks: vec![block] };
            self.events.push(Some((binding.worker, event)));
            self.coming.push(Reverse((ends, number, binding.job)));
        }
    }

    /// Workers are lost at once: what it takes until all that they did runs elsewhere, or waits for room.
    fn lose_workers(&mut self) -> Duration {
        let kept = self.workers.split_off(WORKERS / LOST);
        let lost = std::mem::replace(&mut self.workers, kept);
        let lost: Vec<_> = lost.into_iter().map(|worker| worker.id).collect();
        for event in &mut self.events {
            event.take_if(|(worker, _)| lost.contains(worker));
        }
        let before = self.busy;
        for worker in lost {
            let start = Instant::now();
            for (graph, _) in &mut self.jobs {
                graph.apply(Event::WorkerLost { worker: worker.clone() }, self.now);
            }
            self.busy += start.elapsed();
        }
        let start = Instant::now();
        self.fleet.attend(self.workers.clone());
        self.busy += start.elapsed();
        self.place();
        self.busy - before
    }
}

/// Scans whose blocks are read while others run.
fn job(scans: u32) -> JobSpec {
    let scan = StageSpec::new("scan", Need::cpus(1000), scans).with_replayable();
    let read = StageSpec::new("read", Need::cpus(1000), 0)
        .with_group_bytes_max(SCANS_PER_READ * BLOCK_BYTES)
        .with_group_bytes_min(SCANS_PER_READ * BLOCK_BYTES);
    let edge = EdgeSpec::new(StageId(0), StageId(1), EdgeKind::Streaming(Granularity::Block));
    let edges = vec![edge.with_budget_bytes(1 << 40)];
    JobSpec {
        stages: vec![scan.with_output_bytes_guess(BLOCK_BYTES), read],
        edges,
        limits: forebay_scheduler::graph::Limits {
            buffered_bytes_max: 1 << 44,
            ..Default::default()
        },
    }
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
