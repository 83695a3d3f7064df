//! Merges of sorted runs.
//!
//! DataFusion's merge looks up the keys of two rows for each comparison, in batches that no cache holds: of a sort of
//! 12 GB in 93 runs that was a fifth of all CPU time. Here each input's next row has the [beginning of its key](keys) in
//! the [tree](tree) that chooses among them.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, Statistics};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, replace_children_if_necessary};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, StatisticsArgs,
};

mod keys;
mod merge;
mod picked;
mod tree;

use keys::KeyOrder;
use merge::Merge;
use picked::Picked;

type Plan = Arc<dyn ExecutionPlan>;

/// A merge of all rows of sorted partitions. To everybody who looks at a plan it is DataFusion's.
///
/// - Rows: the inputs', in one partition, in their order; rows with equal keys in the order of the partitions.
/// - Memory: of each input a batch, and those before it until their rows are put together, reserved, as are keys that are
///   not columns of texts; and a batch that is asked for ahead, not reserved here.
/// - Errors: the inputs'; the pool's; if a key cannot be computed. Cancel: dropping the stream ends the inputs'.
#[derive(Debug)]
pub struct RunMergeExec {
    merge: Plan,
    metrics: ExecutionPlanMetricsSet,
}

impl RunMergeExec {
    /// This operator in the place of a merge of all rows; any other plan stays as it is. So does a merge by one number,
    /// which DataFusion compares where it is.
    ///
    /// The keys have to compare as bytes of arrow's row format do.
    pub fn in_place_of(plan: Plan) -> Transformed<Plan> {
        let is_by_number = |merge: &SortPreservingMergeExec| {
            let kind = merge.expr().first().expr.data_type(&merge.schema());
            merge.expr().len() == 1 && kind.is_ok_and(|kind| kind.is_primitive())
        };
        let merge = plan.downcast_ref::<SortPreservingMergeExec>();
        match merge.is_some_and(|merge| merge.fetch().is_none() && !is_by_number(merge)) {
            true => {
                let metrics = ExecutionPlanMetricsSet::new();
                Transformed::yes(Arc::new(Self { merge: plan, metrics }))
            }
            false => Transformed::no(plan),
        }
    }
}

impl DisplayAs for RunMergeExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.merge.fmt_as(format, f)
    }
}

impl ExecutionPlan for RunMergeExec {
    fn name(&self) -> &str {
        self.merge.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.merge.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.merge.properties()
    }

    fn required_input_distribution(&self) -> Vec<datafusion::physical_plan::Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.merge.input_distribution_requirements()
    }

    fn required_input_ordering(
        &self,
    ) -> Vec<Option<datafusion::physical_expr_common::sort_expr::OrderingRequirements>> {
        self.merge.required_input_ordering()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.merge.benefits_from_input_partitioning()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.merge.maintains_input_order()
    }

    fn children(&self) -> Vec<&Plan> {
        self.merge.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.merge.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let merge = replace_children_if_necessary(Arc::clone(&self.merge), children)?;
        Ok(Self::in_place_of(merge).data)
    }

    fn reset_state(self: Arc<Self>) -> Result<Plan> {
        Ok(Self::in_place_of(Arc::clone(&self.merge).reset_state()?).data)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let merge = self.merge.downcast_ref::<SortPreservingMergeExec>();
        let merge = merge.filter(|merge| {
            partition == 0 && merge.input().output_partitioning().partition_count() > 1
        });
        let Some(merge) = merge else { return self.merge.execute(partition, context) };
        let inputs = 0..merge.input().output_partitioning().partition_count();
        let inputs = inputs.map(|input| {
            // Runs are read while others are merged.
            Ok(spawn_buffered(merge.input().execute(input, Arc::clone(&context))?, 1))
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let (schema, batch_size) = (self.schema(), context.session_config().batch_size());
        let merge = Merge {
            order: KeyOrder::try_new(merge.expr(), &schema)?,
            picked: Picked::new(Arc::clone(&schema), inputs.len(), batch_size),
            inputs,
            batch_size,
            memory: MemoryConsumer::new(format!("{}[{partition}]", self.name()))
                .register(context.memory_pool()),
            metrics: BaselineMetrics::new(&self.metrics, partition),
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, merge.into_batches())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.merge.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.merge.statistics_from_inputs(input, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.merge.cardinality_effect()
    }
}

#[cfg(test)]
mod tests;
