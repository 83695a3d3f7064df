//! What it costs that a scheduler writes its jobs down, and how soon another one goes on with them.

use std::path::Path;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SendableRecordBatchStream;
use forebay::Catalog;
use forebay::prelude::*;
use forebay_scheduler::graph::{
    BlockReport, Event, JobGraph, JobSpec, Millis, Snapshot, StageId, StageSpec, Step, Work,
    WorkerId,
};
use forebay_scheduler::journal::{Fold, State};
use forebay_scheduler::resources::{Lease, Need};
use forebay_testkit::cluster::Cluster as Processes;
use futures::{StreamExt, TryStreamExt};
use tempfile::TempDir;

use super::{Cluster, Has, add_table, folder, median, timed};

const TASKS: i64 = 2000;
const ROUNDS: usize = 5;
const EMPTY: &str = "SELECT count(*) FROM t WHERE id >= 0";
/// 20 ms in each task.
const WITH_WORK: &str = "SELECT count(pause(id, 20000)) FROM t";

/// Jobs that run when their scheduler is killed, and tasks of each of them.
const JOBS: usize = 100;
const TASKS_OF_JOB: i64 = 200;
/// Batches of each that its client has read by then: half of what there is.
const READ: usize = 100;
/// For how long a task of the successor is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job whose tasks all have ended, and workers that ran them.
const LONG_TASKS: u32 = 200_000;
const LONG_WORKERS: u32 = 64;

pub(super) async fn journal() {
    costs().await;
    restart().await;
}

pub(super) async fn long_job() {
    long("with snapshots", fold).await;
    long("without snapshots", |_, _, _| None).await;
}

/// Jobs of 2,000 tasks on two schedulers in turn, of which one writes to this machine's disk.
async fn costs() {
    let state = TempDir::new().unwrap();
    let has = || Has { cpus: 8, accelerators: 0, work_limit: None };
    let without = Cluster::start(&[has()]).await;
    let with = Cluster::start_with(folder(), Some(state.path().to_owned()), &[has()]).await;
    for (name, query) in [("empty", EMPTY), ("20 ms each", WITH_WORK)] {
        let mut seconds = [vec![], vec![]];
        for round in 0..=ROUNDS {
            for (cluster, seconds) in [&without, &with].into_iter().zip(&mut seconds) {
                let session = cluster.session(TASKS as usize).await;
                add_table(&session, TASKS, 1);
                let took = timed(&session, query, TASKS).await.unwrap();
                // The first round finds nothing ready.
                seconds.extend((round > 0).then_some(took));
            }
        }
        let [without, with] = [median(&seconds[0]), median(&seconds[1])];
        let ratios: Vec<f64> =
            seconds[1].iter().zip(&seconds[0]).map(|(with, without)| with / without).collect();
        println!(
            "{{\"name\": \"cluster, journal of a job of {TASKS} tasks, {name}\", \"rounds\": {ROUNDS}, \
             \"seconds_without\": {without:.3}, \"seconds\": {with:.3}, \"ratio\": {:.3}, \
             \"ms_per_task\": {:.4}}}",
            median(&ratios),
            1000.0 * (with - without) / TASKS as f64,
        );
    }
}

