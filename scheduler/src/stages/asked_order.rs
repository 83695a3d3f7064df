//! The order in which a query asks for its rows, as its plan has it.
//!
//! Not what the plan claims: DataFusion lets a merge go on to claim orders that each of the merged
//! partitions had, such as the one by all columns but a constant that differs between them.

use std::sync::Arc;

use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::block::run_order::projected;

/// The order of a plan's only partition: that of its last sort or merge, as far as the columns above
/// show it, or what it claims if it has none.
pub(crate) fn asked_order(plan: &Arc<dyn ExecutionPlan>) -> Option<LexOrdering> {
    if plan.output_partitioning().partition_count() != 1 {
        return None;
    }
    if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        return Some(merge.expr().clone());
    }
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        return Some(sort.expr().clone());
    }
    match plan.children()[..] {
        [input] if plan.maintains_input_order() == [true] => match plan.downcast_ref() {
            Some(projection) => projected(projection, asked_order(input)?),
            None => asked_order(input),
        },
        _ => plan.output_ordering().cloned(),
    }
}
