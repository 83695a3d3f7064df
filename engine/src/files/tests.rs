//! What is read is bounded and reserved.

use std::sync::Arc;

use arrow::array::{BinaryArray, RecordBatch};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use tempfile::TempDir;

use super::exec::ReadFilesExec;
use super::file::{File, OnUnreadable};
use super::rows::BYTES_COLUMN;
use crate::ErrorKind;

const MIB: usize = 1 << 20;

/// Files of so many bytes, whose first byte is their number.
fn files(folder: &TempDir, sizes: &[usize]) -> Vec<File> {
    let file = |(at, size): (usize, &usize)| {
        let path = folder.path().join(format!("{at}.bin"));
        let mut bytes = vec![0; *size];
        bytes[0] = at as u8;
        std::fs::write(&path, bytes).unwrap();
        File {
            store: ObjectStoreUrl::local_filesystem(),
            path: Path::from_absolute_path(path).unwrap(),
            size: *size as u64,
            modified_us: 0,
            tag: None,
        }
    };
    sizes.iter().enumerate().map(file).collect()
}

fn read(files: Vec<File>, pool: &Arc<dyn MemoryPool>) -> SendableRecordBatchStream {
    let partitions = vec![files.into()];
    let plan = ReadFilesExec::try_new(partitions, vec![BYTES_COLUMN], OnUnreadable::Fail);
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(pool));
    let context = TaskContext::default()
        .with_session_config(SessionConfig::new())
        .with_runtime(runtime.build_arc().unwrap());
    plan.unwrap().execute(0, Arc::new(context)).unwrap()
}

fn firsts(batches: &[RecordBatch]) -> Vec<(u8, usize)> {
    let column = |batch: &RecordBatch| {
        batch.column(0).as_any().downcast_ref::<BinaryArray>().unwrap().clone()
    };
    let files = batches.iter().map(column);
    files
        .flat_map(|c| c.iter().map(|f| f.map(|f| (f[0], f.len())).unwrap()).collect::<Vec<_>>())
        .collect()
}

#[tokio::test]
async fn what_is_read_ahead_is_reserved_and_bounded() {
    let folder = TempDir::new().unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(usize::MAX));
    let mut rows = read(files(&folder, &[30 * MIB; 6]), &pool);
    let first = rows.next().await.unwrap().unwrap();
    assert!(pool.reserved() > 0 && pool.reserved() <= 64 * MIB, "{}", pool.reserved());
    let rest: Vec<_> = rows.try_collect().await.unwrap();
    assert_eq!(pool.reserved(), 0);
    let all = [vec![first], rest].concat();
    assert_eq!(firsts(&all), (0..6).map(|at| (at, 30 * MIB)).collect::<Vec<_>>());
}

#[tokio::test]
async fn files_wait_for_each_other_where_memory_is_short() {
    let folder = TempDir::new().unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MIB));
    let sizes = [MIB / 3, MIB / 3, MIB, 5 * MIB, MIB / 2, MIB / 2, MIB / 2];
    let rows: Vec<_> = read(files(&folder, &sizes), &pool).try_collect().await.unwrap();
    let expected: Vec<_> = (0..).zip(sizes).collect();
    assert_eq!(firsts(&rows), expected, "one that is larger than all memory passes alone");
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test]
async fn a_file_that_is_far_larger_than_what_is_left_ends_the_query() {
    let folder = TempDir::new().unwrap();
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MIB));
    let sizes = [1000, 65 * MIB];
    let error = read(files(&folder, &sizes), &pool).try_collect::<Vec<_>>().await.unwrap_err();
    assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted, "{error}");
    let error = error.strip_backtrace();
    for part in ["1.bin", "ReadFilesExec[0]: 65.0 MiB at once", "raise the memory limit"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert_eq!(pool.reserved(), 0);
}
