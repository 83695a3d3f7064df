//! Calls and subqueries in `ROLLUP`, `CUBE` and `GROUPING SETS`: a projection below computes them, and the
//! sets name its columns. A set's keys are told apart by what they are, so they cannot get other names there.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, LogicalPlanBuilder};

/// What computes the keys that `is_meant` is said of, and the aggregate's groups and aggregates with
/// columns in their place.
pub(super) fn project_grouping_keys(
    aggregate: Aggregate,
    is_meant: &dyn Fn(&Expr) -> bool,
) -> Result<(LogicalPlan, Vec<Expr>, Vec<Expr>)> {
    let keys = keys(&aggregate.group_expr, is_meant);
    let columns = aggregate.input.schema().columns().into_iter().map(Expr::Column);
    let named = keys.iter().map(|key| key.clone().alias(key.schema_name().to_string()));
    let input = LogicalPlanBuilder::from(Arc::unwrap_or_clone(aggregate.input))
        .project(columns.chain(named).collect::<Vec<_>>())?
        .build()?;
    // Also in `grouping(…)`.
    let by_column = |expr: Expr| {
        expr.transform_down(|expr| {
            Ok(match keys.contains(&expr) {
                true => Transformed::yes(Expr::Column(Column::from_name(
                    expr.schema_name().to_string(),
                ))),
                false => Transformed::no(expr),
            })
        })
        .data()
    };
    let groups = aggregate.group_expr.into_iter().map(by_column).collect::<Result<_>>()?;
    let aggregates = aggregate.aggr_expr.into_iter().map(by_column).collect::<Result<_>>()?;
    Ok((input, groups, aggregates))
}

/// Whether there are such keys in sets.
pub(super) fn has_in_sets(groups: &[Expr], is_meant: &dyn Fn(&Expr) -> bool) -> bool {
    groups.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)) && is_meant(expr))
}

fn keys(groups: &[Expr], is_meant: &dyn Fn(&Expr) -> bool) -> Vec<Expr> {
    let mut keys: Vec<Expr> = vec![];
    for group in groups {
        let found: Vec<&Expr> = match group {
            Expr::GroupingSet(set) => set.distinct_expr(),
            expr => vec![expr],
        };
        for key in found {
            if is_meant(key) && !keys.contains(key) {
                keys.push(key.clone());
            }
        }
    }
    keys
}
