//! `x IN (SELECT y …)` is neither true nor false if nobody knows: no `y` is equal, and one of them or `x` is NULL.
//! DataFusion's joins tell that from false in one case: where `x NOT IN (…)` is a condition of its own, `x` names a
//! column, and the subquery none of the query around it. Elsewhere they would keep rows, or lose them.
//!
//! As a condition of its own NOT IN becomes NOT EXISTS:
//!
//! ```text
//! Filter: 3 NOT IN (<subquery>)        Filter: NOT EXISTS (<subquery>)
//!   Subquery: Scan: t              →     Subquery: Filter: (3 = y) IS NOT FALSE
//!                                          Scan: t
//! ```
//! Within another condition, as in `a OR x NOT IN (…)`, a join says whether one is equal, and the rest is asked apart:
//!
//! ```text
//! x IN (<subquery>)   →   CASE WHEN x IN (<subquery>) THEN true
//!                              WHEN (SELECT count(*) FROM <subquery> WHERE y IS NULL LIMIT 1) > 0 THEN NULL
//!                              WHEN x IS NULL AND (SELECT count(*) FROM <subquery> LIMIT 1) > 0 THEN NULL
//!                              ELSE false END
//! ```
//! What cannot be NULL is not asked for, and a subquery that names columns of the query around it is asked by EXISTS in
//! place of `count(*)`. What asks a model stays as it is there: it would be asked three times.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Case, Expr, ExprSchemable, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator,
    Subquery, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::calls_model;
use super::extract_scalar_inference::contains_call;

/// See the [module](self).
#[derive(Debug)]
pub struct ThreeValuedIn;

impl AnalyzerRule for ThreeValuedIn {
    fn name(&self) -> &str {
        "three_valued_in"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(rewrite).data()
    }
}

fn rewrite(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Filter(filter) if has_in(&filter.predicate) => {
            let predicate = conditions(filter.predicate, filter.input.schema())?;
            Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input)?)))
        }
        LogicalPlan::Join(join) if join.filter.as_ref().is_some_and(has_in) => {
            let schema = join.left.schema().join(join.right.schema())?;
            let filter = join.filter.map(|filter| conditions(filter, &schema)).transpose()?;
            Ok(Transformed::yes(LogicalPlan::Join(Join { filter, ..join })))
        }
        node => Ok(Transformed::no(node)),
    }
}

fn has_in(condition: &Expr) -> bool {
    condition.exists(|expr| Ok(matches!(expr, Expr::InSubquery(_)))).unwrap_or(false)
}

/// All conditions that must be true of a row.
fn conditions(predicate: Expr, schema: &DFSchema) -> Result<Expr> {
    let all = split_conjunction_owned(predicate).into_iter();
    let all = all.map(|condition| of_its_own(condition, schema)).collect::<Result<Vec<_>>>()?;
    Ok(conjunction(all).unwrap_or_else(|| lit(true)))
}

/// A condition that must be true.
fn of_its_own(condition: Expr, schema: &DFSchema) -> Result<Expr> {
    let Some(found) = as_in(&condition) else {
        return within(condition, schema, Unknown::IsFalse).data();
    };
    let is_correlated = !found.subquery.outer_ref_columns.is_empty();
    let is_for_joins = !found.negated || !(is_correlated || is_constant(&found.expr));
    // It asks once, but what is correlated and asks a model is another rule's.
    let stays = match is_correlated {
        true => asks_model(&found),
        false => found.expr.is_volatile() || contains_call(&found.expr),
    };
    match is_for_joins || !MayBeNull::of(&found, schema)?.any() || stays {
        true => Ok(condition),
        false => not_exists(found, schema),
    }
}

