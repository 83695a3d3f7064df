//! Rows under an explanation: what `EXPLAIN` and `EXPLAIN ANALYZE` say besides the plan.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::common::format::ExplainFormat;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt};

/// What is said under an explanation.
#[async_trait]
pub trait Notes: fmt::Debug + Send + Sync {
    /// The explanation's rows as they are shown.
    ///
    /// # Errors
    /// None that the rows' types do not cause.
    fn shown(&self, rows: RecordBatch) -> Result<RecordBatch> {
        Ok(rows)
    }

    /// Kind and text of each row under them. Asked when all of `explanation` has been read: what
    /// `EXPLAIN ANALYZE` explains has run by then.
    ///
    /// # Errors
    /// Of whoever is asked for them.
    async fn under(&self, explanation: &dyn ExecutionPlan) -> Result<Vec<(&'static str, String)>>;
}

/// An explanation, and notes under it. It stays in the process in which the query was asked.
///
/// Rows: the input's as they are [shown](Notes::shown), then the notes. Order: as here.
#[derive(Debug)]
pub struct NotedExec {
    input: Arc<dyn ExecutionPlan>,
    notes: Arc<dyn Notes>,
}

impl NotedExec {
    /// Adds notes to `input`, whose rows are a kind and a text.
    pub fn new(input: Arc<dyn ExecutionPlan>, notes: Arc<dyn Notes>) -> Self {
        Self { input, notes }
    }
}

/// Whether an explanation may have notes: programs that read JSON or graphs get the one document that they
/// expect.
pub fn is_for_people(format: &ExplainFormat) -> bool {
    matches!(format, ExplainFormat::Indent | ExplainFormat::Tree)
}

fn batch_of(schema: SchemaRef, notes: Vec<(&'static str, String)>) -> Result<Option<RecordBatch>> {
    if notes.is_empty() {
        return Ok(None);
    }
    let (kinds, texts): (Vec<_>, Vec<_>) = notes.into_iter().unzip();
    let columns: Vec<ArrayRef> =
        vec![Arc::new(StringArray::from(kinds)), Arc::new(StringArray::from(texts))];
    Ok(Some(RecordBatch::try_new(schema, columns)?))
}

impl DisplayAs for NotedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotedExec")
    }
}

impl ExecutionPlan for NotedExec {
    fn name(&self) -> &'static str {
        "NotedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self::new(input, Arc::clone(&self.notes)))),
            Err(children) => internal_err!("NotedExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let (schema, notes) = (self.schema(), Arc::clone(&self.notes));
        let explained = self.input.execute(partition, context)?;
        let explained = explained.map(move |rows| notes.shown(rows?));
        let (explanation, notes) = (Arc::clone(&self.input), Arc::clone(&self.notes));
        let last_schema = Arc::clone(&schema);
        // Polled when the explanation has ended.
        let last = futures::stream::once(async move {
            batch_of(last_schema, notes.under(explanation.as_ref()).await?)
        });
        let rows = explained.chain(last.try_filter_map(|rows| std::future::ready(Ok(rows))));
        let rows = rows.try_filter(|rows| std::future::ready(rows.num_rows() > 0));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}
