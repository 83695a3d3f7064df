//! The operator.

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, replace_children_if_necessary};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, StatisticsArgs,
};
use futures::StreamExt;

use super::pace::Pace;
use super::steps::{self, Steps};
use crate::claimed_order::in_claimed_order;
use crate::weight;

/// A projection that computes a few rows at a time where a function may make them large.
///
/// Meant for plans that are optimized: DataFusion's rules for sorting and filters take a projection's
/// place for that of an operator whose columns are its input's, unless it is a [`ProjectionExec`].
///
/// - Rows, order, partitions, columns: a [`ProjectionExec`]'s; batches are cut so that one, with
///   what lies between its functions, takes about 8 MiB, or is one row.
/// - Memory: one batch of the input, and such a batch.
/// - Errors: those of its expressions.
#[derive(Clone, Debug)]
pub struct BoundedProjectionExec {
    /// What it computes. Never executed itself.
    projection: Arc<ProjectionExec>,
    steps: Arc<Steps>,
    metrics: ExecutionPlanMetricsSet,
}

impl BoundedProjectionExec {
    /// The same projection within bounds.
    ///
    /// # Errors
    /// If an expression does not fit the input, which a planned projection's does.
    pub fn try_new(projection: Arc<ProjectionExec>) -> Result<Self> {
        let steps = Arc::new(Steps::of(projection.expr(), projection.input().schema())?);
        Ok(Self { projection, steps, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// Whether a projection has a function whose results may be large.
    pub fn is_worthwhile(projection: &ProjectionExec) -> bool {
        steps::is_worthwhile(projection.expr())
    }

    /// The same without bounds.
    pub fn projection(&self) -> &Arc<ProjectionExec> {
        &self.projection
    }
}

impl DisplayAs for BoundedProjectionExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(format, DisplayFormatType::Default | DisplayFormatType::Verbose) {
            write!(f, "Bounded")?;
        }
        self.projection.fmt_as(format, f)
    }
}

impl ExecutionPlan for BoundedProjectionExec {
    fn name(&self) -> &'static str {
        "BoundedProjectionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.projection.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.projection.children()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.projection.benefits_from_input_partitioning()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.projection.apply_expressions(f)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let projection: Arc<dyn ExecutionPlan> = Arc::clone(&self.projection) as _;
        let projection = replace_children_if_necessary(projection, children)?;
        match projection.downcast_ref::<ProjectionExec>() {
            Some(projection) => Ok(Arc::new(Self::try_new(Arc::new(projection.clone()))?)),
            None => internal_err!("expected a ProjectionExec, found {}", projection.name()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let slices = Slices {
            input: self.projection.input().execute(partition, context)?,
            current: None,
            pace: Pace::new(),
            steps: Arc::clone(&self.steps),
            schema: self.schema(),
            baseline: BaselineMetrics::new(&self.metrics, partition),
        };
        let stream = futures::stream::try_unfold(slices, |mut slices| async move {
            Ok(slices.next().await?.map(|batch| (batch, slices)))
        });
        let stream = Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream));
        Ok(in_claimed_order(self, stream))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.projection.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.projection.statistics_from_inputs(input, args)
    }

    fn supports_limit_pushdown(&self) -> bool {
        self.projection.supports_limit_pushdown()
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// One partition.
struct Slices {
    input: SendableRecordBatchStream,
    /// What is left of the input's batch.
    current: Option<RecordBatch>,
    pace: Pace,
    steps: Arc<Steps>,
    schema: SchemaRef,
    baseline: BaselineMetrics,
}

impl Slices {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (batch, is_whole) = match self.current.take() {
            Some(rest) => (rest, false),
            None => match self.input.next().await.transpose()? {
                Some(batch) => (batch, true),
                None => return Ok(None),
            },
        };
        tokio::task::coop::consume_budget().await;
        let rows = batch.num_rows().min(self.pace.rows());
        let left = batch.num_rows() - rows;
        if is_whole && left == 0 {
            return self.compute(batch).map(Some);
        }
        // Functions of lists go over all that the array holds, and arrow 59's cast to lists of a fixed
        // size takes the array's first values for the slice's (apache/arrow-rs#10975). Whoever reserves
        // memory above counts it all for each slice.
        let slice = weight::owned(&batch.slice(0, rows))?;
        self.current = (left > 0).then(|| batch.slice(rows, left));
        self.compute(slice).map(Some)
    }

    fn compute(&mut self, slice: RecordBatch) -> Result<RecordBatch> {
        let _timer = self.baseline.elapsed_compute().timer();
        let rows = slice.num_rows();
        let (columns, bytes) = self.steps.compute(slice)?;
        self.pace.learn(rows, bytes);
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        Ok(batch.record_output(&self.baseline))
    }
}
