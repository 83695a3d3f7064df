//! How joins end that do not end with their last row, and what they leave.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use datafusion::common::JoinType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use tempfile::TempDir;

use super::cases::{Case, join, measured, over};
use crate::{ErrorKind, SpillingJoinExec};

fn usual(kind: JoinType, skew: u64) -> Case {
    Case {
        seed: 5,
        kind,
        mode: PartitionMode::CollectLeft,
        nulls_are_equal: false,
        with_filter: false,
        key: 1,
        skew,
        build_rows: 6000,
        probe_rows: 3000,
        projected: false,
        limit: 128 << 10,
    }
}

fn context(folder: &Path, limit: usize, disk: u64) -> (Arc<TaskContext>, Arc<dyn MemoryPool>) {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
    let disk = DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![folder.to_owned()]))
        .with_max_temp_directory_size(disk);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::clone(&pool))
        .with_disk_manager_builder(disk)
        .build_arc()
        .unwrap();
    let config = SessionConfig::new().with_batch_size(200);
    (Arc::new(TaskContext::default().with_session_config(config).with_runtime(runtime)), pool)
}

fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

/// The other partitions of a query that has failed end behind it.
async fn until_nothing_is_left(folder: &Path, pool: &dyn MemoryPool) {
    for _ in 0..1000 {
        if (files(folder), pool.reserved()) == (0, 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} files, and {} bytes of the pool", files(folder), pool.reserved());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_is_left_leaves_nothing() {
    for kind in [JoinType::Inner, JoinType::Full, JoinType::Right] {
        for skew in [0, 100] {
            let folder = TempDir::new().unwrap();
            let (context, pool) = context(folder.path(), 128 << 10, u64::MAX);
            let case = usual(kind, skew);
            let ours: Arc<dyn ExecutionPlan> =
                Arc::new(SpillingJoinExec::try_new(&join(&case)).unwrap());
            // Of a full join the last partition has all rows.
            let streams = (0..3).map(|at| ours.execute(at, Arc::clone(&context)).unwrap());
            let mut rows: usize = 0;
            let mut left = vec![];
            for mut stream in streams {
                if let Some(batch) = stream.next().await {
                    rows += batch.unwrap().num_rows();
                }
                left.push(stream);
            }
            assert!(rows > 0, "{case:?}");
            assert!(files(folder.path()) > 0, "{case:?}: it did not go to disk");
            drop(left);
            drop(ours);
            assert_eq!(files(folder.path()), 0, "{case:?}");
            assert_eq!(pool.reserved(), 0, "{case:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_rows_holds() {
    let folder = TempDir::new().unwrap();
    let (context, _) = context(folder.path(), 128 << 10, u64::MAX);
    let join = join(&usual(JoinType::Right, 0));
    let limited = join.builder().with_fetch(Some(7)).build().unwrap();
    let ours: Arc<dyn ExecutionPlan> = Arc::new(SpillingJoinExec::try_new(&limited).unwrap());
    assert_eq!(ours.fetch(), Some(7));
    let mut stream = ours.execute(0, context).unwrap();
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, 7);
    assert!(measured(ours.as_ref(), "spill_count") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_that_names_the_join() {
    let folder = TempDir::new().unwrap();
    let (context, pool) = context(folder.path(), 128 << 10, 64 << 10);
    let ours = Arc::new(SpillingJoinExec::try_new(&join(&usual(JoinType::Inner, 0))).unwrap());
    let error = collect(ours, context).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("HashJoinExec on key@0 = key@0 and second@1 = second@1"), "{error}");
    assert!(error.contains("cannot write to disk"), "{error}");
    assert!(error.contains("datafusion.runtime.max_temp_directory_size"), "{error}");
    until_nothing_is_left(folder.path(), pool.as_ref()).await;
}

/// One row.
fn row(text: String) -> Arc<dyn ExecutionPlan> {
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("key", Arc::new(StringArray::from(vec!["a key of a row: 1"])) as _, true),
        ("second", Arc::new(Int64Array::from(vec![1])) as _, true),
        ("number", Arc::new(Int64Array::from(vec![1])) as _, false),
        ("text", Arc::new(StringArray::from(vec![text])) as _, false),
    ]);
    let batch = batch.unwrap();
    let schema = batch.schema();
    MemorySourceConfig::try_new_exec(&[vec![batch]], schema, None).unwrap()
}

/// A single batch that the limit has no room for is let through up to a size, and beyond that is an error that
/// says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_too_large_is_an_error_that_says_so() {
    let folder = TempDir::new().unwrap();
    let case = usual(JoinType::Left, 0);
    let joined =
        |bytes: usize| -> HashJoinExec { over(&case, row("x".repeat(bytes)), row("y".to_owned())) };
    let (roomy, _) = context(folder.path(), 1 << 20, u64::MAX);
    let ours = Arc::new(SpillingJoinExec::try_new(&joined(8 << 20)).unwrap());
    let found = collect(ours, roomy).await.unwrap();
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
    let (context, pool) = context(folder.path(), 1 << 20, u64::MAX);
    let ours = Arc::new(SpillingJoinExec::try_new(&joined(65 << 20)).unwrap());
    let error = collect(ours, context).await.unwrap_err();
    assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted, "{error}");
    let error = error.to_string();
    for part in
        ["HashJoinExec on key@0 = key@0", "1 rows take ", "limit of 1.0 MiB", "--memory-limit"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    until_nothing_is_left(folder.path(), pool.as_ref()).await;
}
