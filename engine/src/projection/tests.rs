//! A bounded projection against DataFusion's own, and how much it computes at once.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use arrow::compute::concat_batches;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use proptest::prelude::*;

use super::BoundedProjectionExec;
use crate::weight;

const MIB: usize = 1 << 20;
/// Functions in functions, operands that must not be computed for all rows, casts, literals, columns
/// as they are, fields of structs, lists, and nothing at all.
const EXPRESSIONS: [&str; 11] = [
    "text",
    "repeat(text, 3)",
    "md5(repeat(upper(text), number))",
    "CASE WHEN number > 0 THEN repeat(text, 100 / number) ELSE 'none' END",
    "coalesce(text, repeat('x', 10 / number))",
    "CAST(concat(text, CAST(number AS VARCHAR), 'end') AS BYTEA)",
    "named_struct('a', concat(text, text), 'b', number)['a']",
    "array_append(make_array(text, reverse(text)), 'last')",
    "number + 1",
    "concat(text, 'a') || upper(text) LIKE '%A%' OR number = 1",
    "arrow_field(upper(text))['name']",
];

fn batch(rows: std::ops::Range<i64>, text: impl Fn(i64) -> Option<String>) -> RecordBatch {
    let texts: ArrayRef = Arc::new(rows.clone().map(text).collect::<StringViewArray>());
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.map(|row| row % 5)));
    RecordBatch::try_from_iter_with_nullable([("text", texts, true), ("number", numbers, false)])
        .unwrap()
}

/// Batches of so many rows each, in one partition.
fn session(sizes: &[usize]) -> SessionContext {
    let mut start = 0;
    let batches: Vec<_> = sizes
        .iter()
        .map(|rows| {
            let end = start + i64::try_from(*rows).unwrap();
            // A text of which there is none has a number that is not 0.
            let text = |row: i64| (row % 5 != 3).then(|| format!("text {row}"));
            batch(std::mem::replace(&mut start, end)..end, text)
        })
        .collect();
    let schema = batch(0..0, |_| None).schema();
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let table = MemTable::try_new(schema, vec![batches]).unwrap();
    session.register_table("t", Arc::new(table)).unwrap();
    session
}

/// DataFusion's plan of a projection, which is at its root, and the bounded one.
async fn plans(session: &SessionContext, exprs: &str) -> [Arc<dyn ExecutionPlan>; 2] {
    let frame = session.sql(&format!("SELECT {exprs} FROM t")).await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    let projection = plan.downcast_ref::<ProjectionExec>().expect("a projection at the root");
    let bounded = BoundedProjectionExec::try_new(Arc::new(projection.clone())).unwrap();
    [plan, Arc::new(bounded)]
}

async fn batches(session: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> Vec<RecordBatch> {
    collect(plan, session.task_ctx()).await.unwrap()
}

proptest! {
    #[test]
    fn it_gives_the_rows_of_a_projection(
        sizes in prop::collection::vec(0_usize..100, 0..5),
        chosen in prop::sample::subsequence(EXPRESSIONS.to_vec(), 1..=EXPRESSIONS.len()),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let session = session(&sizes);
            let named = chosen.iter().enumerate().map(|(at, expr)| format!("{expr} AS c{at}"));
            // A projection of columns alone would be the table's.
            let exprs = named.collect::<Vec<_>>().join(", ") + ", number * 2 AS doubled";
            let [plain, bounded] = plans(&session, &exprs).await;
            assert_eq!(plain.schema(), bounded.schema());
            let schema = plain.schema();
            let expected = concat_batches(&schema, &batches(&session, plain).await).unwrap();
            let found = concat_batches(&schema, &batches(&session, bounded).await).unwrap();
            assert_eq!(found, expected);
        });
    }
}