/// `IN` and `NOT IN`, also where NOT stands in front.
fn as_in(condition: &Expr) -> Option<InSubquery> {
    match condition {
        Expr::InSubquery(found) => Some(found.clone()),
        Expr::Not(inner) => match inner.as_ref() {
            Expr::InSubquery(found) => {
                Some(InSubquery { negated: !found.negated, ..found.clone() })
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether it names no column, of whichever query.
fn is_constant(expr: &Expr) -> bool {
    let names_a_column = |expr: &Expr| {
        Ok(match expr {
            Expr::Column(_) | Expr::OuterReferenceColumn(..) => true,
            Expr::ScalarSubquery(subquery) => !subquery.outer_ref_columns.is_empty(),
            _ => false,
        })
    };
    !expr.exists(names_a_column).unwrap_or(true)
}

/// Or cannot be asked again for another reason.
fn asks_model(found: &InSubquery) -> bool {
    found.expr.is_volatile() || contains_call(&found.expr) || calls_model(&found.subquery.subquery)
}

/// What of `x IN (SELECT y …)` may be.
struct MayBeNull {
    x: bool,
    y: bool,
}

impl MayBeNull {
    fn of(found: &InSubquery, schema: &DFSchema) -> Result<Self> {
        let y = found.subquery.subquery.schema().field(0).is_nullable();
        Ok(Self { x: found.expr.nullable(schema)?, y })
    }

    fn any(&self) -> bool {
        self.x || self.y
    }
}

fn not_exists(found: InSubquery, schema: &DFSchema) -> Result<Expr> {
    let InSubquery { expr, subquery, .. } = found;
    let rows = subquery.subquery.as_ref().clone();
    let mut outer_ref_columns = subquery.outer_ref_columns.clone();
    let expr = expr.transform(|expr| match expr {
        // Seen from within the subquery.
        Expr::Column(column) => {
            let field = Arc::clone(schema.field_from_column(&column)?);
            let outer = Expr::OuterReferenceColumn(field, column);
            outer_ref_columns.push(outer.clone());
            Ok(Transformed::yes(outer))
        }
        expr => Ok(Transformed::no(expr)),
    });
    let is_it = expr.data()?.eq(first_column(&rows));
    let rows = LogicalPlanBuilder::from(rows).filter(is_it.is_not_false())?.build()?;
    let subquery = Subquery { subquery: rows.into(), outer_ref_columns, ..subquery };
    Ok(Expr::Exists(Exists { subquery, negated: true }))
}

fn first_column(rows: &LogicalPlan) -> Expr {
    Expr::Column(Column::from(rows.schema().qualified_field(0)))
}

/// What becomes of a condition of which nobody knows whether it is true.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    /// The same as of one that is false.
    IsFalse,
    /// Something else, or that is not known here.
    Matters,
}

fn within(condition: Expr, schema: &DFSchema, unknown: Unknown) -> Result<Transformed<Expr>> {
    if let Some(found) = as_in(&condition) {
        let is_enough = unknown == Unknown::IsFalse && !found.negated;
        let may_be_null = MayBeNull::of(&found, schema)?;
        return match is_enough || !may_be_null.any() || asks_model(&found) {
            true => Ok(Transformed::no(condition)),
            false => Ok(Transformed::yes(cases(found, may_be_null)?)),
        };
    }
    let unknown = match condition {
        Expr::BinaryExpr(BinaryExpr { op: Operator::And | Operator::Or, .. }) => unknown,
        _ => Unknown::Matters,
    };
    condition.map_children(|inner| within(inner, schema, unknown))
}

fn cases(found: InSubquery, may_be_null: MayBeNull) -> Result<Expr> {
    let rows = || LogicalPlanBuilder::from(found.subquery.subquery.as_ref().clone());
    let mut unknown = vec![];
    if may_be_null.y {
        let is_null = first_column(&found.subquery.subquery).is_null();
        unknown.push(has_rows(rows().filter(is_null)?, &found.subquery)?);
    }
    if may_be_null.x {
        let is_null = found.expr.as_ref().clone().is_null();
        unknown.push(is_null.and(has_rows(rows(), &found.subquery)?));
    }
    let is_negated = found.negated;
    let is_found = Expr::InSubquery(InSubquery { negated: false, ..found });
    let case = |when, then: Option<bool>| (Box::new(when), Box::new(lit(ScalarValue::from(then))));
    let unknown = unknown.into_iter().map(|when| case(when, None));
    let cases = std::iter::once(case(is_found, Some(!is_negated))).chain(unknown).collect();
    Ok(Expr::Case(Case::new(None, cases, Some(Box::new(lit(is_negated))))))
}

/// Whether there is a row, of a subquery that names what `like` names.
fn has_rows(rows: LogicalPlanBuilder, like: &Subquery) -> Result<Expr> {
    let subquery = |rows: LogicalPlan| Subquery { subquery: rows.into(), ..like.clone() };
    if !like.outer_ref_columns.is_empty() {
        let subquery = subquery(rows.build()?);
        return Ok(Expr::Exists(Exists { subquery, negated: false }));
    }
    let none: [Expr; 0] = [];
    // By a name that no query has.
    let found = count(lit(1_i64)).alias("__forebay_has_rows");
    let rows = rows.limit(0, Some(1))?.aggregate(none, [found])?.build()?;
    Ok(Expr::ScalarSubquery(subquery(rows)).gt(lit(0_i64)))
}
