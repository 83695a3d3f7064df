//! Columns of a recursive query whose recursive term has scalar subqueries can be NULL.
//!
//! DataFusion decides before any rule whether a column of a `WITH RECURSIVE` can be NULL, and `(SELECT
//! count(*) …)` cannot. Then a rule of its makes a join of the subquery, after which the recursive term's
//! column can be NULL as far as the plan knows, and the query is refused ("field nullability differs"). So it
//! is said at the start:
//!
//! ```text
//! RecursiveQuery                            RecursiveQuery
//!   Projection: 1 AS v                  →     Projection: 1 AS v
//!   Projection: (<subquery>) AS v             Projection: unknown(v) AS v
//!     Scan: r                                   Projection: (<subquery>) AS v
//!                                                 Scan: r
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::logical_plan::RecursiveQuery;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

use crate::logical::Unknown;

/// See the [module](self).
#[derive(Debug)]
pub struct NullableRecursions;

impl AnalyzerRule for NullableRecursions {
    fn name(&self) -> &str {
        "nullable_recursions"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::RecursiveQuery(query) if has_subqueries(&query.recursive_term)? => {
                Ok(Transformed::yes(of_nullable_columns(query)?))
            }
            node => Ok(Transformed::no(node)),
        })?;
        if !plan.transformed {
            return Ok(plan.data);
        }
        // What reads such a column can be NULL, too.
        plan.data
            .transform_up_with_subqueries(|node| Ok(Transformed::yes(node.recompute_schema()?)))
            .data()
    }
}

fn has_subqueries(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        let is_scalar = |expr: &Expr| Ok(matches!(expr, Expr::ScalarSubquery(_)));
        Ok(node.expressions().iter().any(|expr| expr.exists(is_scalar).unwrap_or(false)))
    })
}

fn of_nullable_columns(query: RecursiveQuery) -> Result<LogicalPlan> {
    let schema = Arc::clone(query.recursive_term.schema());
    let columns = schema.iter().map(|(relation, field)| {
        let column = Expr::from((relation, field));
        if field.is_nullable() {
            column
        } else {
            Unknown::of(column).alias_qualified(relation.cloned(), field.name())
        }
    });
    let term = LogicalPlanBuilder::from(query.recursive_term).project(columns)?.build()?;
    let RecursiveQuery { name, static_term, is_distinct, .. } = query;
    let query = RecursiveQuery::try_new(name, static_term, Arc::new(term), is_distinct)?;
    Ok(LogicalPlan::RecursiveQuery(query))
}
