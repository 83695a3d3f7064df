//! `t CROSS JOIN LATERAL ml_predict(m, t.c) AS p` → a projection over `t`.
//!
//! The right side has exactly one row for each row of the left side: projections over a relation
//! of one empty row. So its expressions are computed over the left side's rows, and the join goes;
//! an inner join's condition stays as a filter.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::{Expr, Join, JoinType, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

use super::extract_scalar_inference::contains_call;

/// See the [module](self).
#[derive(Debug)]
pub struct FlattenLateralInference;

impl AnalyzerRule for FlattenLateralInference {
    fn name(&self) -> &str {
        "flatten_lateral_inference"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let node = flatten(node)?;
            node.transform_data(|node| {
                node.map_expressions(|expr| expr.transform_up(named_outside))
            })
        })
        .data()
    }
}

fn flatten(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Join(join) = &plan else { return Ok(Transformed::no(plan)) };
    if !is_one_row_call(&join.right) {
        return Ok(Transformed::no(plan));
    }
    let condition = condition(join)?;
    let left = join.left.schema().columns().into_iter().map(Expr::Column);
    let right = outputs(&join.right, join.left.schema())?
        .into_iter()
        .map(|(column, expr)| expr.unalias().alias_qualified(column.relation, column.name));
    let all: Vec<Expr> = left.chain(right).collect();
    let mut flat = LogicalPlanBuilder::from(join.left.as_ref().clone()).project(all)?;
    if let Some(condition) = condition {
        flat = flat.filter(condition)?;
    }
    Ok(Transformed::yes(flat.build()?))
}

/// A subquery that says which columns of the query around it are named in it. What a call in it named of
/// its own left side is not among them any more.
fn named_outside(mut expr: Expr) -> Result<Transformed<Expr>> {
    let subquery = match &mut expr {
        Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. })
        | Expr::ScalarSubquery(subquery) => subquery,
        _ => return Ok(Transformed::no(expr)),
    };
    let named = subquery.subquery.all_out_ref_exprs();
    let is_changed = named != subquery.outer_ref_columns;
    subquery.outer_ref_columns = named;
    Ok(Transformed::new_transformed(expr, is_changed))
}

/// What is left of the join's condition once every row has its partner.
fn condition(join: &Join) -> Result<Option<Expr>> {
    let condition = match &join.filter {
        Some(Expr::Literal(ScalarValue::Boolean(Some(true)), _)) => None,
        other => other.clone(),
    };
    match (join.join_type, &condition) {
        _ if !join.on.is_empty() => {
            not_impl_err!(
                "LATERAL ml_predict cannot be joined with USING; write CROSS JOIN LATERAL"
            )
        }
        (JoinType::Inner, _) | (JoinType::Left, None) => Ok(condition),
        (join_type, _) => not_impl_err!(
            "LATERAL ml_predict cannot be joined by a {join_type} join with a condition; write \
             CROSS JOIN LATERAL and put the condition into WHERE"
        ),
    }
}

/// Whether the plan is projections with a call over one empty row, correlated with the left side:
/// a query of one row that needs nothing of it is better run once.
fn is_one_row_call(plan: &LogicalPlan) -> bool {
    let mut is_correlated = false;
    let mut has_call = false;
    let mut below = plan;
    loop {
        below = match below {
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::Subquery(subquery) => {
                is_correlated = true;
                &subquery.subquery
            }
            LogicalPlan::Projection(projection) => {
                has_call |= projection.expr.iter().any(contains_call);
                &projection.input
            }
            LogicalPlan::EmptyRelation(empty) => {
                return empty.produce_one_row && has_call && is_correlated;
            }
            _ => return false,
        };
    }
}

/// The plan's output columns as expressions over the left side's rows.
fn outputs(plan: &LogicalPlan, left: &DFSchema) -> Result<Vec<(Column, Expr)>> {
    let exprs = match plan {
        LogicalPlan::Projection(projection) => {
            let below = outputs(&projection.input, left)?;
            let exprs = projection.expr.iter().map(|expr| resolve(expr, &below, left));
            exprs.collect::<Result<Vec<_>>>()?
        }
        LogicalPlan::SubqueryAlias(alias) => {
            outputs(&alias.input, left)?.into_iter().map(|(_, expr)| expr).collect()
        }
        LogicalPlan::Subquery(subquery) => return outputs(&subquery.subquery, left),
        _ => vec![],
    };
    Ok(plan.schema().columns().into_iter().zip(exprs).collect())
}

/// The left side's columns come into scope (others are those of a query further out); columns of the
/// plan below become what they stand for.
fn resolve(expr: &Expr, below: &[(Column, Expr)], left: &DFSchema) -> Result<Expr> {
    let resolved = expr.clone().transform(|expr| {
        Ok(match expr {
            Expr::OuterReferenceColumn(_, column) if left.has_column(&column) => {
                Transformed::yes(Expr::Column(column))
            }
            Expr::Column(column) => match below.iter().find(|(known, _)| *known == column) {
                Some((_, meaning)) => Transformed::yes(meaning.clone().unalias()),
                None => Transformed::no(Expr::Column(column)),
            },
            other => Transformed::no(other),
        })
    });
    resolved.data()
}
