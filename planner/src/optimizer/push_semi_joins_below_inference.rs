//! `IN (SELECT …)` and `EXISTS` over columns that no model computes run before the model.
//!
//! ```text
//! LeftSemi Join: p.id = s.id       Inference
//!   Inference                   →    LeftSemi Join: t.id = s.id
//!     Scan: t                          Scan: t
//!   Scan: s                            Scan: s
//! ```
//! A semi or anti join only removes rows, so the model sees fewer. (An inner join may repeat rows.
//! What it removes, its dynamic filter removes before the model, while the query runs.)

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinConstraint, JoinType, Result};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::through::Through;
use super::{contains_inference, option};
use crate::logical::Inference;

/// See the [module](self).
#[derive(Debug)]
pub struct PushSemiJoinsBelowInference;

impl OptimizerRule for PushSemiJoinsBelowInference {
    fn name(&self) -> &str {
        "push_semi_joins_below_inference"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let enabled = option(config, |config| config.push_semi_joins_below_inference);
        if !enabled || !contains_inference(&plan)? {
            return Ok(Transformed::no(plan));
        }
        plan.transform_down_with_subqueries(|plan| match &plan {
            LogicalPlan::Join(join)
                if matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) =>
            {
                match pushed(&join.left, join)? {
                    Some(plan) => Ok(Transformed::yes(plan)),
                    None => Ok(Transformed::no(plan)),
                }
            }
            _ => Ok(Transformed::no(plan)),
        })
    }
}

/// `plan`, the join's left side, with the join below its topmost inference.
fn pushed(plan: &LogicalPlan, join: &Join) -> Result<Option<LogicalPlan>> {
    let keys: Vec<Expr> = join.on.iter().map(|(left, _)| left.clone()).collect();
    if let Some(inference) = Inference::of(plan) {
        let is_below = |expr: &Expr| {
            let columns = expr.column_refs();
            let (left, right) = (inference.input().schema(), join.right.schema());
            let is_output = |column: &Column| inference.output_columns().any(|o| o == *column);
            columns.iter().all(|c| !is_output(c) && (right.has_column(c) || left.has_column(c)))
        };
        let blocked = inference.model().needs_its_rows() || keys.iter().any(Expr::is_volatile);
        if blocked || !keys.iter().chain(&join.filter).all(is_below) {
            return Ok(None);
        }
        let input = Arc::new(inference.input().clone());
        let join = Join::try_new(
            input,
            Arc::clone(&join.right),
            join.on.clone(),
            join.filter.clone(),
            join.join_type,
            // Its keys may be expressions now, as those of USING may not.
            JoinConstraint::On,
            join.null_equality,
            join.null_aware,
        )?;
        return Ok(Some(inference.with_input(LogicalPlan::Join(join))?.into_plan()));
    }
    // A condition over both sides would have to be translated too.
    let renames = matches!(plan, LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_));
    if !renames || join.filter.is_some() {
        return Ok(None);
    }
    let Some(Through { exprs, .. }) = Through::of(plan, &keys) else { return Ok(None) };
    let on = exprs.into_iter().zip(&join.on).map(|(left, (_, right))| (left, right.clone()));
    let join = Join { on: on.collect(), ..join.clone() };
    let [input] = plan.inputs()[..] else { return Ok(None) };
    match pushed(input, &join)? {
        Some(input) => Ok(Some(plan.with_new_exprs(plan.expressions(), vec![input])?)),
        None => Ok(None),
    }
}
