//! `VALUES` with subqueries or calls are projections of one row each: DataFusion evaluates the expressions
//! of VALUES while it plans, when no subquery has run and no model has been asked.
//!
//! ```text
//! Values: (1, (<subquery>)), (2, 3)  →  Union
//!                                         Projection: 1, (<subquery>)
//!                                           EmptyRelation: rows=1
//!                                         Projection: 2, 3
//!                                           EmptyRelation: rows=1
//! ```

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Values};
use datafusion::optimizer::AnalyzerRule;

use super::extract_scalar_inference::contains_call;
use super::is_subquery;

/// See the [module](self).
#[derive(Debug)]
pub struct ValuesAsProjections;

impl AnalyzerRule for ValuesAsProjections {
    fn name(&self) -> &str {
        "values_as_projections"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Values(values) if values.values.iter().flatten().any(is_evaluated_later) => {
                Ok(Transformed::yes(projections(values)?))
            }
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

fn is_evaluated_later(expr: &Expr) -> bool {
    contains_call(expr) || expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or(false)
}

fn projections(Values { schema, values }: Values) -> Result<LogicalPlan> {
    let mut rows = values.into_iter().map(|row| {
        let names = schema.fields().iter().map(|field| field.name());
        let columns = row.into_iter().zip(names).map(|(value, name)| value.alias(name));
        LogicalPlanBuilder::empty(true).project(columns.collect::<Vec<_>>())
    });
    let first = rows.next().unwrap_or_else(|| Ok(LogicalPlanBuilder::empty(false)))?;
    rows.try_fold(first, |all, row| all.union(row?.build()?))?.build()
}
