//! Sort keys with a comparison in them are columns.
//!
//! DataFusion does not find its own sort sorted by `abs(a) < b`: it asks for the order of such an expression's
//! parts first, which nobody knows, and refuses the plan ("does not satisfy order requirements"). A column it finds.
//!
//! ```text
//! Sort: abs(a) < b, c        Projection: a, b, c
//!   Scan: t             →      Sort: (sort key 1), c
//!                                Projection: a, b, c, abs(a) < b AS (sort key 1)
//!                                  Scan: t
//! ```
//! So are those of windows, which are sorted by what they are partitioned by, too, and of aggregates.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Operator, SortExpr, ident};
use datafusion::optimizer::AnalyzerRule;

use super::lift::{Lift, lift_from_unary, restore_columns};

/// See the [module](self).
#[derive(Debug)]
pub struct ComputedSortKeys;

impl AnalyzerRule for ComputedSortKeys {
    fn name(&self) -> &str {
        "computed_sort_keys"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let original = Arc::clone(node.schema());
            let lifted = match node {
                LogicalPlan::Sort(mut sort)
                    if sort.expr.iter().any(|key| is_computed(&key.expr)) =>
                {
                    let mut lifter = Lifter::above(Arc::unwrap_or_clone(sort.input));
                    lifter.sort_keys(&mut sort.expr);
                    sort.input = Arc::new(lifter.into_input()?);
                    LogicalPlan::Sort(sort)
                }
                LogicalPlan::Window(_) | LogicalPlan::Aggregate(_)
                    if node.expressions().iter().any(has_computed_keys) =>
                {
                    lift_from_unary::<Lifter>(node)?
                }
                node => return Ok(Transformed::no(node)),
            };
            Ok(Transformed::yes(restore_columns(lifted, &original)?))
        })
        .data()
    }
}

/// Whether a key has a comparison in it, and can be computed below: of nothing but columns that are there.
fn is_computed(key: &Expr) -> bool {
    let compares = |expr: &Expr| {
        Ok(match expr {
            Expr::BinaryExpr(binary) => matches!(
                binary.op,
                Operator::Eq
                    | Operator::NotEq
                    | Operator::Lt
                    | Operator::LtEq
                    | Operator::Gt
                    | Operator::GtEq
                    | Operator::IsDistinctFrom
                    | Operator::IsNotDistinctFrom
            ),
            Expr::Between(_) | Expr::InList(_) | Expr::Like(_) | Expr::SimilarTo(_) => true,
            _ => false,
        })
    };
    let is_elsewhere = |expr: &Expr| {
        Ok(matches!(
            expr,
            Expr::OuterReferenceColumn(..)
                | Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        ))
    };
    key.exists(compares).unwrap_or(false) && !key.exists(is_elsewhere).unwrap_or(true)
}

fn has_computed_keys(expr: &Expr) -> bool {
    let has_some = |expr: &Expr| {
        let (order, partition): (&[SortExpr], &[Expr]) = match expr {
            Expr::WindowFunction(window) => (&window.params.order_by, &window.params.partition_by),
            Expr::AggregateFunction(aggregate) => (&aggregate.params.order_by, &[]),
            _ => (&[], &[]),
        };
        Ok(order.iter().map(|key| &key.expr).chain(partition).any(is_computed))
    };
    expr.exists(has_some).unwrap_or(false)
}

/// Collects the keys of one operator.
struct Lifter {
    input: LogicalPlan,
    lifted: Vec<(Expr, String)>,
}

impl Lifter {
    /// The key, or the column that it becomes.
    fn key(&mut self, key: Expr) -> Expr {
        if is_computed(&key) { self.column(key) } else { key }
    }

    fn sort_keys(&mut self, keys: &mut [SortExpr]) {
        for key in keys {
            key.expr = self.key(std::mem::take(&mut key.expr));
        }
    }

    fn column(&mut self, key: Expr) -> Expr {
        if let Some((_, name)) = self.lifted.iter().find(|(lifted, _)| *lifted == key) {
            return ident(name);
        }
        let fields = self.input.schema().fields();
        let is_taken = |name: &String| {
            fields.iter().any(|field| field.name() == name)
                || self.lifted.iter().any(|(_, lifted)| lifted == name)
        };
        let mut names = (1usize..).map(|number| format!("(sort key {number})"));
        let name = names.find(|name| !is_taken(name)).unwrap_or_default();
        let column = ident(&name);
        self.lifted.push((key, name));
        column
    }
}

impl Lift for Lifter {
    fn above(input: LogicalPlan) -> Self {
        Self { input, lifted: vec![] }
    }

    fn lift(&mut self, expr: Expr) -> Result<Expr> {
        expr.transform_up(|expr| {
            Ok(match expr {
                Expr::WindowFunction(mut function) => {
                    self.sort_keys(&mut function.params.order_by);
                    for key in &mut function.params.partition_by {
                        *key = self.key(std::mem::take(key));
                    }
                    Transformed::yes(Expr::WindowFunction(function))
                }
                Expr::AggregateFunction(mut function) => {
                    self.sort_keys(&mut function.params.order_by);
                    Transformed::yes(Expr::AggregateFunction(function))
                }
                expr => Transformed::no(expr),
            })
        })
        .data()
    }

    fn into_input(self) -> Result<LogicalPlan> {
        let columns = self.input.schema().columns().into_iter().map(Expr::Column);
        let lifted = self.lifted.into_iter().map(|(key, name)| key.alias(name));
        let columns: Vec<Expr> = columns.chain(lifted).collect();
        LogicalPlanBuilder::from(self.input).project(columns)?.build()
    }
}
