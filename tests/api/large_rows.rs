//! Functions that make rows large are computed a few rows at a time, also right above a file.

use arrow::array::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::SessionConfig;
use forebay::{Catalog, ForebayContext, Inventory};
use forebay_engine::weight;

const MIB: usize = 1 << 20;

#[tokio::test]
async fn rows_from_a_file_are_made_large_a_few_at_a_time() {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.parquet").display().to_string();
    let rows = "SELECT value AS id, 'a text' AS text FROM generate_series(1, 100) AS s (value)";
    for statement in [
        format!("COPY ({rows}) TO '{file}' STORED AS PARQUET"),
        format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{file}'"),
    ] {
        forebay.sql(&statement).await.unwrap().collect().await.unwrap();
    }
    let frame = forebay.sql("SELECT id, repeat(text, 174762) AS large FROM t").await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    let text = displayable(plan.as_ref()).indent(true).to_string();
    assert!(text.contains("BoundedProjectionExec: expr=[id@0 as id, repeat("), "{text}");
    let batches = collect(plan, forebay.session().task_ctx()).await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 100);
    let largest = batches.iter().map(weight::bytes).max().unwrap();
    assert!((2 * MIB..=8 * MIB).contains(&largest), "{largest} bytes in a batch");
}

/// Offsets of 32 bits end at 2 GiB, so the rows of one batch for the model would not fit into one array if
/// batches were not bounded by bytes too. The rows differ: a constant is repeated by DataFusion itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_more_than_2_gib_pass_a_model() {
    const ROWS: usize = 9;
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(1))
        .build()
        .unwrap();
    forebay.register_model("echo", "tests/models/echo").await.unwrap();
    for kind in ["Utf8", "LargeUtf8", "Utf8View"] {
        let sql = format!(
            "SELECT count(digest), sum(octet_length(text)) FROM ml_predict((SELECT value, arrow_cast(\
             repeat(substr('abcdefghi', value + 1, 1), 300000000), '{kind}') AS text \
             FROM range(0, {ROWS})), MODEL echo, DESCRIPTOR(value), max_batch_rows => 16, \
             batch_window_rows => 64)"
        );
        let rows = async { forebay.sql(&sql).await?.collect().await }.await;
        let rows = rows.unwrap_or_else(|error| panic!("{kind}: {error}"));
        let found = pretty_format_batches(&rows).unwrap().to_string();
        assert!(found.contains(&format!("| {} ", 300_000_000 * ROWS)), "{kind}: {found}");
    }
}
