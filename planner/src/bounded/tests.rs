use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::executor::block_on;

use super::*;

/// Rows of a query whose functions are bounded, or are as they are.
async fn rows(query: &str, is_bounded: bool) -> Result<Vec<RecordBatch>> {
    let config = SessionConfig::new().with_target_partitions(1);
    let context = SessionContext::new_with_config(config);
    let plan = context.state().create_logical_plan(query).await?;
    let plan = if is_bounded { bound(plan)? } else { plan };
    let state = context.state();
    let physical = || block_on(state.create_physical_plan(&plan));
    let plan = if is_bounded { with_budget(physical) } else { physical() }?;
    collect(plan, context.task_ctx()).await
}

/// Calls of each function, whose columns are `n` (0 to 99), `s` (text of n characters) and `a` (a list
/// of n numbers).
const CALLS: &[&str] = &[
    "s || n || NULL",
    "s || 'ä' || n",
    "array_append(a, n)",
    "array_concat(a, a, [n])",
    "a || a",
    "array_prepend(n, a)",
    "array_repeat(s, n)",
    "list_repeat(a, n)",
    "array_replace(a, 3, n)",
    "array_replace_all(a, 3, n)",
    "array_replace_n(a, 3, n, 2)",
    "array_resize(a, n * 2)",
    "array_resize(a, n * 2, n)",
    "array_to_string(a, s)",
    "array_to_string([a, a], s, 'null')",
    "array_union(a, [n])",
    "arrays_zip(a, a)",
    "concat(s, 'ä', n)",
    "concat_ws(s, 'a', s, 'b')",
    "generate_series(n)",
    "generate_series(n, n * 3, 2)",
    "generate_series(100, n, -3)",
    "lpad(s, n * 2, 'ä')",
    "rpad(s, n * 2)",
    "[s, s, 'x']",
    "overlay(s placing 'long text' from 1)",
    "range(n)",
    "range(-n, n)",
    "range(DATE '2020-01-31', DATE '2021-03-01', INTERVAL '1 month')",
    "range(TIMESTAMP '2020-01-31 10:00:00', TIMESTAMP '2020-02-01', INTERVAL '7 minutes')",
    "regexp_replace(s, 'x', 'yy')",
    "regexp_replace(s, '', 'yy', 'g')",
    "regexp_replace(s, '(x+)', '$1$1', 'g')",
    "repeat(s, n)",
    "replace(s, 'x', 'a longer one')",
    "replace(s, '', 'y')",
];

#[tokio::test]
async fn what_is_within_bounds_is_as_it_was() {
    for call in CALLS {
        let query = format!(
            "SELECT n, {call} AS made FROM (SELECT value AS n, repeat('x', value) AS s, \
             range(value) AS a FROM generate_series(0, 99)) ORDER BY n"
        );
        let expected = rows(&query, false).await.unwrap_or_else(|e| panic!("{call}: {e}"));
        let found = rows(&query, true).await.unwrap_or_else(|e| panic!("{call}: {e}"));
        assert_eq!(found, expected, "{call}");
    }
}

/// What a function makes is no more than was said before.
#[tokio::test]
async fn most_is_the_most() {
    let context = SessionContext::new();
    let table = "SELECT value AS n, repeat('x', value) AS s, range(value) AS a FROM \
                 generate_series(0, 99) ORDER BY value";
    let table = context.sql(table).await.unwrap();
    for call in CALLS {
        let expr = table.parse_sql_expr(call).unwrap();
        let plan = table.clone().select(vec![expr.alias("made")]).unwrap();
        let plan = bound(plan.into_unoptimized_plan()).unwrap();
        let LogicalPlan::Projection(projection) = &plan else { unreachable!("{plan}") };
        let mut calls = vec![];
        projection.expr[0]
            .apply(|expr| {
                calls.extend(match expr {
                    Expr::ScalarFunction(call) => Some(call.clone()),
                    _ => None,
                });
                Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
            })
            .unwrap();
        assert!(!calls.is_empty(), "{call} calls nothing that is bounded");
        for call in calls.iter().filter(|call| most::of(call.func.name()).is_some()) {
            let args = call.args.iter().enumerate();
            let args = args.map(|(at, arg)| arg.clone().alias(format!("arg{at}")));
            let whole = Expr::ScalarFunction(call.clone()).alias("whole");
            let all = table.clone().select(args.chain([whole]).collect::<Vec<_>>()).unwrap();
            for batch in all.collect().await.unwrap() {
                check_row_by_row(call.func.name(), &batch);
            }
        }
    }
}

