//! What it costs that a scheduler writes its jobs down, and how soon another one goes on with them.

use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::SendableRecordBatchStream;
use forebay::Catalog;
use forebay::prelude::*;
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

pub(super) async fn journal() {
    costs().await;
    restart().await;
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
