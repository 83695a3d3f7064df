//! Functions that make values of any size from small ones, such as `repeat`, within bounds: an
//! allocation that fails ends the process, and with it the queries of everyone.
//!
//! ```text
//!  plan ── bound ──▶ the same, with `Bounded` in place of such functions and of `||`
//!                          │ for each batch: what is the most that can be made of these rows?
//!                          ▼
//!                    the function itself, on all rows, or in halves, or an error that names it
//! ```
//!
//! - `function`: the function around a function
//! - `most`: which functions those are, and what each may make of a row
//! - `operator`: `||` as a function, to be bounded like one
//!
//! For sessions of many clients: who is alone may fill the memory of this process.

mod function;
mod most;
mod operator;

use std::cell::Cell;
use std::sync::{Arc, LazyLock};

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::functions::all_default_functions;
use datafusion::functions_nested::all_default_nested_functions;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, ScalarUDF};

use function::Bounded;

/// What a function may make of one batch of rows, and of one value, in bytes.
const MADE_MAX: u64 = 256 << 20;

/// What functions may make of constants while a statement is planned, in bytes: plans are copied by
/// many rules. What is more is computed where the statement runs.
const CONSTANTS_MAX: u64 = 16 << 20;

thread_local! {
    /// What is left of the budget, where there is one.
    static BUDGET: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Plans something on this thread, within a budget for what is computed meanwhile.
pub fn with_budget<T>(plan: impl FnOnce() -> T) -> T {
    BUDGET.set(Some(CONSTANTS_MAX));
    let planned = plan();
    BUDGET.set(None);
    planned
}

/// Whether so many bytes may be made here and now.
fn takes(bytes: u64) -> bool {
    let Some(left) = BUDGET.get() else { return true };
    let rest = left.checked_sub(bytes);
    BUDGET.set(Some(rest.unwrap_or(left)));
    rest.is_some()
}

/// The same plan, with bounds on what its functions make.
///
/// # Errors
/// If a plan cannot be rewritten, which planned ones can.
pub fn bound(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        let node = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let bound = expr.transform_up(bound_call)?;
            Ok(bound.update_data(|expr| name.restore(expr)))
        })?;
        node.transform_data(|node| node.recompute_schema().map(Transformed::yes))
    })
    .data()
}

fn bound_call(expr: Expr) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::ScalarFunction(mut call) if is_unbounded(&call.func) => {
            call.func = Arc::new(ScalarUDF::from(Bounded::new(call.func)));
            Transformed::yes(Expr::ScalarFunction(call))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) => {
            let concat = ScalarUDF::from(Bounded::new(Arc::clone(&operator::CONCAT)));
            Transformed::yes(concat.call(vec![*left, *right]))
        }
        expr => Transformed::no(expr),
    })
}

fn is_unbounded(function: &ScalarUDF) -> bool {
    most::of(function.name()).is_some() && !function.inner().is::<Bounded>()
}

/// All that [`bound`] puts into plans, by which other processes find them again.
pub(crate) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    static FUNCTIONS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        let all = all_default_functions().into_iter().chain(all_default_nested_functions());
        let all = all.chain([Arc::clone(&operator::CONCAT)]);
        let bounded = all.filter(|function| is_unbounded(function));
        bounded.map(|function| Arc::new(ScalarUDF::from(Bounded::new(function)))).collect()
    });
    FUNCTIONS.iter().cloned()
}

#[cfg(test)]
mod tests;
