//! What DataFusion's window functions say of themselves, and what only their text says.

use std::sync::Arc;

use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

/// The window functions that an operator computes.
pub(super) fn computed_by(plan: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn WindowExpr>]> {
    let bounded = plan.downcast_ref().map(BoundedWindowAggExec::window_expr);
    bounded.or_else(|| plan.downcast_ref().map(WindowAggExec::window_expr))
}

/// Whether an aggregate over a window leaves rows out by a FILTER. Nothing but its text tells; of one whose text is
/// another one day, it is taken to do so.
pub(super) fn has_filter(function: &Arc<dyn WindowExpr>) -> bool {
    !function.as_any().is::<StandardWindowExpr>()
        && !format!("{function:?}").ends_with("filter: None }")
}

/// Whether a function leaves out NULLs that it would else give.
fn ignores_nulls(function: &Arc<dyn WindowExpr>) -> bool {
    function.as_any().is::<StandardWindowExpr>()
        && format!("{function:?}").contains("ignore_nulls: true")
}

/// Whether an operator is the same one when it has been sent: DataFusion leaves FILTER and IGNORE NULLS of window
/// functions out of the bytes, and rows would be others.
pub(crate) fn can_be_sent(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let functions = computed_by(plan).unwrap_or_default();
    !functions.iter().any(|function| has_filter(function) || ignores_nulls(function))
}
