//! The operator that makes a write visible.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, EvaluationType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use futures::stream;

use super::attempt::Written;
use super::begun::Write;
use super::exec::written_by;
use super::target::Target;

/// Makes visible what the [`WriteExec`](super::WriteExec)s below have written, when all of them have ended well.
///
/// - rows: one, with the number of rows that were written
/// - memory: a name for each file
/// - cancel, errors: nothing has become visible, and what was written is removed; a commit that has begun
///   is not canceled, and an error after it has been decided says so
#[derive(Clone, Debug)]
pub struct CommitExec {
    input: Arc<dyn ExecutionPlan>,
    target: Arc<Target>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl CommitExec {
    /// Commits what `input` writes.
    pub fn new(input: Arc<dyn ExecutionPlan>, target: Arc<Target>) -> Self {
        Self { input, target, properties: one_count(), metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What gives a row per file.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What is written.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }
}

impl DisplayAs for CommitExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.target.kind();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "CommitExec: {what}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "{what}"),
        }
    }
}

impl ExecutionPlan for CommitExec {
    fn name(&self) -> &'static str {
        "CommitExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => {
                let metrics = self.metrics.clone();
                Ok(Arc::new(Self { metrics, ..Self::new(input, Arc::clone(&self.target)) }))
            }
            Err(children) => internal_err!("CommitExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("CommitExec has one partition, asked for {partition}");
        }
        let (commit, schema) = (self.clone(), self.schema());
        let rows = stream::once(async move {
            let rows = commit.run(context).await?;
            counted(&commit.schema(), rows)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

impl CommitExec {
    async fn run(&self, context: Arc<TaskContext>) -> Result<u64> {
        let write = Write::begin(Arc::clone(&self.target), &context).await?;
        let written = self.written(&write, context).await;
        let written = match written {
            Ok(written) => written,
            Err(error) => return Err(write.given_up(error).await),
        };
        write.commit_counted(written, &self.metrics).await
    }

    /// All files that count.
    async fn written(&self, write: &Write, context: Arc<TaskContext>) -> Result<Vec<Written>> {
        let written = written_by(Arc::clone(&self.input), write.staging(), context).await?;
        write.with_columns(written)
    }
}

/// One row with a number of rows, once something has been done.
pub(super) fn one_count() -> Arc<PlanProperties> {
    let count = Field::new("count", DataType::UInt64, false);
    let properties = PlanProperties::new(
        EquivalenceProperties::new(Arc::new(Schema::new(vec![count]))),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Final,
        Boundedness::Bounded,
    );
    Arc::new(properties.with_evaluation_type(EvaluationType::Eager))
}

/// That row.
pub(super) fn counted(schema: &SchemaRef, rows: u64) -> Result<RecordBatch> {
    let count: ArrayRef = Arc::new(UInt64Array::from(vec![rows]));
    Ok(RecordBatch::try_new(Arc::clone(schema), vec![count])?)
}
