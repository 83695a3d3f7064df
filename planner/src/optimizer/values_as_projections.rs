//! Subqueries and calls in `VALUES` are computed by a projection above: DataFusion evaluates VALUES while it
//! plans, when no subquery has run and no model has been asked.
//!
//! ```text
//!                                       Projection: CASE row WHEN 0 THEN (<subquery>) ELSE a END AS a, b
//! Values: ((<subquery>), 1), (2, 3)  →    Values: (NULL, 1, 0), (2, 3, 1)
//! ```

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Case, Expr, LogicalPlan, LogicalPlanBuilder, Values, lit};
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
            LogicalPlan::Values(values)
                if values.values.iter().flatten().any(is_evaluated_later) =>
            {
                Ok(Transformed::yes(projected(values)?))
            }
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

fn is_evaluated_later(expr: &Expr) -> bool {
    contains_call(expr) || expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or(false)
}

/// Each row with its number, and a projection that computes what rows of these numbers have.
fn projected(Values { schema, mut values }: Values) -> Result<LogicalPlan> {
    let types = schema.fields().iter().map(|field| field.data_type());
    let nulls = types.map(ScalarValue::try_from).collect::<Result<Vec<_>>>()?;
    let mut later: Vec<Vec<(i64, Expr)>> = vec![vec![]; nulls.len()];
    for (number, row) in (0..).zip(&mut values) {
        for ((value, null), later) in row.iter_mut().zip(&nulls).zip(&mut later) {
            if is_evaluated_later(value) {
                later.push((number, std::mem::replace(value, lit(null.clone()))));
            }
        }
        row.push(lit(number));
    }
    let rows = LogicalPlanBuilder::values(values)?.build()?;
    let mut columns = rows.schema().columns().into_iter().map(Expr::Column).collect::<Vec<_>>();
    let number = columns.pop();
    let columns =
        columns.into_iter().zip(later).zip(schema.fields()).map(|((column, later), field)| {
            let case = Case {
                expr: number.clone().map(Box::new),
                when_then_expr: later
                    .into_iter()
                    .map(|(row, value)| (Box::new(lit(row)), Box::new(value)))
                    .collect(),
                else_expr: Some(Box::new(column.clone())),
            };
            if case.when_then_expr.is_empty() {
                column.alias(field.name())
            } else {
                Expr::Case(case).alias(field.name())
            }
        });
    LogicalPlanBuilder::from(rows).project(columns.collect::<Vec<_>>())?.build()
}
