//! A result of many bytes into files: by the workers that compute it, and by the session, in turn. The folder is
//! read again, by DataFusion alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float32Array};
use arrow::datatypes::{DataType, Field, Int64Type};
use arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use forebay::prelude::*;
use tempfile::TempDir;

use super::{Cluster, Has, add_table, median, noise, set};

const DIMENSIONS: usize = 384;
const PARTITIONS: i64 = 64;
/// So many vectors are 4 GB.
const ROWS: i64 = 41_700 * PARTITIONS;
const ROUNDS: usize = 3;

/// On two workers of one core each.
pub(super) async fn writes() {
    let one = || Has { cpus: 1, accelerators: 0, work_limit: None };
    // On disk: it is more than a folder in memory should hold.
    let cluster = Cluster::start_in(TempDir::new().unwrap(), &[one(), one()]).await;
    let session = cluster.session(PARTITIONS as usize).await;
    add_table(&session, PARTITIONS, ROWS / PARTITIONS);
    let mut seconds = [vec![], vec![]];
    let mut files = 0;
    for _ in 0..ROUNDS {
        for (on_workers, seconds) in [true, false].into_iter().zip(&mut seconds) {
            set(&session, "forebay.write_on_workers", on_workers).await;
            let (took, found) = written(&session, on_workers).await;
            seconds.push(took);
            files = if on_workers { found } else { files };
        }
    }
    let ratios: Vec<f64> =
        seconds[0].iter().zip(&seconds[1]).map(|(own, other)| own / other).collect();
    println!(
        "{{\"name\": \"4 GB of vectors into files: by two workers / by the session\", \"rounds\": {ROUNDS}, \
         \"files\": {files}, \"seconds_workers\": {:.2}, \"seconds_session\": {:.2}, \"ratio\": {:.3}}}",
        median(&seconds[0]),
        median(&seconds[1]),
        median(&ratios)
    );
}

/// Seconds, and how many files.
async fn written(session: &ForebayContext, on_workers: bool) -> (f64, usize) {
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("out");
    let copy = format!(
        "COPY (SELECT id, vector_of(id) AS vector FROM t) TO '{}/' STORED AS PARQUET",
        to.display()
    );
    let plan = session.sql(&format!("EXPLAIN {copy}")).await.unwrap().collect().await.unwrap();
    let plan = pretty_format_batches(&plan).unwrap().to_string();
    // Nothing goes through blocks.
    assert_eq!(plan.contains("direct=true"), on_workers, "{plan}");
    let start = Instant::now();
    assert_eq!(count(session, &copy).await, ROWS as u64);
    let seconds = start.elapsed().as_secs_f64();
    let files = std::fs::read_dir(&to).unwrap().count() - 1;
    check(&to).await;
    (seconds, files)
}

async fn count(session: &ForebayContext, copy: &str) -> u64 {
    let batches = session.sql(copy).await.unwrap().collect().await.unwrap();
    batches[0].column(0).as_primitive::<arrow::datatypes::UInt64Type>().value(0)
}

/// Each row is there once.
async fn check(folder: &Path) {
    let session = SessionContext::new();
    let options = ParquetReadOptions::default();
    session.register_parquet("found", folder.to_str().unwrap(), options).await.unwrap();
    let query = "SELECT CAST(count(*) + count(DISTINCT id) + max(id) AS BIGINT) FROM found";
    let found = session.sql(query).await.unwrap().collect().await.unwrap();
    assert_eq!(found[0].column(0).as_primitive::<Int64Type>().value(0), 3 * ROWS - 1);
}

/// `vector_of(id)`: numbers that no compression makes fewer.
pub(super) fn vector_of() -> ScalarUDF {
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let kind = DataType::FixedSizeList(Arc::clone(&item), DIMENSIONS as i32);
    let run = move |args: &[ColumnarValue]| {
        let ids = ColumnarValue::values_to_arrays(args)?;
        let ids = ids[0].as_primitive::<Int64Type>();
        let bytes = noise(ids.len() * DIMENSIONS * size_of::<f32>(), ids.values());
        // A copy: where the noise begins is no place for numbers.
        let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let values = Float32Array::from_iter_values(numbers);
        let vectors = FixedSizeListArray::try_new(
            Arc::clone(&item),
            DIMENSIONS as i32,
            Arc::new(values),
            None,
        )?;
        Ok(ColumnarValue::Array(Arc::new(vectors) as ArrayRef))
    };
    create_udf("vector_of", vec![DataType::Int64], kind, Volatility::Immutable, Arc::new(run))
}
