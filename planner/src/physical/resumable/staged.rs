//! Where a plan is cut that is written in two steps.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::Boundedness;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};

use super::Plan;

/// What is below is made in parts and staged; in its place the rest of the plan gets a scan of their files. So all
/// that is above is planned for what such a scan has: its partitions, and no order.
///
/// It never runs, and has no wire form: it is gone when a plan has been cut.
#[derive(Debug)]
pub(crate) struct StagedExec {
    input: Plan,
    properties: Arc<PlanProperties>,
}

impl StagedExec {
    /// Of a scan that will have so many partitions.
    pub(crate) fn new(input: Plan, partitions: usize) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(partitions.max(1)),
            input.pipeline_behavior(),
            Boundedness::Bounded,
        );
        Self { input, properties: Arc::new(properties) }
    }

    pub(super) fn input(&self) -> &Plan {
        &self.input
    }
}

impl DisplayAs for StagedExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StagedExec")
    }
}

impl ExecutionPlan for StagedExec {
    fn name(&self) -> &'static str {
        "StagedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.input]
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

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => {
                let partitions = self.properties.output_partitioning().partition_count();
                Ok(Arc::new(Self::new(input, partitions)))
            }
            Err(children) => internal_err!("StagedExec takes one input, found {}", children.len()),
        }
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("StagedExec stands where a plan is cut, and does not run")
    }

    fn child_stats_requests(&self, _: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    /// How many rows there are is not for whoever would give an answer in the place of them.
    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        if args.partition().is_none() {
            statistics.num_rows = input[0].num_rows.to_inexact();
        }
        Ok(Arc::new(statistics))
    }
}
