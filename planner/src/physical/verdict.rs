//! The last line of `EXPLAIN ANALYZE`: the bottleneck, and what to do about it.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::format::ExplainFormat;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use forebay_engine::RunReport;
use futures::{StreamExt, TryStreamExt};

/// An [`AnalyzeExec`], and a row with the verdict on the plan that it has run.
///
/// Rows: the input's, and one more if the plan has a model. Order: the verdict comes last.
#[derive(Debug)]
pub(crate) struct VerdictExec {
    input: Arc<dyn ExecutionPlan>,
}

impl VerdictExec {
    /// The plan as it is, unless it is an `EXPLAIN ANALYZE` for people: a program that reads JSON
    /// gets the one document that it expects.
    pub(super) fn wrap(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let format = plan.downcast_ref::<AnalyzeExec>().map(AnalyzeExec::format);
        match format {
            Some(ExplainFormat::Indent | ExplainFormat::Tree) => Arc::new(Self { input: plan }),
            _ => plan,
        }
    }
}

impl DisplayAs for VerdictExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerdictExec")
    }
}

impl ExecutionPlan for VerdictExec {
    fn name(&self) -> &'static str {
        "VerdictExec"
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
            Ok([input]) => Ok(Arc::new(Self { input })),
            Err(children) => internal_err!("VerdictExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let analyzed = self.input.execute(partition, context)?;
        let (schema, plan) = (self.schema(), Arc::clone(&self.input));
        let last_schema = Arc::clone(&schema);
        // Polled when the plan has run.
        let last = futures::stream::once(async move {
            let Some(verdict) = RunReport::of(plan.as_ref()).verdict() else { return Ok(None) };
            let text = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
            let columns = vec![text("Verdict"), text(&verdict)];
            Ok(Some(RecordBatch::try_new(last_schema, columns)?))
        });
        let last = last.try_filter_map(|batch| async move { Ok(batch) });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, analyzed.chain(last))))
    }
}
