//! `ORDER BY … LIMIT k` over columns that no model computes: the model sees k rows.
//!
//! ```text
//! Sort: day, fetch=10          Sort: day, fetch=10
//!   Inference                    Inference
//!     Scan                  →      Sort: day, fetch=10
//!                                    Scan
//! ```
//! The upper sort stays, because replicas return rows in any order; it has k rows to sort.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan, Sort, SortExpr};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::through::Through;
use super::{contains_inference, option};
use crate::logical::Inference;

/// See the [module](self).
#[derive(Debug)]
pub struct PushTopkBelowInference;

impl OptimizerRule for PushTopkBelowInference {
    fn name(&self) -> &str {
        "push_topk_below_inference"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let enabled = option(config, |config| config.push_topk_below_inference);
        if !enabled || !contains_inference(&plan)? {
            return Ok(Transformed::no(plan));
        }
        plan.transform_down_with_subqueries(|plan| match &plan {
            LogicalPlan::Sort(Sort { fetch: Some(fetch), expr, input }) => {
                match pushed(input, expr, *fetch)? {
                    Some(input) => {
                        Ok(Transformed::yes(plan.with_new_exprs(plan.expressions(), vec![input])?))
                    }
                    None => Ok(Transformed::no(plan)),
                }
            }
            _ => Ok(Transformed::no(plan)),
        })
    }
}

/// `plan` with the sort below its lowest inference that can take it; `None` if there is none, or
/// if it is there already.
fn pushed(plan: &LogicalPlan, keys: &[SortExpr], fetch: usize) -> Result<Option<LogicalPlan>> {
    let exprs: Vec<Expr> = keys.iter().map(|key| key.expr.clone()).collect();
    if let Some(inference) = Inference::of(plan) {
        let blocked = inference.model().needs_its_rows() || exprs.iter().any(Expr::is_volatile);
        if blocked || !exprs.iter().all(|expr| inference.is_of_input(expr)) {
            return Ok(None);
        }
        if let Some(input) = pushed(inference.input(), keys, fetch)? {
            return Ok(Some(inference.with_input(input)?.into_plan()));
        }
        if keeps_fewer(inference.input(), fetch) {
            return Ok(None);
        }
        let input = std::sync::Arc::new(inference.input().clone());
        let sort = LogicalPlan::Sort(Sort { expr: keys.to_vec(), input, fetch: Some(fetch) });
        return Ok(Some(inference.with_input(sort)?.into_plan()));
    }
    // Nothing that removes or repeats rows may be between.
    if !matches!(plan, LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_)) {
        return Ok(None);
    }
    let Some(Through { exprs, .. }) = Through::of(plan, &exprs) else { return Ok(None) };
    let keys: Vec<SortExpr> =
        keys.iter().zip(exprs).map(|(key, expr)| key.with_expr(expr)).collect();
    let [input] = plan.inputs()[..] else { return Ok(None) };
    match pushed(input, &keys, fetch)? {
        Some(input) => Ok(Some(plan.with_new_exprs(plan.expressions(), vec![input])?)),
        None => Ok(None),
    }
}

/// Whether no more than `fetch` rows come out of the plan anyway: this rule has run before.
fn keeps_fewer(plan: &LogicalPlan, fetch: usize) -> bool {
    match plan {
        LogicalPlan::Sort(Sort { fetch: Some(below), .. }) => *below <= fetch,
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().iter().all(|input| keeps_fewer(input, fetch))
        }
        _ => Inference::of(plan).is_some_and(|inference| keeps_fewer(inference.input(), fetch)),
    }
}
