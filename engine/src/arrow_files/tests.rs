//! What is read is what was written, in both formats and all ways of writing; what is damaged is an
//! error.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, NullArray, RecordBatch,
    StringArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int64Type, Schema};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use datafusion::execution::options::ArrowReadOptions;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use proptest::prelude::*;
use tempfile::TempDir;

use super::CheckArrowFiles;

fn batch(rows: i64) -> RecordBatch {
    let ids: Vec<_> = (0..rows).map(|id| (id % 7 != 3).then_some(id)).collect();
    let words = ids.iter().map(|id| id.map(|id| "word".repeat(id as usize % 5)));
    // Files have one dictionary for all batches.
    let names = Arc::new(StringArray::from(vec!["dog", "cat", "eel"]));
    let kinds = Int32Array::from_iter_values((0..rows).map(|id| id as i32 % 3));
    let kinds = DictionaryArray::new(kinds, names);
    let lists = ids.iter().map(|id| id.map(|id| (0..id % 4).map(Some).collect::<Vec<_>>()));
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from(ids.clone())) as ArrayRef, true),
        ("word", Arc::new(words.collect::<StringArray>()), true),
        ("kind", Arc::new(kinds), true),
        ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)), true),
    ])
    .unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Format {
    File,
    Stream,
}

fn write(path: &Path, batches: &[RecordBatch], format: Format, options: IpcWriteOptions) {
    let (file, schema) = (fs::File::create(path).unwrap(), batches[0].schema());
    match format {
        Format::File => {
            let mut writer = FileWriter::try_new_with_options(file, &schema, options).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        }
        Format::Stream => {
            let mut writer = StreamWriter::try_new_with_options(file, &schema, options).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        }
    }
}

fn compressed(compression: Option<CompressionType>) -> IpcWriteOptions {
    IpcWriteOptions::default().try_with_compression(compression).unwrap()
}

fn context(partitions: usize) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .set_usize("datafusion.optimizer.repartition_file_min_size", 1);
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_physical_optimizer_rule(Arc::new(CheckArrowFiles))
        .build();
    SessionContext::new_with_state(state)
}

async fn query(
    path: &Path,
    partitions: usize,
    sql: &str,
) -> datafusion::common::Result<RecordBatch> {
    query_as(None, path, partitions, sql).await
}

/// With this schema, or the one that DataFusion finds in the file.
async fn query_as(
    schema: Option<&Schema>,
    path: &Path,
    partitions: usize,
    sql: &str,
) -> datafusion::common::Result<RecordBatch> {
    let context = context(partitions);
    let options = ArrowReadOptions { schema, ..ArrowReadOptions::default() };
    context.register_arrow("t", path.to_str().unwrap(), options).await?;
    let rows = context.sql(sql).await?;
    let schema = Arc::new(rows.schema().as_arrow().clone());
    Ok(concat_batches(&schema, &rows.collect().await?)?)
}

#[tokio::test]
async fn what_was_written_is_read() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.arrow");
    let batches = [batch(1000), batch(0), batch(1), batch(300)];
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    for format in [Format::File, Format::Stream] {
        for compression in [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)] {
            write(&path, &batches, format, compressed(compression));
            let read = query(&path, 1, "SELECT * FROM t").await.unwrap();
            assert_eq!(read, all, "{format:?} {compression:?}");
            let two = query(&path, 1, "SELECT kind, id FROM t").await.unwrap();
            assert_eq!(two, all.project(&[2, 0]).unwrap(), "{format:?} {compression:?}");
            let sql = "SELECT count(*), count(id), sum(length(word)) FROM t";
            let parts = query(&path, 4, sql).await.unwrap();
            assert_eq!(parts, query(&path, 1, sql).await.unwrap(), "{format:?} {compression:?}");
            assert_eq!(parts.column(0).as_ref(), &Int64Array::from(vec![1301]), "{format:?}");
        }
    }
}

/// Batches without a body, which are complete when their message is.
#[tokio::test]
async fn rows_without_bytes_are_rows() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.arrow");
    let nulls: ArrayRef = Arc::new(NullArray::new(5));
    let batch = RecordBatch::try_from_iter_with_nullable([("n", nulls, true)]).unwrap();
    for format in [Format::File, Format::Stream] {
        write(&path, &[batch.clone(), batch.clone()], format, compressed(None));
        let read = query(&path, 1, "SELECT * FROM t").await.unwrap();
        assert_eq!(read.num_rows(), 10, "{format:?}");
    }
}

#[tokio::test]
async fn what_a_buffer_claims_is_not_taken() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.arrow");
    for format in [Format::File, Format::Stream] {
        write(&path, &[batch(1000)], format, compressed(Some(CompressionType::ZSTD)));
        let mut bytes = fs::read(&path).unwrap();
        // The ids: 1,000 numbers of eight bytes.
        let claim = 8000_i64.to_le_bytes();
        let at = bytes.windows(8).position(|window| window == claim).unwrap();
        bytes[at..at + 8].copy_from_slice(&(1_i64 << 45).to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let error = query(&path, 1, "SELECT * FROM t").await.unwrap_err().to_string();
        assert!(error.contains("t.arrow") && error.contains("claim 35184372"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No damage takes the process with it: rows or an error.
    #[test]
    fn damage_is_an_error_or_other_rows(
        is_file in any::<bool>(),
        is_compressed in any::<bool>(),
        cut in proptest::option::of(0.0..1.0),
        flips in proptest::collection::vec((0.0..1.0, any::<u8>()), 0..8),
    ) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.arrow");
        let format = if is_file { Format::File } else { Format::Stream };
        let compression = is_compressed.then_some(CompressionType::LZ4_FRAME);
        write(&path, &[batch(50), batch(20)], format, compressed(compression));
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in flips {
            let at = (at * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        fs::write(&path, &bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let schema = batch(0).schema();
        // A panic of the decoder ends its query only.
        let run = std::panic::AssertUnwindSafe(|| runtime.block_on(query_as(Some(&schema), &path, 1, "SELECT * FROM t")));
        std::panic::catch_unwind(run).ok();
    }
}