#[tokio::test]
async fn rows_that_become_large_come_a_few_at_a_time() {
    let session = session(&[64]);
    let [plain, bounded] = plans(&session, "number, repeat(coalesce(text, '-'), 150000)").await;
    let sizes = |batches: &[RecordBatch]| batches.iter().map(weight::bytes).collect::<Vec<_>>();
    let whole = sizes(&batches(&session, plain).await);
    assert!(whole[0] > 40 * MIB, "all at once: {whole:?}");
    let found = batches(&session, bounded).await;
    let largest = sizes(&found).into_iter().max().unwrap();
    assert!(largest <= 10 * MIB, "{:?}", sizes(&found));
    assert!(found[1..found.len() - 1].iter().all(|batch| batch.num_rows() > 1));
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 64);
}

#[tokio::test]
async fn what_lies_between_two_functions_counts() {
    let session = session(&[64]);
    let [_, bounded] = plans(&session, "number, md5(repeat(coalesce(text, '-'), 150000))").await;
    let found = batches(&session, bounded).await;
    let most = found.iter().map(RecordBatch::num_rows).max().unwrap();
    assert!((2..=12).contains(&most), "a row takes about a megabyte in between: {most} rows");
}

#[tokio::test]
async fn what_an_operator_takes_counts_too() {
    let session = session(&[64]);
    let exprs = "octet_length(repeat(coalesce(text, '-'), 150000)) / 1024 AS kib";
    let [_, bounded] = plans(&session, exprs).await;
    let found = batches(&session, bounded).await;
    assert!(found.iter().all(|batch| batch.num_rows() <= 12));
}

#[tokio::test]
async fn lambdas_find_their_arguments() {
    let session = session(&[20]);
    session.sql("SET datafusion.sql_parser.dialect = 'duckdb'").await.unwrap();
    let exprs =
        "md5(upper(text)) AS hash, array_transform(make_array(number, 1), x -> x + 1) AS more";
    let [plain, bounded] = plans(&session, exprs).await;
    let schema = plain.schema();
    let expected = concat_batches(&schema, &batches(&session, plain).await).unwrap();
    assert_eq!(concat_batches(&schema, &batches(&session, bounded).await).unwrap(), expected);
}

#[tokio::test]
async fn a_slice_holds_nothing_of_the_rest() {
    let session = session(&[64]);
    let [_, bounded] = plans(&session, "text, repeat(coalesce(text, '-'), 150000)").await;
    let found = batches(&session, bounded).await;
    let held = |batch: &RecordBatch| batch.column(0).get_array_memory_size();
    assert!(found.len() > 5);
    assert!(found.iter().all(|batch| held(batch) < 2000), "the texts of 64 rows");
}

#[tokio::test]
async fn small_rows_soon_come_in_whole_batches() {
    let session = session(&[8192, 8192, 8192]);
    let [_, bounded] = plans(&session, "number, upper(text)").await;
    let rows: Vec<_> = batches(&session, bounded).await.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(rows, [1, 8, 64, 512, 4096, 3511, 8192, 8192]);
}

#[tokio::test]
async fn only_functions_of_columns_with_results_of_any_size_are_bounded() {
    let session = session(&[1]);
    for (expr, expected) in [
        ("number + 1", false),
        ("octet_length(text)", false),
        ("md5('x'), number + 1", false),
        ("upper(text)", true),
        ("octet_length(repeat(text, number))", true),
        ("CASE number WHEN 0 THEN upper(text) END", true),
        ("upper(text || (SELECT max(text) FROM t))", false),
    ] {
        let frame = session.sql(&format!("SELECT {expr} FROM t")).await.unwrap();
        let mut plan = frame.create_physical_plan().await.unwrap();
        while !plan.is::<ProjectionExec>() {
            plan = Arc::clone(plan.children()[0]);
        }
        let projection = plan.downcast_ref::<ProjectionExec>().unwrap();
        assert_eq!(BoundedProjectionExec::is_worthwhile(projection), expected, "{expr}");
    }
}
