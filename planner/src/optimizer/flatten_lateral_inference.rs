//! `t CROSS JOIN LATERAL ml_predict(m, t.c) AS p` → a projection over `t`.
//!
//! The right side has exactly one row for each row of the left side: projections over a relation
//! of one empty row. So its expressions are computed over the left side's rows, and the join goes.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result, ScalarValue, TableReference};
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
        Ok(plan.transform_up_with_subqueries(flatten)?.data)
    }
}

fn flatten(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Join(join) if pairs_every_row(join) && is_one_row_call(&join.right) => {
            let left = join.left.as_ref().clone();
            let columns = join.left.schema().columns().into_iter().map(Expr::Column).collect();
            let (grafted, right) = graft(&join.right, Graft { left, columns })?;
            let all: Vec<Expr> = grafted.columns.into_iter().chain(right).collect();
            let flat = LogicalPlanBuilder::from(grafted.left).project(all)?.build()?;
            Ok(Transformed::yes(flat))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// The left side as it grows, and its own columns.
struct Graft {
    left: LogicalPlan,
    columns: Vec<Expr>,
}

fn pairs_every_row(join: &Join) -> bool {
    let always = match &join.filter {
        None => true,
        Some(Expr::Literal(ScalarValue::Boolean(Some(truth)), _)) => *truth,
        Some(_) => false,
    };
    matches!(join.join_type, JoinType::Inner | JoinType::Left) && join.on.is_empty() && always
}

/// Whether the plan is projections with a call over one empty row.
fn is_one_row_call(plan: &LogicalPlan) -> bool {
    fn over_one_row(plan: &LogicalPlan, called: bool) -> bool {
        match plan {
            LogicalPlan::SubqueryAlias(alias) => over_one_row(&alias.input, called),
            LogicalPlan::Subquery(subquery) => over_one_row(&subquery.subquery, called),
            LogicalPlan::Projection(projection) => {
                let called = called || projection.expr.iter().any(contains_call);
                over_one_row(&projection.input, called)
            }
            LogicalPlan::EmptyRelation(empty) => empty.produce_one_row && called,
            _ => false,
        }
    }
    over_one_row(plan, false)
}

/// Puts the left side in place of the one empty row: the left side, and what the plan's output
/// columns are over it.
fn graft(plan: &LogicalPlan, base: Graft) -> Result<(Graft, Vec<Expr>)> {
    match plan {
        LogicalPlan::Projection(projection) => {
            let (base, _) = graft(&projection.input, base)?;
            let exprs = projection.expr.iter().map(resolve_outer).collect::<Result<Vec<_>>>()?;
            let all: Vec<Expr> = base.columns.iter().cloned().chain(exprs).collect();
            let left = LogicalPlanBuilder::from(base.left).project(all)?.build()?;
            let right = projection.schema.columns().into_iter().map(Expr::Column).collect();
            Ok((Graft { left, columns: base.columns }, right))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let (base, right) = graft(&alias.input, base)?;
            let requalify = |expr: Expr| qualify(expr, &alias.alias);
            Ok((base, right.into_iter().map(requalify).collect()))
        }
        LogicalPlan::Subquery(subquery) => graft(&subquery.subquery, base),
        _ => Ok((base, vec![])),
    }
}

fn qualify(expr: Expr, relation: &TableReference) -> Expr {
    let name = expr.qualified_name().1;
    expr.unalias().alias_qualified(Some(relation.clone()), name)
}

/// References to the left side's columns, which the graft has brought into scope.
fn resolve_outer(expr: &Expr) -> Result<Expr> {
    let resolved = expr.clone().transform(|expr| {
        Ok(match expr {
            Expr::OuterReferenceColumn(_, column) => {
                Transformed::yes(Expr::Column(Column::clone(&column)))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(resolved.data)
}
