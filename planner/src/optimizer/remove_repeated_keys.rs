//! Keys that repeat an earlier one are removed from DISTINCT ON and from the ORDER BY of aggregates.
//!
//! They say nothing. But DataFusion counts an aggregate's keys with them where it declares its state,
//! and without them where it makes it: `first_value(c ORDER BY a, b, a)` and DISTINCT ON, which becomes
//! one, panic. An optimizer rule too, because other rules make keys equal: `a, a + 0`.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Distinct, DistinctOn, Expr, LogicalPlan, SortExpr};
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};

/// See the [module](self).
#[derive(Debug)]
pub struct RemoveRepeatedKeys;

impl AnalyzerRule for RemoveRepeatedKeys {
    fn name(&self) -> &str {
        "remove_repeated_keys"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(of_distinct_on).data()
    }
}

impl OptimizerRule for RemoveRepeatedKeys {
    fn name(&self) -> &str {
        "remove_repeated_keys"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(of_aggregates)
    }
}

fn of_distinct_on(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Distinct(Distinct::On(mut distinct)) = plan else {
        return Ok(Transformed::no(plan));
    };
    let on = remove_repeated(&mut distinct.on_expr, |key| key);
    let sort = distinct.sort_expr.as_mut().is_some_and(|keys| remove_repeated(keys, sorted));
    let DistinctOn { on_expr, select_expr, sort_expr, input, .. } = distinct;
    let distinct = DistinctOn::try_new(on_expr, select_expr, sort_expr, input)?;
    let plan = LogicalPlan::Distinct(Distinct::On(distinct));
    Ok(Transformed::new_transformed(plan, on || sort))
}

fn of_aggregates(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !matches!(plan, LogicalPlan::Aggregate(_)) {
        return Ok(Transformed::no(plan));
    }
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        let shorter = expr.transform_up(|expr| {
            let Expr::AggregateFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
            let is_shorter = remove_repeated(&mut call.params.order_by, sorted);
            Ok(Transformed::new_transformed(Expr::AggregateFunction(call), is_shorter))
        })?;
        Ok(if shorter.transformed {
            shorter.update_data(|expr| name.restore(expr))
        } else {
            shorter
        })
    })
}

fn sorted(key: &SortExpr) -> &Expr {
    &key.expr
}

/// Whether there were any.
fn remove_repeated<K>(keys: &mut Vec<K>, expr: impl Fn(&K) -> &Expr) -> bool {
    let (count, mut seen) = (keys.len(), Vec::new());
    keys.retain(|key| {
        let expr = expr(key).clone().unalias();
        // Two calls of a volatile function are two keys.
        let is_new = expr.is_volatile() || !seen.contains(&expr);
        seen.push(expr);
        is_new
    });
    keys.len() < count
}
