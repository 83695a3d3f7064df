//! What an operator wants of each of its inputs, so that it is right although every task of a stage
//! runs it by itself.

use std::mem::discriminant;
use std::sync::Arc;

use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::{Distribution, LexOrdering, OrderingRequirements};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, PartitionMode, PiecewiseMergeJoinExec,
};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// What a leaf reads of another stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What belongs to the task.
    Own,
    /// Everything: the operator above makes one partition of it.
    All,
}

/// What an operator wants of one input.
pub(crate) struct Wants {
    pub(crate) scope: Scope,
    /// It would be wrong if each task ran it on its own part of the input.
    pub(crate) all_rows: bool,
    /// It needs the rows in one task, and does not say so, as one process has all partitions.
    pub(crate) one_task: bool,
    distribution: Distribution,
    order: Option<OrderingRequirements>,
    /// It is the only input.
    is_alone: bool,
}

impl Wants {
    /// Whether an input has several partitions where one is wanted. Ballista runs joins that one task
    /// could not run for all in more partitions than they were planned for.
    pub(crate) fn lacks_one_partition(&self, input: &Arc<dyn ExecutionPlan>) -> bool {
        // The inputs of a join are partitioned alike, or not at all.
        let matters = self.is_alone || matches!(self.distribution, Distribution::SinglePartition);
        let (found, equivalences) = (input.output_partitioning(), input.equivalence_properties());
        matters && !found.satisfaction(&self.distribution, equivalences, true).is_satisfied()
    }

    /// Whether rows with equal keys must be in one partition.
    pub(crate) fn is_by_keys(&self) -> bool {
        let other = [Distribution::UnspecifiedDistribution, Distribution::SinglePartition];
        !other.iter().any(|other| discriminant(other) == discriminant(&self.distribution))
    }

    /// The input in the order that the operator relies on. Mostly it is: a cut keeps one order of those
    /// that an operator may have, and none of what is constant.
    pub(crate) fn in_its_order(
        &self,
        input: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(order) = self.order.clone() else { return Ok(input) };
        let (alternatives, is_soft) = order.into_alternatives();
        for alternative in &alternatives {
            let equivalences = input.equivalence_properties();
            if is_soft || equivalences.ordering_satisfy_requirement(alternative.clone())? {
                return Ok(input);
            }
        }
        match alternatives.into_iter().next() {
            Some(order) => sorted(input, order.into()),
            None => Ok(input),
        }
    }
}

/// Sorts each partition of a plan, unless it is sorted.
pub(crate) fn sorted(
    plan: Arc<dyn ExecutionPlan>,
    order: LexOrdering,
) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(match plan.equivalence_properties().ordering_satisfy(order.clone())? {
        true => plan,
        false => Arc::new(SortExec::new(order, plan).with_preserve_partitioning(true)),
    })
}

/// What an operator wants of its inputs, where what is above it wants `scope`.
pub(crate) fn wants(plan: &Arc<dyn ExecutionPlan>, scope: Scope) -> Vec<Wants> {
    let collapses = plan.is::<CoalescePartitionsExec>() || plan.is::<SortPreservingMergeExec>();
    let has_global_limit =
        plan.fetch().is_some() && plan.output_partitioning().partition_count() == 1;
    let required: Vec<_> = plan.input_distribution_requirements().into_per_child();
    let is_alone = required.len() == 1;
    // What is merged is in order where it is written.
    let merges = plan.is::<SortPreservingMergeExec>();
    let mut orders = plan.required_input_ordering();
    let of = |(child, required): (usize, Distribution)| {
        let one_task = child == PROBE_SIDE && joins_what_it_collects(plan);
        let distribution = if one_task { Distribution::SinglePartition } else { required };
        let is_single = matches!(distribution, Distribution::SinglePartition);
        let is_bound = !matches!(distribution, Distribution::UnspecifiedDistribution);
        let is_all = collapses || is_single || scope == Scope::All;
        Wants {
            scope: if is_all { Scope::All } else { Scope::Own },
            all_rows: has_global_limit || is_bound,
            one_task,
            distribution,
            order: orders.get_mut(child).and_then(Option::take).filter(|_| !merges),
            is_alone,
        }
    };
    required.into_iter().enumerate().map(of).collect()
}

/// The right input of a join is the one that streams past what was collected of the left.
const PROBE_SIDE: usize = 1;

/// Whether a join gives rows of the side that it collects by whether *no* row of the other side, or
/// any, has met them. In one process its partitions share that knowledge; of several tasks, each would
/// decide by its own part of the other side.
fn joins_what_it_collects(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let collects = *join.partition_mode() == PartitionMode::CollectLeft;
        return join.null_aware || collects && keeps_left(*join.join_type());
    }
    let nested = plan.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    let merged = || plan.downcast_ref::<PiecewiseMergeJoinExec>().map(|join| join.join_type());
    nested.or_else(merged).is_some_and(keeps_left)
}

fn keeps_left(join: JoinType) -> bool {
    match join {
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
