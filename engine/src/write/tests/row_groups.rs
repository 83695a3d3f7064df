//! How much of a Parquet file is in memory while others are written.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

use super::whole::visible;
use crate::write::{CommitExec, Target, WriteExec};

/// Sizes of the row groups of files, of two partitions that have 100 rows of so many bytes, with these options.
async fn row_groups(row: usize, options: &str) -> Vec<Vec<i64>> {
    let folder = TempDir::new().unwrap();
    let config = SessionConfig::new().with_target_partitions(2);
    let session = SessionContext::new_with_config(config);
    let batch = |byte: u8| {
        let rows: ArrayRef =
            Arc::new(BinaryArray::from_iter_values((0..10).map(|at| vec![byte + at; row])));
        RecordBatch::try_from_iter([("row", rows)]).unwrap()
    };
    let partition = |at: u8| (0..10).map(|batch_at| batch(at * 100 + batch_at * 10)).collect();
    let partitions: Vec<Vec<_>> = vec![partition(0), partition(1)];
    let table = MemTable::try_new(partitions[0][0].schema(), partitions).unwrap();
    session.register_table("rows", Arc::new(table)).unwrap();
    let at = folder.path().display();
    let query = format!("COPY rows TO '{at}/out/' STORED AS PARQUET OPTIONS ({options})");
    let plan = session.sql(&query).await.unwrap().create_physical_plan().await.unwrap();
    let sink = plan.downcast_ref::<datafusion::datasource::sink::DataSinkExec>().unwrap();
    let target = Arc::new(Target::of(sink, u64::MAX).unwrap());
    let rows = session.table("rows").await.unwrap().create_physical_plan().await.unwrap();
    let write = WriteExec::new(rows, Arc::clone(&target));
    let write = Arc::new(CoalescePartitionsExec::new(Arc::new(write)));
    collect(Arc::new(CommitExec::new(write, target)), session.task_ctx()).await.unwrap();
    let groups = |path: &std::path::PathBuf| {
        let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        file.metadata().row_groups().iter().map(|group| group.total_byte_size()).collect()
    };
    let files = visible(folder.path());
    files.iter().filter(|file| !file.ends_with("_SUCCESS")).map(groups).collect()
}

const PLAIN: &str = "'format.compression' 'uncompressed', 'format.dictionary_enabled' 'false'";

#[tokio::test]
async fn row_groups_have_so_many_bytes() {
    let few = row_groups(1000, PLAIN).await;
    assert_eq!(few.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    let many = row_groups(1000, &format!("{PLAIN}, 'format.max_row_group_bytes' '20000'")).await;
    assert_eq!(many.len(), 2);
    for file in many {
        assert!((4..12).contains(&file.len()), "{file:?}");
        assert!(file.iter().all(|bytes| *bytes < 31_000), "{file:?}");
    }
    // 40 MB in each file, of which a million rows would be one group.
    let large = row_groups(400_000, PLAIN).await;
    assert_eq!(large.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
}
