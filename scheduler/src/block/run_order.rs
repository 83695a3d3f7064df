//! The order in which a sort gives its rows, in the columns that are written.

use std::sync::Arc;

use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

/// The order of a partition of a plan that sorts all of its rows, as far as projections above the sort show its
/// keys. Not what a plan claims for another reason.
pub fn run_order(plan: &Arc<dyn ExecutionPlan>) -> Option<LexOrdering> {
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        // With a fetch it keeps the first rows only: few.
        return sort.fetch().is_none().then(|| sort.expr().clone());
    }
    let projection = plan.downcast_ref::<ProjectionExec>()?;
    projected(projection, run_order(projection.input())?)
}

/// The first of the keys that a projection has as columns.
pub fn projected(projection: &ProjectionExec, order: LexOrdering) -> Option<LexOrdering> {
    let column = |key: &PhysicalSortExpr| {
        let mut columns = projection.expr().iter().enumerate();
        let (at, shown) = columns.find(|(_, shown)| shown.expr.eq(&key.expr))?;
        Some(PhysicalSortExpr::new(Arc::new(Column::new(&shown.alias, at)), key.options))
    };
    LexOrdering::new(order.iter().map_while(column))
}
