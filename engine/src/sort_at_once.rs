//! A sort of rows that fit into memory, all at once.
//!
//! DataFusion's sort orders batch by batch, and merges the batches: each row's keys are computed twice and its values
//! copied one by one, unless all is less than a megabyte. Rows that are known to be few are cheaper to put together first.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use futures::StreamExt;

use crate::outside::{SideExec, within_options};
use crate::sorted_rows::{SORTED_AT_ONCE_MAX, cast_columns, has_common_values, without_views};

type Plan = Arc<dyn ExecutionPlan>;

/// Rows of all partitions in the order that `order` has for rows of a schema; of more than fit, runs go to disk, as with
/// any sort. Keys are computed once, by those who read. Texts are sorted themselves, not as views, and have keys as such:
/// each batch of rows that are sorted at once counts all that they show. Dictionaries, and views in nested values, would
/// count so as well: such rows are sorted as usual.
///
/// # Errors
/// Those of the order, of the input, and of the sort.
pub fn sort_at_once(
    input: Plan,
    order: impl Fn(&Schema) -> Result<LexOrdering>,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let schema = input.schema();
    let stored = without_views(&schema).unwrap_or_else(|| schema.as_ref().clone());
    if has_common_values(&stored) {
        return sort_in_parts(input, &order(&schema)?, context);
    }
    let texts: Plan = Arc::new(ProjectionExec::try_new(cast_columns(&schema, &stored), input)?);
    let mut columns = cast_columns(&stored, &stored);
    let mut keys = vec![];
    for key in order(&stored)? {
        let name = format!("key {}", keys.len());
        let column = Arc::new(Column::new(&name, columns.len()));
        keys.push(PhysicalSortExpr::new(column, key.options));
        columns.push((Arc::clone(&key.expr), name));
    }
    let mut rows: Plan = Arc::new(ProjectionExec::try_new(columns, texts)?);
    if rows.output_partitioning().partition_count() > 1 {
        rows = Arc::new(CoalescePartitionsExec::new(rows));
    }
    let Some(keys) = LexOrdering::new(keys) else { return internal_err!("an order without keys") };
    let sort: Plan = Arc::new(SortExec::new(keys, SideExec::over(rows)));
    let columns = cast_columns(&sort.schema(), &schema);
    let sorted = ProjectionExec::try_new(columns, sort)?;
    let context = within_options(context, |options| {
        options.execution.sort_in_place_threshold_bytes = SORTED_AT_ONCE_MAX;
    });
    let rows = sorted.execute(0, context)?;
    // What fields know beside their types was not cast with them.
    let of = Arc::clone(&schema);
    let rows = rows.map(move |rows| Ok(rows?.with_schema(Arc::clone(&of))?));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// The same as usual: each partition by itself, and the first rows before the last are in order.
///
/// # Errors
/// Those of the input, and of the sort.
pub fn sort_in_parts(
    input: Plan,
    order: &LexOrdering,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let is_parted = input.output_partitioning().partition_count() > 1;
    let sort = Arc::new(SortExec::new(order.clone(), input).with_preserve_partitioning(is_parted));
    if !is_parted {
        return execute_stream(sort, context);
    }
    execute_stream(Arc::new(SortPreservingMergeExec::new(order.clone(), sort)), context)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
    use arrow::compute::cast;
    use arrow::datatypes::{DataType, Int64Type};
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_expr::expressions::col;
    use futures::TryStreamExt;

    use super::*;

    const PARTITIONS: i64 = 3;
    const BATCHES: i64 = 20;
    const ROWS: i64 = 1000;

    /// Numbers in no order, of which none is twice.
    fn id(row: i64) -> i64 {
        row.wrapping_mul(0x1E37_79B9_7F4A_7C15)
    }

    fn text(id: i64) -> String {
        format!("{id:+040}")
    }

    fn batch(first: i64, kind: &DataType) -> RecordBatch {
        let ids = Int64Array::from_iter_values((first..first + ROWS).map(id));
        let texts = StringArray::from_iter_values(ids.values().iter().map(|id| text(*id)));
        let texts = cast(&texts, kind).unwrap();
        RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("text", texts)]).unwrap()
    }

    /// The texts of all rows, sorted by their numbers.
    async fn sorted(kind: &DataType, bytes: usize) -> Result<Vec<String>> {
        let first = |partition, batch| (partition * BATCHES + batch) * ROWS;
        let partition =
            |at| (0..BATCHES).map(|batch_at| batch(first(at, batch_at), kind)).collect();
        let partitions: Vec<Vec<RecordBatch>> = (0..PARTITIONS).map(partition).collect();
        let schema = partitions[0][0].schema();
        let input = MemorySourceConfig::try_new_exec(&partitions, Arc::clone(&schema), None)?;
        let order =
            |schema: &Schema| Ok([PhysicalSortExpr::new_default(col("text", schema)?)].into());
        let pool = Arc::new(GreedyMemoryPool::new(bytes));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
        let context = Arc::new(TaskContext::default().with_runtime(runtime));
        let mut rows = sort_at_once(input, order, context)?;
        let mut found = vec![];
        while let Some(batch) = rows.try_next().await? {
            let ids = batch.column(0).as_primitive::<Int64Type>().values();
            let texts = cast(batch.column(1), &DataType::Utf8)?;
            for (id, found) in ids.iter().zip(texts.as_string::<i32>()) {
                assert_eq!(found, Some(text(*id).as_str()), "a text of another row");
            }
            found.extend(texts.as_string::<i32>().iter().flatten().map(str::to_owned));
        }
        Ok(found)
    }

    /// 60,000 rows take 3 MB.
    #[tokio::test]
    async fn rows_are_in_order_in_as_much_memory_as_there_is() {
        let rows = 0..PARTITIONS * BATCHES * ROWS;
        let mut expected: Vec<String> = rows.map(|row| text(id(row))).collect();
        expected.sort_unstable();
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for kind in [DataType::Utf8, DataType::LargeUtf8, dictionary, DataType::Utf8View] {
            for bytes in [24 << 20, 40 << 20, 1 << 30] {
                let found = sorted(&kind, bytes).await.unwrap();
                assert!(found == expected, "{kind} in {bytes} bytes");
            }
        }
    }
}
