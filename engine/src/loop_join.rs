//! Joins that hold one side and go through all of it for each row of the other: `CROSS JOIN`, and joins without a
//! condition of equality.
//!
//! DataFusion's nested loop join takes the side that it holds a piece at a time, from disk, when memory is short. It
//! begins anew for that: the side is made once more, and each partition of the other side goes by itself. That is
//! right where the side is read from files, and of what it holds nothing is given by what has met *no* row.
//! Elsewhere an operator would be run twice that cannot be, or such rows would come once for each partition. There the
//! join ends with an error that says what to do, as `CROSS JOIN` does, which has no such way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytesize::ByteSize;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{
    DataFusionError, JoinType, Result, Statistics, internal_err, resources_datafusion_err,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, StatisticsArgs, replace_children_if_necessary,
};
use futures::TryStreamExt;

use crate::outside::{SideExec, within};

type Plan = Arc<dyn ExecutionPlan>;

/// Such a join under a limit of memory. To everybody who looks at a plan it is DataFusion's.
///
/// - Rows, columns, partitions, order: that join's.
/// - Memory: that join's. Disk: that join's, where it is right.
/// - Errors: the inputs', the disk's; and that the side which is held does not fit, with its size.
#[derive(Debug)]
pub struct LoopJoinExec {
    join: Plan,
    /// What runs under a limit, with our sides between it and its inputs.
    limited: Plan,
    may_spill: bool,
    /// Bytes of the side that is held, as far as it has come.
    held: Arc<AtomicUsize>,
}

impl LoopJoinExec {
    /// This operator in the place of a join that holds one side; any other plan stays as it is.
    ///
    /// # Errors
    /// None that building the join did not find already.
    pub fn in_place_of(plan: Plan) -> Result<Transformed<Plan>> {
        let nested: Option<&NestedLoopJoinExec> = plan.downcast_ref();
        let kind = nested.map(|join| *join.join_type());
        let kind = kind.or_else(|| plan.is::<CrossJoinExec>().then_some(JoinType::Inner));
        match kind {
            Some(kind) => Ok(Transformed::yes(Arc::new(Self::try_new(plan, kind)?))),
            None => Ok(Transformed::no(plan)),
        }
    }

    fn try_new(join: Plan, kind: JoinType) -> Result<Self> {
        let [left, right] = join.children()[..] else {
            return internal_err!("{} has {} inputs", join.name(), join.children().len());
        };
        let is_right = can_run_twice(left) && (!keeps_held(kind) || is_one_partition(right));
        let may_spill = is_right && !join.is::<CrossJoinExec>();
        let held = Arc::new(AtomicUsize::new(0));
        let left = SideExec::counted(Arc::clone(left), Arc::clone(&held));
        let right = SideExec::over(Arc::clone(right));
        let limited = replace_children_if_necessary(Arc::clone(&join), vec![left, right])?;
        Ok(Self { join, limited, may_spill, held })
    }

    /// What the join runs with: a context of its own, from which its inputs go back to that outside.
    fn context(&self, outside: Arc<TaskContext>) -> Result<Arc<TaskContext>> {
        let runtime = outside.runtime_env();
        let disk_manager = match self.may_spill {
            true => Arc::clone(&runtime.disk_manager),
            false => Arc::new(
                DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled).build()?,
            ),
        };
        let runtime = RuntimeEnv { disk_manager, ..runtime.as_ref().clone() };
        Ok(within(runtime, outside))
    }
}

/// Whether rows of the held side are given by what has met them, or has not.
fn keeps_held(kind: JoinType) -> bool {
    match kind {
        JoinType::Left
        | JoinType::Full
        | JoinType::LeftSemi
        | JoinType::LeftAnti
        | JoinType::LeftMark => true,
        JoinType::Inner
        | JoinType::Right
        | JoinType::RightSemi
        | JoinType::RightAnti
        | JoinType::RightMark => false,
    }
}

fn is_one_partition(plan: &Plan) -> bool {
    plan.output_partitioning().partition_count() == 1
}

/// Whether a plan gives its rows once more when it is run again: what reads files or blocks, row by row. Who deals rows
/// out, or goes on where it was, does not.
fn can_run_twice(plan: &Plan) -> bool {
    let by_row = plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<crate::BoundedProjectionExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<CoalescePartitionsExec>();
    let reads = plan.is::<DataSourceExec>() || plan.name() == "BlockReaderExec";
    reads || by_row && plan.children().into_iter().all(can_run_twice)
}

/// In words, if it is the side that is held which does not fit.
fn explained(error: DataFusionError, join: &str, held: usize, limit: usize) -> DataFusionError {
    let is_own = match error.find_root() {
        DataFusionError::ResourcesExhausted(text) => {
            text.contains("for CrossJoinExec") || text.contains("for NestedLoopJoin")
        }
        _ => false,
    };
    if !is_own {
        return error;
    }
    let (held, limit) = (ByteSize(held as u64), ByteSize(limit as u64));
    resources_datafusion_err!(
        "{join}: {held} of the side that it holds have come, and the memory limit of {limit} has no room for more beside \
         what else is held; raise --memory-limit, leave rows or columns of that side out before the join, or join by \
         columns that are equal, which goes to disk"
    )
}

impl DisplayAs for LoopJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.join.fmt_as(format, f)
    }
}

impl ExecutionPlan for LoopJoinExec {
    fn name(&self) -> &str {
        self.join.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.join.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join.properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.join.input_distribution_requirements()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.join.maintains_input_order()
    }

    fn children(&self) -> Vec<&Plan> {
        self.join.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let join = replace_children_if_necessary(Arc::clone(&self.join), children)?;
        Ok(Self::in_place_of(join)?.data)
    }

    fn reset_state(self: Arc<Self>) -> Result<Plan> {
        Ok(Self::in_place_of(Arc::clone(&self.join).reset_state()?)?.data)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let MemoryLimit::Finite(limit) = context.memory_pool().memory_limit() else {
            return self.join.execute(partition, context);
        };
        let rows = self.limited.execute(partition, self.context(context)?)?;
        let (name, held) = (self.join.name().to_owned(), Arc::clone(&self.held));
        let rows =
            rows.map_err(move |error| explained(error, &name, held.load(Ordering::Relaxed), limit));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut all = self.join.metrics()?;
        let limited = self.limited.metrics().unwrap_or_default();
        limited.iter().for_each(|metric| all.push(Arc::clone(metric)));
        Some(all)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.join.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.join.statistics_from_inputs(input, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.join.cardinality_effect()
    }
}
