use arrow::array::{ArrayRef, Int64Array};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::col;
use datafusion::prelude::SessionConfig;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::super::{BlockSize, BlockWriterExec};
use super::*;
use crate::block::open_block::Sealed;
use crate::protocol::blocks_server::BlocksServer;
use crate::protocol::connection::serve;
use crate::protocol::location::FileId;

/// Of a block of the worker "w".
fn location(id: FileId, sealed: &Sealed, address: &str) -> BlockLocation {
    BlockLocation {
        job: "job".to_owned(),
        id,
        worker: "w".to_owned(),
        address: address.to_owned(),
        bytes: sealed.bytes,
        rows: sealed.rows,
        checksum: sealed.checksum,
        segment_at: None,
    }
}

/// Reads what a stage wrote as one unit, for a merge by `n`.
async fn read(numbers: Vec<i64>) -> Result<Vec<RecordBatch>> {
    let folder = TempDir::new().unwrap();
    let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
    let store = Arc::new(store);
    let column: ArrayRef = Arc::new(Int64Array::from(numbers));
    let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let schema = batch.schema();
    let halves = vec![batch.slice(0, 2), batch.slice(2, batch.num_rows() - 2)];
    let input = MemorySourceConfig::try_new_exec(&[halves], Arc::clone(&schema), None).unwrap();
    let writer = BlockWriterExec::new(input, BlockSize::up_to(1));
    let config = SessionConfig::new().with_extension(Arc::clone(&store));
    let context = Arc::new(TaskContext::default().with_session_config(config));
    let blocks = writer.write(&store, "job", 1, 2, Arc::clone(&context), &|_, _| {}).await?;
    let located = blocks.into_iter().map(|(id, sealed)| location(id, &sealed, ""));
    let key = PhysicalSortExpr::new(col("n", &schema)?, SortOptions::default());
    let reader = BlockReaderExec::new(0, schema, vec![located.collect()]);
    let reader = reader.merged_by(LexOrdering::new([key]).unwrap());
    reader.execute(0, context)?.try_collect().await
}

#[test]
fn a_column_can_be_null_if_the_plan_says_so() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
    let nullable = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
    assert!(!batch.schema().field(0).is_nullable());
    assert_eq!(as_declared(batch, &nullable).schema(), nullable);
}

#[tokio::test]
async fn a_unit_that_is_not_in_the_order_of_its_merge_is_told() {
    let batches = read(vec![1, 2, 2, 3]).await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 4);
    // Across two blocks, and within one.
    for numbers in [vec![1, 3, 2, 4], vec![1, 2, 4, 3]] {
        let error = read(numbers).await.unwrap_err().to_string();
        assert!(error.contains("BlockReaderExec: claims the order [n@0 ASC]"), "{error}");
    }
}

/// A worker "w" with runs of numbers that nothing makes smaller, each in blocks of so many rows of 8 bytes.
async fn worker(
    folder: &TempDir,
    runs: u32,
    blocks: usize,
    rows: usize,
) -> (SpawnedTask<()>, Vec<Vec<BlockLocation>>) {
    let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
    let store = Arc::new(store);
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap().to_string();
    let service = BlocksServer::new(Arc::clone(&store));
    let routes = tonic::transport::Server::builder().add_service(service);
    let serving = SpawnedTask::spawn(async move { drop(serve(routes, port, None).await) });
    let context = Arc::new(TaskContext::default());
    let mut located = vec![];
    for run in 0..runs {
        let count = i64::try_from(rows * blocks).unwrap();
        let numbers = (0..count).map(|at| at.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
        let schema = batch.schema();
        let batches = (0..blocks).map(|at| batch.slice(at * rows, rows));
        let input = MemorySourceConfig::try_new_exec(&[batches.collect()], schema, None).unwrap();
        let bytes = 8 * rows as u64;
        let size = BlockSize::of_run(bytes, bytes);
        let writer = BlockWriterExec::new(input, size);
        let written = writer.write(&store, "job", 1, run, Arc::clone(&context), &|_, _| {});
        let written = written.await.unwrap();
        located.push(written.iter().map(|(id, sealed)| location(*id, sealed, &address)).collect());
    }
    (serving, located)
}

#[tokio::test]
async fn what_a_merge_does_not_ask_for_yet_keeps_nothing_from_what_it_asks_for() {
    let folder = TempDir::new().unwrap();
    // More than two connections' windows (5 MiB) of blocks that are fetched ahead.
    let (_serving, runs) = worker(&folder, 8, 3, 400_000).await;
    assert!(runs.iter().all(|run| run.len() == 3), "{runs:?}");
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let reader = BlockReaderExec::new(0, schema, runs);
    // All runs come by one connection, to a worker that has other blocks.
    let own = BlockStore::new("here".to_owned(), folder.path().join("here"), u64::MAX);
    let config = SessionConfig::new().with_extension(Arc::new(own));
    let config = config.with_extension(Arc::new(Peers::default()));
    let context = Arc::new(TaskContext::default().with_session_config(config));
    let execute = |run| reader.execute(run, Arc::clone(&context)).unwrap();
    let mut streams: Vec<_> = (0..8).map(execute).collect();
    // As a merge does: whose rows come last is asked last, and before that for its first rows only.
    let mut rows = 0;
    for stream in &mut streams {
        rows += stream.try_next().await.unwrap().unwrap().num_rows();
    }
    for mut stream in streams.into_iter().rev() {
        while let Some(batch) = stream.try_next().await.unwrap() {
            rows += batch.num_rows();
        }
    }
    assert_eq!(rows, 8 * 3 * 400_000);
}
