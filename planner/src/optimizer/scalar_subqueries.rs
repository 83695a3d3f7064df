//! Scalar subqueries that DataFusion's rules would leave, or would plan as a join that is none.
//!
//! DataFusion makes joins of the scalar subqueries of projections and filters only. Those of the other
//! operators are computed by a projection below them:
//!
//! ```text
//! Sort: cosine_distance(v, (<subquery>))      Projection: v
//!   Scan: t                               →     Sort: cosine_distance(v, (scalar subquery 1))
//!                                                 Projection: v, (<subquery>) AS (scalar subquery 1)
//!                                                   Scan: t
//! ```
//! So are those of a filter that stand in front of `IN (SELECT …)`, which makes a join's condition of them.
//!
//! A subquery that names no column of the query around it becomes a join only where plans go to other
//! processes (`datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery` is off there: elsewhere an
//! operator of its own evaluates it). That join would give a row for each row of the subquery, so one that
//! may have several gets an aggregate that fails for more than one ([`SingleValue`]).

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::expr::{InSubquery, SetComparison};
use datafusion::logical_expr::{
    Distinct, Expr, Join, LogicalPlan, LogicalPlanBuilder, Subquery, ident,
};
use datafusion::optimizer::AnalyzerRule;

use super::lift::{Lift, lift_from_distinct_on, lift_from_unary, restore_columns};
use crate::logical::SingleValue;

/// See the [module](self).
#[derive(Debug)]
pub struct ScalarSubqueries;

impl AnalyzerRule for ScalarSubqueries {
    fn name(&self) -> &str {
        "scalar_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let all = !config.optimizer.enable_physical_uncorrelated_scalar_subquery;
        let is_ours = |expr: &Expr| contains(expr, |subquery| all || is_correlated(subquery));
        plan.transform_up_with_subqueries(|node| {
            if !node.expressions().iter().any(is_ours) {
                return Ok(Transformed::no(node));
            }
            let original = Arc::clone(node.schema());
            let node = if all {
                node.map_expressions(|expr| expr.transform_up(of_one_row))?.data
            } else {
                node
            };
            Ok(Transformed::yes(restore_columns(computed_below(node)?, &original)?))
        })
        .data()
    }
}

/// The operator above a projection that computes its scalar subqueries, if DataFusion would leave them.
fn computed_below(node: LogicalPlan) -> Result<LogicalPlan> {
    match node {
        LogicalPlan::Distinct(Distinct::On(distinct)) => lift_from_distinct_on::<Lifter>(distinct),
        LogicalPlan::Aggregate(_) | LogicalPlan::Sort(_) | LogicalPlan::Window(_) => {
            lift_from_unary::<Lifter>(node)
        }
        LogicalPlan::Filter(_) if node.expressions().iter().any(is_searched_for) => {
            lift_from_unary::<Lifter>(node)
        }
        LogicalPlan::Join(join) => computed_below_join(join),
        node => Ok(node),
    }
}

/// Whether a scalar subquery says what is looked for among the rows of another one: `(SELECT …) IN (SELECT …)`
/// becomes the condition of a join.
fn is_searched_for(expr: &Expr) -> bool {
    let found = |expr: &Expr| {
        Ok(match expr {
            Expr::InSubquery(InSubquery { expr, .. })
            | Expr::SetComparison(SetComparison { expr, .. }) => contains_any(expr),
            _ => false,
        })
    };
    expr.exists(found).unwrap_or(false)
}

