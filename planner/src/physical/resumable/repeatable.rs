//! Functions that give something else each time.

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility};

use super::refusals::refused;
use crate::sql::scalar::MlPredict;

/// Refuses a statement with functions whose values are another one's each time that it is planned or run.
///
/// # Errors
/// Names the function.
pub fn check_repeatable(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| match volatile(expr) {
                None => Ok(TreeNodeRecursion::Continue),
                Some(name) => Err(refused(
                    &format!("{name}() gives something else each time"),
                    "write its values to files first, or a constant in its place",
                )),
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn volatile(expr: &Expr) -> Option<&str> {
    let Expr::ScalarFunction(call) = expr else { return None };
    // The model behind it is looked at in the plan.
    let is_model = call.func.inner().downcast_ref::<MlPredict>().is_some();
    let is_same = call.func.signature().volatility == Volatility::Immutable;
    (!is_same && !is_model).then(|| call.func.name())
}
