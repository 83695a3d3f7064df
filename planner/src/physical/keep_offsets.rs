//! OFFSET without LIMIT takes away the first rows of its input's order: what is sorted below it and what
//! is sorted above it are two orders.
//!
//! DataFusion's rule for sorts moves a sort from above such an offset to below it, where it replaces
//! the one that says which rows are the first; and where a projection drops the key, it removes the lower
//! one, as nothing shows its order. (A limit it does not pass, and a sort with a limit it keeps.) So
//! that rule meets an operator that needs its input's order and promises none, from the offset down to
//! the sort.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, LexOrdering, OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use super::disguise::{self, Plan, Rule};

/// DataFusion's rule that puts sorts where they are needed, and moves them.
const MOVES_SORTS: &str = "EnsureRequirements";

/// Makes `rules` leave sorts on the side of an offset on which they are.
pub(crate) fn add_to(rules: &mut [Rule]) {
    disguise::add_to(rules, MOVES_SORTS, hidden, shown);
}

/// An offset, and what is between it and the sort that says which rows are the first. In plans while a
/// rule looks at them, never in those that run.
#[derive(Debug)]
struct SortedOffset {
    /// The offset first, each the only input of the one before.
    hidden: Vec<Plan>,
    /// The sort, or the offset's input if there is none.
    input: Plan,
    order: Option<LexOrdering>,
}

impl SortedOffset {
    fn offset(&self) -> &Plan {
        self.hidden.first().unwrap_or(&self.input)
    }
}

pub(super) fn hidden(plan: Plan) -> Result<Transformed<Plan>> {
    hide(plan, |limit| limit.fetch().is_none())
}

/// Also limits, for whoever has put them above a merge that had them: the rule would take the merge for
/// one of which nobody needs the order.
pub(super) fn hidden_with_limits(plan: Plan) -> Result<Transformed<Plan>> {
    hide(plan, |_| true)
}

fn hide(plan: Plan, is_hidden: fn(&GlobalLimitExec) -> bool) -> Result<Transformed<Plan>> {
    let offset = plan.downcast_ref::<GlobalLimitExec>().filter(|limit| is_hidden(limit));
    let Some(offset) = offset else { return Ok(Transformed::no(plan)) };
    let mut between = vec![];
    let (hidden, input, order) = match sort_below(offset.input(), &mut between) {
        Some(sort) => {
            let order = sort.output_ordering().cloned();
            (std::iter::once(Arc::clone(&plan)).chain(between).collect(), sort, order)
        }
        None => (vec![Arc::clone(&plan)], Arc::clone(offset.input()), None),
    };
    Ok(Transformed::yes(Arc::new(SortedOffset { hidden, input, order })))
}

pub(super) fn shown(plan: Plan) -> Result<Transformed<Plan>> {
    let Some(found) = plan.downcast_ref::<SortedOffset>() else { return Ok(Transformed::no(plan)) };
    let over = |below, plan: &Plan| replace_children_if_necessary(Arc::clone(plan), vec![below]);
    found.hidden.iter().rev().try_fold(Arc::clone(&found.input), over).map(Transformed::yes)
}

/// The sort that has made the order of a plan's output, though the output may not show it any more; and
/// what is above it.
fn sort_below(plan: &Plan, between: &mut Vec<Plan>) -> Option<Plan> {
    if plan.is::<SortExec>() || plan.is::<SortPreservingMergeExec>() {
        return Some(Arc::clone(plan));
    }
    match plan.children()[..] {
        [input] if plan.maintains_input_order() == [true] && wants_nothing(plan) => {
            between.push(Arc::clone(plan));
            sort_below(input, between)
        }
        _ => None,
    }
}

/// Whether a rule that does not see an operator has nothing to do for it.
fn wants_nothing(plan: &Plan) -> bool {
    let wanted = plan.input_distribution_requirements().into_per_child();
    let is_met = |wanted: &Distribution| {
        matches!(wanted, Distribution::UnspecifiedDistribution | Distribution::SinglePartition)
    };
    wanted.iter().all(is_met) && plan.required_input_ordering().iter().all(Option::is_none)
}

impl DisplayAs for SortedOffset {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.offset().fmt_as(format, f)
    }
}

impl ExecutionPlan for SortedOffset {
    fn name(&self) -> &'static str {
        "SortedOffset"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.offset().properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.order.clone().map(OrderingRequirements::from)]
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
                let (hidden, order) = (self.hidden.clone(), self.order.clone());
                Ok(Arc::new(Self { hidden, input, order }))
            }
            Err(all) => internal_err!("SortedOffset takes one input, found {}", all.len()),
        }
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("SortedOffset stands in for a GlobalLimitExec while a plan is made")
    }
}