/// Below the side whose columns a subquery names, or any if it names none.
fn computed_below_join(join: Join) -> Result<LogicalPlan> {
    let inputs = [join.left, join.right].map(Arc::unwrap_or_clone).to_vec();
    let mut lifter = Lifter { inputs, lifted: vec![] };
    let mut on = Vec::with_capacity(join.on.len());
    for (left, right) in join.on {
        on.push((lifter.lift_into(left, &[LEFT])?, lifter.lift_into(right, &[RIGHT])?));
    }
    let filter = join.filter.map(|filter| lifter.lift_into(filter, &[LEFT, RIGHT])).transpose()?;
    let [left, right] = [LEFT, RIGHT].map(|side| lifter.input(side));
    Ok(LogicalPlan::Join(Join::try_new(
        Arc::new(left?),
        Arc::new(right?),
        on,
        filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?))
}

/// A subquery that becomes a join with whatever reads it, as one that has one row.
fn of_one_row(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::ScalarSubquery(subquery) = expr else { return Ok(Transformed::no(expr)) };
    let plan = &subquery.subquery;
    let has_one_row = plan.max_rows().is_some_and(|most| most <= 1);
    let [column] = &plan.schema().columns()[..] else {
        return Ok(Transformed::no(Expr::ScalarSubquery(subquery)));
    };
    if has_one_row || is_correlated(&subquery) {
        return Ok(Transformed::no(Expr::ScalarSubquery(subquery)));
    }
    let value = SingleValue::function().call(vec![Expr::Column(column.clone())]);
    let plan = LogicalPlanBuilder::from(Arc::clone(plan))
        .aggregate(Vec::<Expr>::new(), [value.alias(&column.name)])?
        .build()?;
    Ok(Transformed::yes(Expr::ScalarSubquery(subquery.with_plan(Arc::new(plan)))))
}

/// Whether a scalar subquery of which `is_meant` holds is part of the expression.
fn contains(expr: &Expr, is_meant: impl Fn(&Subquery) -> bool) -> bool {
    let found = |expr: &Expr| match expr {
        Expr::ScalarSubquery(subquery) => Ok(is_meant(subquery)),
        _ => Ok(false),
    };
    expr.exists(found).unwrap_or(false)
}

fn contains_any(expr: &Expr) -> bool {
    contains(expr, |_| true)
}

fn is_correlated(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
}

/// The inputs of a join, by their numbers.
const LEFT: usize = 0;
const RIGHT: usize = 1;

/// Collects the subqueries of one operator.
struct Lifter {
    inputs: Vec<LogicalPlan>,
    lifted: Vec<Lifted>,
}

/// A subquery, the column that it becomes, and the number of the input which gets that.
struct Lifted {
    subquery: Expr,
    name: String,
    input: usize,
}

impl Lifter {
    /// The expression with columns in place of the subqueries that can be computed over one of these inputs.
    fn lift_into(&mut self, expr: Expr, inputs: &[usize]) -> Result<Expr> {
        let lift = |expr: Expr| {
            let Expr::ScalarSubquery(subquery) = &expr else { return Ok(Transformed::no(expr)) };
            let is_possible = |input: &&usize| {
                let schema = self.inputs[**input].schema();
                let mut columns = subquery.outer_ref_columns.iter();
                columns.all(|column| match column {
                    Expr::OuterReferenceColumn(_, column) => schema.has_column(column),
                    _ => false,
                })
            };
            Ok(match inputs.iter().find(is_possible) {
                Some(&input) => Transformed::yes(self.column(expr, input)),
                None => Transformed::no(expr),
            })
        };
        expr.transform_up(lift).data()
    }

    /// The column of a subquery.
    fn column(&mut self, subquery: Expr, input: usize) -> Expr {
        let has = |input: &LogicalPlan, name: &str| {
            input.schema().fields().iter().any(|field| field.name() == name)
        };
        let is_taken = |name: &String| {
            self.inputs.iter().any(|input| has(input, name))
                || self.lifted.iter().any(|lifted| lifted.name == *name)
        };
        let mut names = (1usize..).map(|number| format!("(scalar subquery {number})"));
        let name = names.find(|name| !is_taken(name)).unwrap_or_default();
        let column = ident(&name);
        self.lifted.push(Lifted { subquery, name, input });
        column
    }

    /// One of the inputs, above which its subqueries are computed.
    fn input(&self, input: usize) -> Result<LogicalPlan> {
        let plan = self.inputs[input].clone();
        let mut lifted = self.lifted.iter().filter(|lifted| lifted.input == input).peekable();
        if lifted.peek().is_none() {
            return Ok(plan);
        }
        let lifted = lifted.map(|lifted| lifted.subquery.clone().alias(&lifted.name));
        let columns = plan.schema().columns().into_iter().map(Expr::Column);
        let columns: Vec<Expr> = columns.chain(lifted).collect();
        LogicalPlanBuilder::from(plan).project(columns)?.build()
    }
}

impl Lift for Lifter {
    fn above(input: LogicalPlan) -> Self {
        Self { inputs: vec![input], lifted: vec![] }
    }

    fn lift(&mut self, expr: Expr) -> Result<Expr> {
        self.lift_into(expr, &[0])
    }

    fn into_input(self) -> Result<LogicalPlan> {
        self.input(0)
    }
}
