//! Parts of an operator's expressions that are computed below it, and become columns there.

use std::sync::Arc;

use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Distinct, DistinctOn, Expr, LogicalPlan, LogicalPlanBuilder};

/// Collects what is to be computed below one operator.
pub(super) trait Lift {
    /// Nothing so far; the operator reads `input`.
    fn above(input: LogicalPlan) -> Self;

    /// The expression with columns in place of the parts that are computed below.
    fn lift(&mut self, expr: Expr) -> Result<Expr>;

    /// What the operator reads now.
    fn into_input(self) -> Result<LogicalPlan>;
}

/// An operator of one input, whose expressions keep their names.
pub(super) fn lift_from_unary<L: Lift>(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut lifter = L::above(plan.inputs()[0].clone());
    let names = NamePreserver::new(&plan);
    // A Sort's expressions name no columns, and an alias there would be in its way.
    let keep_names = !matches!(plan, LogicalPlan::Sort(_));
    let lift = |expr: Expr| {
        let name = names.save(&expr);
        let lifted = lifter.lift(expr)?;
        Ok(if keep_names { name.restore(lifted) } else { lifted })
    };
    let exprs = plan.expressions().into_iter().map(lift).collect::<Result<Vec<_>>>()?;
    plan.with_new_exprs(exprs, vec![lifter.into_input()?])
}

/// `DISTINCT ON`, whose columns keep their names and whose keys have none.
pub(super) fn lift_from_distinct_on<L: Lift>(distinct: DistinctOn) -> Result<LogicalPlan> {
    let mut lifter = L::above(Arc::unwrap_or_clone(distinct.input));
    let names = NamePreserver::new_for_projection();
    let lift = |expr: Expr| {
        let name = names.save(&expr);
        Ok(name.restore(lifter.lift(expr)?))
    };
    let select = distinct.select_expr.into_iter().map(lift).collect::<Result<Vec<_>>>()?;
    // These are compared with the sort keys, and name no columns.
    let mut on = Vec::with_capacity(distinct.on_expr.len());
    for key in &distinct.on_expr {
        on.push(lifter.lift(key.clone())?);
    }
    let mut sort = distinct.sort_expr;
    for key in sort.iter_mut().flatten() {
        // The same key, also if it gives something else each time that it is computed.
        let known = distinct.on_expr.iter().position(|on| *on == key.expr);
        key.expr = match known {
            Some(at) => on[at].clone(),
            None => lifter.lift(key.expr.clone())?,
        };
    }
    let distinct = DistinctOn::try_new(on, select, sort, Arc::new(lifter.into_input()?))?;
    Ok(LogicalPlan::Distinct(Distinct::On(distinct)))
}

/// Hides the new columns from operators that pass their input through.
pub(super) fn restore_columns(plan: LogicalPlan, original: &DFSchema) -> Result<LogicalPlan> {
    if plan.schema().fields().len() == original.fields().len() {
        return Ok(plan);
    }
    let columns = original.columns().into_iter().map(Expr::Column);
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}
