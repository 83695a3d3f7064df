//! The operator.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_datafusion_err};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, replace_children_if_necessary};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, StatisticsArgs,
};

use super::joining::Joining;
use super::shape::{Shape, Side};
use super::sides::SideExec;
use crate::claimed_order::in_claimed_order;

type Plan = Arc<dyn ExecutionPlan>;

/// A hash join that goes to disk when its build side does not fit into the memory pool.
///
/// To everybody who looks at it, it is the [`HashJoinExec`] that it holds: in EXPLAIN, to rules, and as bytes.
///
/// - Rows, columns, partitions, order: that join's.
/// - Memory: that join's, as long as the pool gives it. Then the table of a part of the build side, and a batch;
///   without a limit of the pool it is that join and nothing else.
/// - Disk: both sides once, and once more for each time that a part is parted again.
/// - Errors: the inputs', the disk's, and a batch too large to be held at all, with the join's keys.
#[derive(Debug)]
pub struct SpillingJoinExec {
    shape: Arc<Shape>,
    /// The same join, with our sides between it and its inputs.
    run: Arc<HashJoinExec>,
}

impl SpillingJoinExec {
    /// This operator in the place of a hash join that can be made of joins of parts: not of one that nobody has
    /// given a mode, nor of one whose inputs never end. Any other plan stays as it is.
    ///
    /// # Errors
    /// None that building the join did not find already.
    pub fn in_place_of(plan: Plan) -> Result<Transformed<Plan>> {
        let join: Option<&HashJoinExec> = plan.downcast_ref();
        match join.filter(|join| may_spill(join)) {
            Some(join) => Ok(Transformed::yes(Arc::new(Self::try_new(join)?))),
            None => Ok(Transformed::no(plan)),
        }
    }

    /// The same join, for which disk does what memory does not suffice for.
    ///
    /// # Errors
    /// None that building the join did not find already.
    pub fn try_new(join: &HashJoinExec) -> Result<Self> {
        let sides: Vec<Plan> = vec![
            SideExec::over(Side::Build, Arc::clone(join.left())),
            SideExec::over(Side::Probe, Arc::clone(join.right())),
        ];
        let run = Arc::new(join.builder().with_new_children(sides)?.build()?);
        let join = Arc::new(join.builder().build()?);
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Self { shape: Arc::new(Shape { join, metrics }), run })
    }

    /// Another join with the table of this one. Only for joins that keep nothing in their tables.
    ///
    /// # Errors
    /// If the rows are not of the probe side's columns.
    pub fn with_probe_side(&self, probe: &Plan) -> Result<Self> {
        let sides: Vec<Plan> =
            vec![Arc::clone(self.run.left()), SideExec::over(Side::Probe, Arc::clone(probe))];
        let run = Arc::new(self.run.builder().with_new_children(sides)?.build()?);
        let sides: Vec<Plan> = vec![Arc::clone(self.shape.join.left()), Arc::clone(probe)];
        let join = Arc::new(self.shape.join.builder().with_new_children(sides)?.build()?);
        let metrics = self.shape.metrics.clone();
        Ok(Self { shape: Arc::new(Shape { join, metrics }), run })
    }

    fn join(&self) -> &HashJoinExec {
        &self.shape.join
    }
}

fn may_spill(join: &HashJoinExec) -> bool {
    *join.partition_mode() != PartitionMode::Auto
        && !join.left().boundedness().is_unbounded()
        && !join.right().boundedness().is_unbounded()
}

impl DisplayAs for SpillingJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.join().fmt_as(format, f)
    }
}

impl ExecutionPlan for SpillingJoinExec {
    fn name(&self) -> &str {
        self.join().name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.join())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join().properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.join().input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.join().input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        ExecutionPlan::maintains_input_order(self.join())
    }

    fn children(&self) -> Vec<&Plan> {
        self.join().children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join().apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.join().dynamic_expressions_produced()
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let join = Arc::clone(&self.shape.join) as Plan;
        spilling(&replace_children_if_necessary(join, children)?)
    }

    fn reset_state(self: Arc<Self>) -> Result<Plan> {
        spilling(&(Arc::clone(&self.shape.join) as Plan).reset_state()?)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if matches!(context.memory_pool().memory_limit(), MemoryLimit::Infinite) {
            return self.run.execute(partition, context);
        }
        let rows = Joining::begin(&self.shape, self.run.as_ref(), &context, partition)?;
        Ok(in_claimed_order(self, rows))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut all = self.run.metrics()?;
        self.shape.metrics.clone_inner().iter().for_each(|metric| all.push(Arc::clone(metric)));
        Some(all)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.join().child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.join().statistics_from_inputs(input, args)
    }

    fn supports_limit_pushdown(&self) -> bool {
        self.join().supports_limit_pushdown()
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Plan> {
        spilling(&self.join().with_fetch(limit)?).ok()
    }

    fn fetch(&self) -> Option<usize> {
        self.join().fetch()
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.join().cardinality_effect()
    }
}

fn spilling(plan: &Plan) -> Result<Plan> {
    let join = plan.downcast_ref().ok_or_else(|| {
        internal_datafusion_err!("expected a HashJoinExec, found {}", plan.name())
    })?;
    Ok(Arc::new(SpillingJoinExec::try_new(join)?))
}
