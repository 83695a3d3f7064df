//! What a scheduler and a session hold of a result: of a large one no more than of a small one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use datafusion::prelude::SessionContext;
use forebay_testkit::cluster::{Cluster, peak_bytes};
use tempfile::TempDir;

use super::setup::CPU;

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Rows of 4 KB each: 49 MB, and ten times as much.
const SMALL: usize = 12_000;
const LARGE: usize = 120_000;

/// By so much the result grows, in files of its own size.
const GROWS: u64 = 400 << 20;

/// And by less than this what a process has resident at the most. It depends on how much waits here and there at a
/// time, and on what its allocator keeps.
const FLAT: u64 = 64 << 20;

/// `numbers (n)`, of so many rows in several files, in no order: one task would keep it.
async fn write_numbers(folder: &Path, rows: usize) {
    const FILES: usize = 8;
    let session = SessionContext::new();
    for file in 0..FILES {
        let (from, to) = (file * rows / FILES, (file + 1) * rows / FILES);
        let copy = format!(
            "COPY (SELECT value * 7919 % {rows} AS n FROM range({from}, {to})) \
             TO '{}/{file}.parquet' STORED AS PARQUET",
            folder.display()
        );
        session.sql(&copy).await.unwrap().collect().await.unwrap();
    }
}

/// Copies that many rows in a session of its own; gives back the bytes that were written, and the most that the
/// session had resident.
fn copy(cluster: &Cluster, numbers: &Path, to: &Path, rows: usize) -> (u64, u64) {
    let sql = format!(
        "CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{}/';
         COPY (SELECT n, repeat(md5(CAST(n AS VARCHAR)), 128) AS text FROM numbers) TO '{}/' STORED AS PARQUET
         OPTIONS ('format.compression' 'uncompressed', 'format.dictionary_enabled' 'false')",
        numbers.display(),
        to.display()
    );
    let catalog = to.with_extension("catalog");
    let mut command = Command::new(FOREBAY);
    command.args(["shell", "--connect", cluster.address(), "-q", "--format", "csv", "-c", &sql]);
    command.env("FOREBAY_CATALOG", catalog).stdin(Stdio::null());
    let mut session = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut peak = 0;
    while session.try_wait().unwrap().is_none() {
        peak = peak_bytes(session.id()).unwrap_or(0).max(peak);
        thread::sleep(Duration::from_millis(2));
    }
    let output = session.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().last(), Some(rows.to_string().as_str()), "{said}");
    let files = fs::read_dir(to).unwrap().flatten();
    (files.map(|file| file.metadata().unwrap().len()).sum(), peak)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_and_session_hold_no_more_of_a_larger_result() {
    let folder = TempDir::new().unwrap();
    let mut cluster = Cluster::start(FOREBAY, &[]);
    cluster.add_worker(CPU);
    cluster.add_worker(CPU);
    let mut found = vec![];
    for (name, rows) in [("small", SMALL), ("large", LARGE)] {
        let numbers = folder.path().join(format!("{name}-numbers"));
        write_numbers(&numbers, rows).await;
        let (bytes, session) = copy(&cluster, &numbers, &folder.path().join(name), rows);
        found.push((bytes, session, cluster.scheduler().peak_bytes()));
    }
    let [(small, of_session, of_scheduler), (large, session, scheduler)] = found[..] else {
        panic!("{found:?}")
    };
    assert!(of_session > 0 && large > small + GROWS, "{found:?}");
    assert!(session < of_session + FLAT, "the session: {found:?}");
    assert!(scheduler < of_scheduler + FLAT, "the scheduler: {found:?}");
}
