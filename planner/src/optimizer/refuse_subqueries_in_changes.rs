//! `DELETE` and `UPDATE` with a subquery in their condition are refused: DataFusion turns it into a join
//! before it looks for conditions, finds none, and changes every row.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, not_impl_err};
use datafusion::logical_expr::{Expr, LogicalPlan, WriteOp};
use datafusion::optimizer::AnalyzerRule;

/// See the [module](self).
#[derive(Debug)]
pub struct RefuseSubqueriesInChanges;

impl AnalyzerRule for RefuseSubqueriesInChanges {
    fn name(&self) -> &str {
        "refuse_subqueries_in_changes"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if let LogicalPlan::Dml(dml) = &plan
            && matches!(dml.op, WriteOp::Delete | WriteOp::Update)
            && dml.input.exists(|node| Ok(node.expressions().iter().any(has_subquery)))?
        {
            return not_impl_err!(
                "{} with a subquery in its condition or values is not supported; write the rows to \
                 keep into a new table with CREATE TABLE … AS SELECT",
                dml.op.to_string().to_uppercase()
            );
        }
        Ok(plan)
    }
}

fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(super::is_subquery(expr))).unwrap_or(true)
}
