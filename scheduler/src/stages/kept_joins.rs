//! Joins that Ballista's planner leaves as they are.
//!
//! Of a join whose sides are dealt out by hash it would still have all tasks read the smaller one, by an
//! estimate of bytes from the rows and the types. But to deal out both sides was decided when the rules for
//! distribution had not run yet, and is part of the plan: that side would go through files twice, the other
//! one once for nothing, and each task would build the whole table. So the planner does not see such joins.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, Distribution, ExecutionPlan,
    InputDistributionRequirements, PlanProperties, StatisticsArgs, replace_children_if_necessary,
};

/// A join of which both sides are dealt out by hash. In plans while they are cut, never in those that run.
#[derive(Debug)]
struct KeptJoin(Arc<dyn ExecutionPlan>);

/// Hides such a join. One that must know of all NULLs is left to the planner, which gives it one task.
pub(super) fn hidden(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let is_kept = |join: &HashJoinExec| {
        *join.partition_mode() == PartitionMode::Partitioned && !join.null_aware
    };
    Ok(if plan.downcast_ref().is_some_and(is_kept) {
        Transformed::yes(Arc::new(KeptJoin(plan)))
    } else {
        Transformed::no(plan)
    })
}

/// Undoes [`hidden`].
pub(super) fn shown(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    Ok(match plan.downcast_ref::<KeptJoin>() {
        Some(kept) => Transformed::yes(Arc::clone(&kept.0)),
        None => Transformed::no(plan),
    })
}

impl DisplayAs for KeptJoin {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(format, f)
    }
}

/// All that a rule may ask is the join's.
impl ExecutionPlan for KeptJoin {
    fn name(&self) -> &'static str {
        "KeptJoin"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.0.input_distribution_requirements()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.0.required_input_ordering()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.0.maintains_input_order()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.0.benefits_from_input_partitioning()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.0.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self(replace_children_if_necessary(Arc::clone(&self.0), children)?)))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.0.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.0.statistics_from_inputs(inputs, args)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("KeptJoin stands in for a HashJoinExec while a plan is cut")
    }
}
