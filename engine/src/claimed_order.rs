//! The order that an operator claims for its output, checked on its rows in tests and debug builds.
//!
//! Nobody sorts what is claimed to be sorted: a merge or a window that is told wrong gives wrong rows,
//! and no error. A release build compiles it to nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{Stream, StreamExt};

/// The rows of a partition of `plan`, checked against all orders that the plan claims.
pub fn in_claimed_order(
    plan: &dyn ExecutionPlan,
    stream: SendableRecordBatchStream,
) -> SendableRecordBatchStream {
    let claimed = plan.equivalence_properties().oeq_class().iter();
    claimed.fold(stream, |stream, order| in_order(plan.name(), order, stream))
}

/// Rows that `operator` says are in this order.
pub fn in_order(
    operator: &str,
    order: &LexOrdering,
    stream: SendableRecordBatchStream,
) -> SendableRecordBatchStream {
    if !cfg!(debug_assertions) {
        return stream;
    }
    let (operator, order, schema) = (operator.to_owned(), order.clone(), stream.schema());
    let fields = order.iter().map(|key| {
        let data_type = key.expr.data_type(&schema)?;
        Ok(SortField::new_with_options(data_type, key.options))
    });
    let rows = fields.collect::<Result<_>>().and_then(|fields| Ok(RowConverter::new(fields)?));
    // What cannot be compared row by row is not checked.
    let Ok(rows) = rows else { return stream };
    Box::pin(Ordered { operator, order, schema, rows, last: None, stream })
}

struct Ordered {
    operator: String,
    order: LexOrdering,
    schema: SchemaRef,
    rows: RowConverter,
    /// Of all batches until now.
    last: Option<OwnedRow>,
    stream: SendableRecordBatchStream,
}

impl Ordered {
    fn check(&mut self, batch: &RecordBatch) -> Result<()> {
        let count = batch.num_rows();
        let keys = self.order.iter().map(|key| key.expr.evaluate(batch)?.into_array(count));
        let rows = self.rows.convert_columns(&keys.collect::<Result<Vec<_>>>()?)?;
        for (at, row) in rows.iter().enumerate() {
            let before = match at {
                0 => self.last.as_ref().map(OwnedRow::row),
                _ => Some(rows.row(at - 1)),
            };
            if before.is_some_and(|before| before > row) {
                return internal_err!(
                    "{}: claims the order [{}], and row {at} of a batch comes after a greater one",
                    self.operator,
                    self.order
                );
            }
        }
        if count > 0 {
            self.last = Some(rows.row(count - 1).owned());
        }
        Ok(())
    }
}

impl Stream for Ordered {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready(item) = self.stream.poll_next_unpin(cx) else { return Poll::Pending };
        Poll::Ready(item.map(|item| {
            let batch = item?;
            self.check(&batch).map(|()| batch)
        }))
    }
}

impl RecordBatchStream for Ordered {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use arrow::compute::SortOptions;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::datasource::source::DataSourceExec;
    use datafusion::execution::memory_pool::UnboundedMemoryPool;
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;
    use tempfile::TempDir;

    use super::*;
    use crate::TransformExec;
    use crate::testing::{collect_all, context, emulated_model, numbers, with_package};

    /// What a transform gives over a table that says it is sorted by `id` with these options.
    async fn transformed(batches: Vec<RecordBatch>, options: SortOptions) -> Result<usize> {
        let folder = TempDir::new().unwrap();
        let model = with_package(emulated_model("m"), folder.path());
        let schema = batches[0].schema();
        let table = MemorySourceConfig::try_new(&[batches], Arc::clone(&schema), None)?;
        let order = LexOrdering::new([PhysicalSortExpr::new(col("id", &schema)?, options)]);
        let table = table.try_with_sort_information(vec![order.unwrap()])?;
        let table = DataSourceExec::from_data_source(table);
        let transform = TransformExec::try_new(table, model, vec![col("value", &schema)?])?;
        let context = context(1, Arc::new(UnboundedMemoryPool::default()));
        let plan: Arc<dyn ExecutionPlan> = Arc::new(transform);
        let batches = collect_all(&plan, &context).await?;
        Ok(batches.iter().map(RecordBatch::num_rows).sum())
    }

    #[tokio::test]
    async fn an_operator_that_lies_about_its_order_is_told() {
        let (low, high) = (numbers(0..3, |_| false), numbers(3..7, |_| false));
        let (ascending, descending) = (SortOptions::default(), SortOptions::default().desc());
        let batches = vec![low.clone(), low.slice(0, 0), high.clone()];
        assert_eq!(transformed(batches, ascending).await.unwrap(), 7);
        // Within a batch, and from one to the next.
        for (batches, options) in [(vec![low.clone()], descending), (vec![high, low], ascending)] {
            let error = transformed(batches, options).await.unwrap_err().to_string();
            assert!(error.contains("TransformExec: claims the order [id@0"), "{error}");
        }
    }
}
