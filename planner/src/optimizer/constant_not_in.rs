//! `3 NOT IN (SELECT id FROM t)` meets no row if an `id` is NULL: nobody knows whether that is 3. DataFusion compares
//! below the join what names no column of the query around it, and a NULL is gone there. As `NOT EXISTS` it keeps its
//! meaning:
//!
//! ```text
//! Filter: 3 NOT IN (<subquery>)        Filter: NOT EXISTS (<subquery>)
//!   Subquery: Scan: t              →     Subquery: Filter: (3 = id) IS NOT FALSE
//!                                          Scan: t
//! ```
//! What does name columns becomes a join that knows of NULLs.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, LogicalPlanBuilder, Subquery};
use datafusion::optimizer::AnalyzerRule;

use super::extract_scalar_inference::contains_call;

/// See the [module](self).
#[derive(Debug)]
pub struct ConstantNotIn;

impl AnalyzerRule for ConstantNotIn {
    fn name(&self) -> &str {
        "constant_not_in"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Filter(filter) => of_filter(filter),
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

/// Of its conditions: within another one it is not the same whether nobody knows, or it is not so.
fn of_filter(filter: Filter) -> Result<Transformed<LogicalPlan>> {
    let conditions = split_conjunction_owned(filter.predicate.clone());
    if !conditions.iter().any(|condition| constant_not_in(condition).is_some()) {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let conditions = conditions.into_iter().map(|condition| match constant_not_in(&condition) {
        Some(found) => not_exists(found),
        None => Ok(condition),
    });
    let predicate =
        conjunction(conditions.collect::<Result<Vec<_>>>()?).unwrap_or(filter.predicate);
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input)?)))
}

/// `c NOT IN (…)`, or `NOT c IN (…)`.
fn constant_not_in(condition: &Expr) -> Option<&InSubquery> {
    let (found, is_negated) = match condition {
        Expr::InSubquery(found) => (found, found.negated),
        Expr::Not(inner) => match inner.as_ref() {
            Expr::InSubquery(found) => (found, !found.negated),
            _ => return None,
        },
        _ => return None,
    };
    (is_negated && is_constant(&found.expr)).then_some(found)
}

/// Whether it names no column, of whichever query, and asks no model: what that gives becomes a column.
fn is_constant(expr: &Expr) -> bool {
    let names_a_column = |expr: &Expr| {
        Ok(match expr {
            Expr::Column(_) | Expr::OuterReferenceColumn(..) => true,
            Expr::ScalarSubquery(subquery) => !subquery.outer_ref_columns.is_empty(),
            _ => false,
        })
    };
    !expr.is_volatile() && !contains_call(expr) && !expr.exists(names_a_column).unwrap_or(true)
}

fn not_exists(InSubquery { expr, subquery, .. }: &InSubquery) -> Result<Expr> {
    let rows = subquery.subquery.as_ref().clone();
    let found = rows.schema().qualified_field(0);
    let is_it = expr.as_ref().clone().eq(Expr::Column(Column::from(found)));
    let rows = LogicalPlanBuilder::from(rows).filter(is_it.is_not_false())?.build()?;
    let subquery = Subquery { subquery: rows.into(), ..subquery.clone() };
    Ok(Expr::Exists(Exists { subquery, negated: true }))
}
