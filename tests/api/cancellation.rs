//! Queries that are dropped or fail at any moment give everything back: leases, threads, reserved
//! bytes, temporary files.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use forebay_testkit::random::mix;
use forebay_udf::runtime::Device;
use futures::StreamExt;

const MOMENTS: u64 = 200;
const ROWS: u64 = 600;
const EMULATED: Device = Device::Emulated(0);

/// Sorted below and aggregated above two models, so that many operators are on the way.
fn query(test: &str) -> String {
    format!(
        "SELECT label, count(*), max(digest) FROM ml_predict(
           (SELECT * FROM ml_predict((SELECT id, text FROM t ORDER BY text), MODEL {test}_sentiment,
                                     DESCRIPTOR(text))),
           MODEL {test}_echo, DESCRIPTOR(id)) GROUP BY label"
    )
}

/// Models have the test's name in front, and so the threads that run them: other tests run beside.
async fn session(models: &tempfile::TempDir, test: &str) -> ForebayContext {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(64 << 20)))
        .with_temp_file_path(models.path().join("spill"))
        .build_arc()
        .unwrap();
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(2).with_batch_size(64))
        .with_runtime(runtime)
        .build()
        .unwrap();
    for name in ["sentiment", "echo"] {
        let package = format!("tests/models/{name}");
        forebay.register_model(&format!("{test}_{name}"), &package).await.unwrap();
    }
    let table = format!(
        "CREATE TABLE t AS SELECT value AS id, CAST(value * 7919 % {ROWS} AS VARCHAR) AS text \
         FROM range(0, {ROWS})"
    );
    forebay.sql(&table).await.unwrap().collect().await.unwrap();
    forebay
}

fn slot_threads(test: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let name =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|name| name.starts_with(&format!("forebay-{test}"))).count()
}

/// Tasks and batches end by themselves; this is when they surely have.
const LEFT_FOR_GOOD_AFTER: Duration = Duration::from_secs(60);

/// Waits until nothing is left.
async fn until_nothing_is_left(forebay: &ForebayContext, test: &str, before: usize) {
    let environment = forebay.session().runtime_env();
    let nothing = (before, 0, 0, 0);
    // Looked at once per turn: a thread that has just begun is seen under its name a moment later,
    // and then ends as well.
    let left = || {
        (
            environment.memory_pool.reserved(),
            forebay.devices().leased_millis(EMULATED),
            slot_threads(test),
            environment.disk_manager.used_disk_space(),
        )
    };
    let since = Instant::now();
    let mut found = left();
    while found != nothing && since.elapsed() < LEFT_FOR_GOOD_AFTER {
        tokio::time::sleep(Duration::from_millis(1)).await;
        found = left();
    }
    assert_eq!(found, nothing, "bytes, leases, threads and bytes on disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let forebay = session(&folder, "drop").await;
    let before = forebay.session().runtime_env().memory_pool.reserved();
    for moment in 0..MOMENTS {
        let mut rows = forebay.sql(&query("drop")).await.unwrap().execute_stream().await.unwrap();
        let limit = Duration::from_micros(mix(moment) % 100_000);
        // Ends with the rows, or in the middle of them.
        let _ = tokio::time::timeout(limit, async { while rows.next().await.is_some() {} }).await;
        drop(rows);
        until_nothing_is_left(&forebay, "drop", before).await;
    }
    let rows = forebay.sql(&query("drop")).await.unwrap().collect().await.unwrap();
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), ROWS as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let forebay = session(&folder, "fail").await;
    let echo = fs::read_to_string("tests/models/echo/model.toml").unwrap();
    let before = forebay.session().runtime_env().memory_pool.reserved();
    for moment in 0..MOMENTS {
        // A row of the second model, or a row below the first one.
        let row = mix(moment) % ROWS;
        let query = match moment % 2 {
            0 => {
                let failing =
                    echo.replace("service_ms = 1", &format!("service_ms = 0\nfail_on = \"{row}\""));
                let package = folder.path().join(format!("m{moment}"));
                fs::create_dir_all(&package).unwrap();
                fs::write(package.join("model.toml"), failing).unwrap();
                forebay.register_model("failing", package.to_str().unwrap()).await.unwrap();
                query("fail").replace("fail_echo", "failing")
            }
            _ => query("fail")
                .replace("SELECT id, text", &format!("SELECT id + 1 / (id - {row}) AS id, text")),
        };
        let error = async { forebay.sql(&query).await?.collect().await }.await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("fails on") || text.contains("Divide by zero"), "{text}");
        until_nothing_is_left(&forebay, "fail", before).await;
    }
}
