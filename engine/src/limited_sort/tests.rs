//! Sorts in little memory, against a sort of the keys themselves.

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_plan::collect;

use super::*;

const BATCHES: i64 = 10;
const ROWS: i64 = 4000;

/// Rows sorted by these columns in so much memory, and how often they went to disk.
async fn sorted(
    batches: Vec<RecordBatch>,
    keys: &[&str],
    bytes: usize,
) -> Result<(Vec<RecordBatch>, usize)> {
    let schema = batches[0].schema();
    let key = |name: &&str| Ok(PhysicalSortExpr::new_default(col(name, &schema)?));
    let keys = keys.iter().map(key).collect::<Result<Vec<_>>>()?;
    let input = MemorySourceConfig::try_new_exec(&[batches], Arc::clone(&schema), None)?;
    let sort: Plan = Arc::new(SortExec::new(LexOrdering::new(keys).unwrap(), input));
    let sort = LimitedSortExec::in_place_of(sort)?.data;
    let pool = Arc::new(GreedyMemoryPool::new(bytes));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
    let mut config = datafusion::prelude::SessionConfig::new();
    config.options_mut().execution.sort_spill_reservation_bytes = 64 << 10;
    let context = TaskContext::default().with_runtime(runtime).with_session_config(config);
    let rows = collect(Arc::clone(&sort), Arc::new(context)).await?;
    let spills = sort.metrics().and_then(|metrics| metrics.spill_count()).unwrap_or(0);
    Ok((rows, spills))
}

/// Numbers in no order, of which every second batch has some that are NULL, and a text for each.
fn batches(kind: &DataType) -> Vec<RecordBatch> {
    let batch = |at: i64| {
        let number = |row: i64| {
            let id = (at * ROWS + row).wrapping_mul(0x1E37_79B9_7F4A_7C15);
            (at % 2 == 0 || row % 9 > 0).then_some(id >> 20)
        };
        let numbers: Int64Array = (0..ROWS).map(number).collect();
        let texts = numbers.iter().map(|number| format!("{number:?} {}", "x".repeat(100)));
        let texts = cast(&StringArray::from_iter_values(texts), kind).unwrap();
        let numbers: ArrayRef = Arc::new(numbers);
        RecordBatch::try_from_iter_with_nullable([("n", numbers, true), ("text", texts, true)])
    };
    (0..BATCHES).map(|at| batch(at).unwrap()).collect()
}

fn numbers(rows: &[RecordBatch]) -> Vec<Option<i64>> {
    rows.iter().flat_map(|rows| rows.column(0).as_primitive::<Int64Type>()).collect()
}

/// Numbers twice, as `SELECT n, n AS twin` has them: of two columns with one buffer, rows that are put together have two.
#[tokio::test]
async fn columns_that_have_a_buffer_in_common_may_be_sorted_in_little_memory() {
    let twice = |rows: &RecordBatch| {
        let numbers = rows.column(0);
        let columns = ["n", "twin", "third"].map(|name| (name, Arc::clone(numbers), true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    };
    let rows: Vec<_> = batches(&DataType::Utf8).iter().map(twice).collect();
    let mut expected = numbers(&rows);
    expected.sort_unstable_by_key(|number| (number.is_some(), *number));
    for bytes in (600..2_400).step_by(150).map(|thousands| thousands << 10) {
        let found = sorted(rows.clone(), &["n"], bytes).await;
        let (found, _) = found.unwrap_or_else(|error| panic!("{bytes}: {error}"));
        assert!(numbers(&found) == expected, "in {bytes} bytes");
    }
    let (_, spills) = sorted(rows, &["n"], 700 << 10).await.unwrap();
    assert!(spills > 0, "all of it fits");
}

#[tokio::test]
async fn rows_are_in_order_wherever_memory_ends() {
    let mut spills = 0;
    for kind in [DataType::Utf8View, DataType::LargeUtf8] {
        let rows = batches(&kind);
        let mut expected = numbers(&rows);
        expected.sort_unstable_by_key(|number| (number.is_some(), *number));
        for bytes in (2_000..16_000).step_by(613).map(|thousands| thousands << 10) {
            for keys in [&["n"][..], &["n", "text"]] {
                let found = sorted(rows.clone(), keys, bytes).await;
                let (found, spilled) = found.unwrap_or_else(|error| panic!("{bytes}: {error}"));
                assert!(numbers(&found) == expected, "{kind} by {keys:?} in {bytes} bytes");
                let texts: Vec<_> = found
                    .iter()
                    .map(|rows| cast(rows.column(1), &DataType::LargeUtf8).unwrap())
                    .collect();
                let texts = texts.iter().flat_map(|texts| texts.as_string::<i64>());
                for (number, text) in expected.iter().zip(texts) {
                    assert!(text.unwrap().starts_with(&format!("{number:?} ")), "another row's");
                }
                spills += spilled;
            }
        }
    }
    assert!(spills > 50, "{spills} spills: all of it fits");
}