/// The last column is what the function made of the others.
fn check_row_by_row(name: &str, batch: &RecordBatch) {
    use datafusion::logical_expr::ColumnarValue;
    let (made, args) = batch.columns().split_last().unwrap();
    let columns = args.iter().map(|arg| most::Column::of(&ColumnarValue::Array(Arc::clone(arg))));
    let columns: Vec<_> = columns.collect::<Result<_>>().unwrap();
    let added = most::of(name).unwrap();
    for at in 0..batch.num_rows() {
        // Offsets and bits of nulls, which are there however small the values are.
        let least = 16 * columns.len().max(1) as u64;
        let bytes = forebay_engine::weight::array_bytes(&made.slice(at, 1)) as u64;
        let said = most::Row { columns: &columns, at }.most(added);
        assert!(bytes <= said + least, "{name}, row {at}: {bytes} bytes, {said} were said");
    }
}

#[tokio::test]
async fn what_would_be_too_much_is_refused() {
    let calls = [
        "repeat(repeat('x', 1000000), 1000000)",
        "repeat('x', '1000000000'::bigint)",
        "lpad('x', 1000000000::bigint)",
        "rpad('x', (SELECT 1000000000))",
        "replace(repeat('x', 1000000), 'x', repeat('y', 1000000))",
        "regexp_replace(repeat('x', 1000000), '.', repeat('y', 1000000), 'g')",
        "array_repeat(range(1000000), 1000000)",
        "array_resize([1], 1000000000)",
        "array_to_string(range(1000000), repeat('x', 1000000))",
        "concat_ws(repeat('x', 7000000), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, \
         19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)",
        "range(1000000000)",
        "generate_series(1, 9223372036854775807)",
        "range(TIMESTAMP '1900-01-01', TIMESTAMP '2100-01-01', INTERVAL '1 microsecond')",
        "generate_series(DATE '2020-01-01', DATE '2021-01-01', INTERVAL '1 month -31 days')",
    ];
    for call in calls {
        for query in [
            format!("SELECT {call}"),
            format!("SELECT {call} FROM generate_series(1, 3)"),
            format!("SELECT 1 WHERE {call} IS NOT NULL"),
        ] {
            let error = rows(&query, true).await.expect_err(&query);
            let root = error.find_root();
            assert!(matches!(root, DataFusionError::ResourcesExhausted(_)), "{query}: {error}");
            assert!(error.to_string().contains("would make more than 268435456 bytes"), "{error}");
        }
    }
}

#[tokio::test]
async fn doubling_ends() {
    for double in ["c || c", "concat(c, c)"] {
        let tables = (1..40).map(|at| format!("t{at} AS (SELECT {double} AS c FROM t{})", at - 1));
        let tables = tables.collect::<Vec<_>>().join(", ");
        let query = format!(
            "WITH t0 AS (SELECT repeat('x', value) AS c FROM generate_series(100000, 100002)), {tables} \
             SELECT length(c) FROM t39"
        );
        let error = rows(&query, true).await.expect_err(double).to_string();
        assert!(error.contains("would make more than"), "{double}: {error}");
    }
}

/// Rows that are too much at once are computed in parts, and then refused for what they are together.
#[tokio::test]
async fn batches_are_computed_in_halves() {
    let query = "SELECT sum(length(regexp_replace(s, 'q', repeat('y', 4000000), 'g'))) FROM (SELECT \
                 repeat('x', value) AS s FROM generate_series(1, 16))";
    // By what a pattern could match this is too much, and by what it does match it is not.
    let sum = rows(query, true).await.unwrap();
    assert_eq!(sum[0].column(0).as_primitive::<Int64Type>().value(0), (1..=16).sum::<i64>());
    let query = "SELECT sum(length(repeat(s, 2000000))) FROM (SELECT repeat('x', value) AS s FROM \
                 generate_series(1, 100))";
    let error = rows(query, true).await.unwrap_err().to_string();
    assert!(error.contains("repeat would make more than") && error.contains("rows"), "{error}");
}

#[tokio::test]
async fn constants_have_a_budget() {
    let call = "length(repeat('x', 30000000))";
    let query = format!("SELECT {call}, {call} + 1, {call} + 2, {call} + 3");
    // What is not computed while planning is computed later.
    rows(&query, true).await.unwrap();
    let left = with_budget(|| [takes(CONSTANTS_MAX), takes(1)]);
    assert_eq!(left, [true, false]);
    assert!(takes(u64::MAX), "there is no budget elsewhere");
}
