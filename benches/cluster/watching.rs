//! What it costs a scheduler that clients watch their jobs, while nothing happens to any of them.

use std::fs;
use std::time::Duration;

use datafusion::execution::SendableRecordBatchStream;
use forebay::prelude::*;
use forebay::{Catalog, ForebayContext};
use forebay_testkit::cluster::{Cluster, Process};
use futures::{StreamExt, TryStreamExt};

/// Jobs that run, each with a client that hears twice a second how far it is.
const RUNNING: usize = 200;
/// Jobs that are over.
const ENDED: usize = 1000;
/// How many of them run at a time until then.
const AT_ONCE: usize = 8;
/// For how long it is looked at each time.
const WINDOW: Duration = Duration::from_secs(20);

/// Fills some blocks with what cannot be compressed well.
const TABLE: &str = "COPY (SELECT value AS id, md5(CAST(value AS VARCHAR)) AS word FROM \
                     range(0, 8000)) TO '{}' STORED AS PARQUET";
const QUERY: &str = "SELECT id, word, md5(word) AS other FROM words";

/// CPU time, not time: the machine may have other things to do.
pub(super) async fn watching() {
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_forebay"), &[]);
    cluster.add_worker(&["--cpus", "2", "--gpus", "none"]);
    let folder = tempfile::TempDir::new().unwrap();
    let session = session(&cluster, &folder.path().join("words.parquet")).await;
    let scheduler = cluster.scheduler();
    let nobody = percent_of_a_core(scheduler).await;
    let mut waiting = vec![];
    for _ in 0..RUNNING {
        waiting.push(begun(&session).await);
    }
    let watched = percent_of_a_core(scheduler).await;
    let all = futures::stream::iter(0..ENDED).map(|_| async {
        let rows: Vec<_> = run(&session).await.try_collect().await.unwrap();
        assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 8000);
    });
    all.buffer_unordered(AT_ONCE).collect::<()>().await;
    let states = "SELECT count(*) FILTER (WHERE state = 'running'), \
                  count(*) FILTER (WHERE state = 'finished') FROM forebay.jobs";
    let states = session.sql(states).await.unwrap().collect().await.unwrap();
    let count = |column: usize| {
        let column = states[0].column(column);
        arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(column).value(0)
    };
    assert_eq!(count(0), RUNNING as i64, "they wait for their clients");
    let with_ended = percent_of_a_core(scheduler).await;
    println!(
        "{{\"name\": \"cluster, watching\", \"profile\": \"{}\", \"running\": {RUNNING}, \
         \"ended\": {}, \"core_percent_without_jobs\": {nobody:.2}, \"core_percent_running\": \
         {watched:.2}, \"core_percent_running_and_ended\": {with_ended:.2}}}",
        if cfg!(debug_assertions) { "dev" } else { "release" },
        count(1),
    );
    drop(waiting);
}

async fn session(cluster: &Cluster, table: &std::path::Path) -> ForebayContext {
    let local = ForebayContext::builder().with_catalog(Catalog::in_memory()).build().unwrap();
    let copy = TABLE.replace("{}", table.to_str().unwrap());
    local.sql(&copy).await.unwrap().collect().await.unwrap();
    let session = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_config(SessionConfig::new().with_target_partitions(4).with_batch_size(500))
        .connect(cluster.address())
        .await
        .unwrap();
    let create =
        format!("CREATE EXTERNAL TABLE words STORED AS PARQUET LOCATION '{}'", table.display());
    for statement in [create.as_str(), "SET forebay.block_bytes = 16384"] {
        session.sql(statement).await.unwrap().collect().await.unwrap();
    }
    session
}

async fn run(session: &ForebayContext) -> SendableRecordBatchStream {
    session.sql(QUERY).await.unwrap().execute_stream().await.unwrap()
}

/// A job of which some rows have been read, and the next ones wait.
async fn begun(session: &ForebayContext) -> SendableRecordBatchStream {
    let mut rows = run(session).await;
    rows.next().await.unwrap().unwrap();
    rows
}

/// What a process takes of one core, on average over a while.
async fn percent_of_a_core(process: &Process) -> f64 {
    let before = cpu_ticks(process);
    tokio::time::sleep(WINDOW).await;
    // 100 ticks a second, on every Linux of the last decades.
    (cpu_ticks(process) - before) as f64 / WINDOW.as_secs_f64()
}

/// Of user and system, from the kernel's account.
fn cpu_ticks(process: &Process) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = after_name.split(' ').collect();
    [11, 12].map(|at: usize| fields[at].parse::<u64>().unwrap()).iter().sum()
}