/// The scheduler's process is killed with jobs half read; from the start of the next one to its first task.
async fn restart() {
    let state = TempDir::new().unwrap();
    let arguments = ["--state", state.path().to_str().unwrap()];
    let mut cluster = Processes::start(env!("CARGO_BIN_EXE_forebay"), &arguments);
    cluster.add_worker(&["--cpus", "4", "--gpus", "none"]);
    let mut running = vec![];
    for _ in 0..JOBS {
        running.push(half_read(&cluster).await);
    }
    let begun = cluster.tasks_begun();
    cluster.scheduler_mut().kill();
    let start = Instant::now();
    let successor = cluster.successor();
    let rest = SpawnedTask::spawn(futures::future::try_join_all(running.into_iter().map(rows)));
    cluster.takes_over(successor);
    let listens = start.elapsed().as_secs_f64();
    while cluster.tasks_begun() == begun {
        assert!(start.elapsed() < PATIENCE, "no task has begun: {}", cluster.said());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first_task = start.elapsed().as_secs_f64();
    let rest: usize = rest.join().await.unwrap().unwrap().into_iter().sum();
    println!(
        "{{\"name\": \"cluster, a scheduler's successor\", \"running\": {JOBS}, \"tasks\": {}, \
         \"tasks_begun\": {begun}, \"rows_read_afterwards\": {rest}, \"seconds_to_listen\": {listens:.2}, \
         \"seconds_to_first_task\": {first_task:.2}}}",
        JOBS as i64 * TASKS_OF_JOB
    );
}

/// A job whose client has read half of its batches.
async fn half_read(cluster: &Processes) -> SendableRecordBatchStream {
    let config = SessionConfig::new().with_target_partitions(TASKS_OF_JOB as usize);
    let session = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_config(config)
        .connect(cluster.address())
        .await
        .unwrap();
    add_table(&session, TASKS_OF_JOB, 4);
    // Tasks wait for their reader.
    super::set(&session, "forebay.edge_budget", 1).await;
    let query = "SELECT id, md5(CAST(id AS VARCHAR)) AS word FROM t";
    let mut stream = session.sql(query).await.unwrap().execute_stream().await.unwrap();
    for _ in 0..READ {
        stream.next().await.unwrap().unwrap();
    }
    stream
}

/// How many rows there are still to read.
async fn rows(stream: SendableRecordBatchStream) -> datafusion::error::Result<usize> {
    let count = |rows: usize, batch: RecordBatch| async move { Ok(rows + batch.num_rows()) };
    stream.try_fold(0, count).await
}

/// As the scheduler does it, but for the job's document.
fn fold(_: &str, stays: &[&[u8]], steps: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let steps: Vec<Step> = steps.iter().map(|step| serde_json::from_slice(step).unwrap()).collect();
    let snapshot = Snapshot::from_bytes(stays[0]).unwrap().after(steps).unwrap();
    Some(vec![snapshot.to_bytes().unwrap()])
}

/// Waits until nothing has been copied for a while: no cluster writes as fast as this does.
async fn until_settled(state: &Path) {
    let (mut bytes, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(3) {
        let now = super::size(state);
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The journal of a job of many tasks on many workers, and how long its graph takes to be made of it. No task runs: what
/// there is to write comes as fast as it can be made.
async fn long(name: &str, fold: Fold) {
    const KEY: &str = "job/long";
    let state = TempDir::new().unwrap();
    let take = || State::in_folder(state.path()).take();
    let (journal, _) = take().await.unwrap().open(fold).await.unwrap();
    let stages = vec![StageSpec::new("s", Need::cpus(1000), LONG_TASKS)];
    let spec = JobSpec { stages, ..JobSpec::default() };
    journal.append(KEY, Snapshot::new(0, spec.clone()).to_bytes().unwrap());
    let mut graph = JobGraph::try_new(spec.clone()).unwrap();
    graph.record_steps();
    let id = |at| WorkerId::new(format!("worker-{at:03}-5f0c7d4e9ab84c3f"));
    let workers: Vec<WorkerId> = (0..LONG_WORKERS).map(id).collect();
    let (begin, mut steps_bytes) = (Instant::now(), 0);
    for unit in 0..LONG_TASKS {
        let (worker, now) = (&workers[(unit % LONG_WORKERS) as usize], Millis(unit.into()));
        let work = Work::Unit(StageId(0).unit(unit));
        let task = graph.bind(work, worker, Lease::default(), now).unwrap().task;
        let (bytes, rows, checksum) = (100_000 + u64::from(unit), 1000, u64::from(unit) * 7919);
        let block = BlockReport { seq: 0, bytes, rows, checksum, run: None, segments: None };
        graph.apply(Event::TaskFinished { task, blocks: vec![block] }, now);
        for step in graph.take_steps() {
            let step = serde_json::to_vec(&step).unwrap();
            steps_bytes += step.len();
            journal.append_step(KEY, step);
        }
        if unit.is_multiple_of(1000) {
            journal.flushed().await.unwrap();
        }
    }
    journal.flushed().await.unwrap();
    let written = begin.elapsed().as_secs_f64();
    until_settled(state.path()).await;
    drop(journal);
    let bytes = super::size(state.path());
    let begin = Instant::now();
    let (_journal, records) = take().await.unwrap().open(fold).await.unwrap();
    let found = &records[KEY];
    let snapshot = Snapshot::from_bytes(&found.stays[0]).unwrap();
    let mut again = snapshot.changed().unwrap_or_else(|| JobGraph::try_new(spec).unwrap());
    for step in &found.steps {
        again.replay(serde_json::from_slice(step).unwrap()).unwrap();
    }
    let restored = begin.elapsed().as_secs_f64();
    again.record_steps();
    assert!(again == graph, "another graph");
    println!(
        "{{\"name\": \"cluster, journal of a job of {LONG_TASKS} ended tasks, {name}\", \"steps_bytes\": {steps_bytes}, \
         \"snapshot_bytes\": {}, \"steps_left\": {}, \"journal_bytes\": {bytes}, \"seconds_to_write\": {written:.2}, \
         \"seconds_to_restore\": {restored:.2}}}",
        found.stays[0].len(),
        found.steps.len(),
    );
}
