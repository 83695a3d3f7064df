//! What `min`, `max` and `sum` give over growing windows comes in no order that the plan knows.
//!
//! DataFusion knows that the greatest of more and more values only grows, and takes a column of it for one that
//! is sorted, NULLS LAST. But as long as there was no value it is NULL, and so NULLs come first: `ORDER BY` of
//! that column would leave them there. Over shrinking windows it is the other way round.
//!
//! ```text
//! WindowAggr: max(v) ORDER BY k   →   Projection: k, v, unknown(max(v) ORDER BY k) AS …
//!   Scan: t                             WindowAggr: max(v) ORDER BY k
//!                                         Scan: t
//! ```

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, Window, WindowFunctionDefinition,
};
use datafusion::optimizer::AnalyzerRule;

use crate::logical::Unknown;

/// See the [module](self).
#[derive(Debug)]
pub struct UnorderedWindows;

impl AnalyzerRule for UnorderedWindows {
    fn name(&self) -> &str {
        "unordered_windows"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Window(window) if window.window_expr.iter().any(is_taken_for_sorted) => {
                Ok(Transformed::yes(of_unknown_order(window)?))
            }
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

/// Whether it is an aggregate of a window that begins or ends at the current row.
fn is_taken_for_sorted(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_taken_for_sorted(&alias.expr),
        Expr::WindowFunction(function) => {
            let WindowFunction { fun, params } = function.as_ref();
            let WindowFunctionDefinition::AggregateUDF(aggregate) = fun else { return false };
            let frame = &params.window_frame;
            let is_whole = frame.start_bound.is_unbounded() && frame.end_bound.is_unbounded();
            matches!(aggregate.name(), "min" | "max" | "sum") && !is_whole
        }
        _ => false,
    }
}

fn of_unknown_order(window: Window) -> Result<LogicalPlan> {
    let schema = Arc::clone(&window.schema);
    let of_input = schema.fields().len() - window.window_expr.len();
    let columns: Vec<Expr> = schema
        .iter()
        .enumerate()
        .map(|(at, (relation, field))| {
            let column = Expr::from((relation, field));
            match at.checked_sub(of_input).map(|at| &window.window_expr[at]) {
                Some(expr) if is_taken_for_sorted(expr) => {
                    Unknown::of(column).alias_qualified(relation.cloned(), field.name())
                }
                _ => column,
            }
        })
        .collect();
    LogicalPlanBuilder::from(LogicalPlan::Window(window)).project(columns)?.build()
}
