use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::StreamWriter;
use datafusion::common::internal_err;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use futures::future;

use super::*;
use crate::protocol::location::FileId;

/// A fetched block with these batches, of which so many rows are expected.
fn fetched(batches: &[&[i64]], rows: u64, pool: &MemoryReservation) -> Decoded {
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, false)]);
    let mut writer = StreamWriter::try_new(vec![], &schema).unwrap();
    for numbers in batches {
        let column: ArrayRef = Arc::new(Int64Array::from(numbers.to_vec()));
        writer.write(&RecordBatch::try_from_iter([("n", column)]).unwrap()).unwrap();
    }
    let bytes = writer.into_inner().unwrap();
    let reserved = pool.new_empty();
    reserved.try_grow(bytes.len()).unwrap();
    let block = BlockLocation {
        job: "job".to_owned(),
        id: FileId { stage: 1, task: 2, seq: 3 },
        worker: "w".to_owned(),
        address: String::new(),
        bytes: bytes.len() as u64,
        rows,
        checksum: crc32fast::hash(&bytes),
        segment_at: None,
    };
    Decoded::new(block, bytes.into(), reserved)
}

#[tokio::test]
async fn the_next_block_is_fetched_while_the_last_batch_of_one_is_worked_on() {
    let memory: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let pool = MemoryConsumer::new("test").register(&memory);
    let bytes = fetched(&[&[1; 1000], &[2; 1000]], 2000, &pool).block.bytes as usize;
    let (begun, of) = (Arc::new(AtomicU64::new(0)), pool.new_empty());
    let counted = Arc::clone(&begun);
    let reads = stream::iter(0..3).map(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let block = fetched(&[&[1; 1000], &[2; 1000]], 2000, &of);
        future::ready(Ok(vec![block]))
    });
    let mut rows = std::pin::pin!(batches(reads.buffered(1)));
    for block in 1..=3 {
        for (batch, begun_by_then) in [(1, block), (2, (block + 1).min(3))] {
            let found = rows.try_next().await.unwrap().unwrap();
            assert_eq!(found.column(0).to_data(), Int64Array::from(vec![batch; 1000]).to_data());
            assert_eq!(begun.load(Ordering::Relaxed), begun_by_then, "{block}, {batch}");
            // A block and a batch, and never two blocks.
            assert!(memory.reserved() < bytes + bytes * 3 / 4, "{} of {bytes}", memory.reserved());
        }
    }
    assert_eq!(rows.try_next().await.unwrap(), None);
    assert_eq!(memory.reserved(), 0);
}

#[tokio::test]
async fn a_block_has_the_rows_that_were_sealed_or_is_refused() {
    let memory: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let pool = MemoryConsumer::new("test").register(&memory);
    let all = async |batches: &[&[i64]], rows| {
        let block = fetched(batches, rows, &pool);
        let read = super::batches(stream::iter([Ok(vec![block])]));
        let read: Result<Vec<_>> = read.try_collect().await;
        read.map(|read| read.iter().map(RecordBatch::num_rows).collect::<Vec<_>>())
    };
    assert_eq!(all(&[&[1], &[], &[2, 3], &[]], 3).await.unwrap(), [1, 0, 2]);
    assert!(all(&[], 0).await.unwrap().is_empty());
    for rows in [0, 1, 2, 4] {
        let error = all(&[&[1], &[2, 3]], rows).await.unwrap_err().to_string();
        let said = format!("3 rows instead of {rows}");
        assert!(error.contains("block 1/2/3 on worker w") && error.contains(&said), "{error}");
    }
    let error = all(&[&[1], &[], &[2]], 1).await.unwrap_err().to_string();
    assert!(error.contains("2 rows instead of 1"), "{error}");
}

#[tokio::test]
async fn blocks_that_come_together_and_an_error_behind_them_are_given_in_their_order() {
    let memory: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let pool = MemoryConsumer::new("test").register(&memory);
    let one = fetched(&[&[1, 2], &[3]], 3, &pool);
    // Two streams, as a round of a hash shuffle is.
    let mut other = fetched(&[&[4]], 2, &pool);
    let end = fetched(&[&[5]], 1, &pool).buffer;
    other.buffer = [other.buffer.as_slice(), end.as_slice()].concat().into();
    let last = fetched(&[&[6]], 1, &pool);
    let reads = [Ok(vec![one, other]), Ok(vec![last]), internal_err!("on purpose")];
    let mut rows = std::pin::pin!(batches(stream::iter(reads)));
    let mut found = vec![];
    let error = loop {
        match rows.try_next().await {
            Ok(batch) => found.push(batch.unwrap().num_rows()),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("on purpose"), "{error}");
    assert_eq!(found, [2, 1, 1, 1, 1]);
    assert_eq!(memory.reserved(), 0);
}
