//! Lifts `ml_predict(…)` out of expressions: the operator keeps a column, and an
//! [`Inference`] below it computes that column.
//!
//! ```text
//! Filter: ml_predict('toxic', text)['score'] > 0.9      Projection: <the original columns>
//!   Scan                                           →      Filter: "toxic(text).score" > 0.9
//!                                                           Inference: model=toxic
//!                                                             Scan
//! ```
//! Equal calls in one operator become one node, unless the model is volatile.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, Result, ScalarValue, not_impl_err};
use datafusion::functions::core::expr_fn::named_struct;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Distinct, Expr, Filter, Join, LogicalPlan, WriteOp, ident, lit};
use datafusion::optimizer::AnalyzerRule;
use forebay_udf::model::{Determinism, ModelDeclaration};

use super::lift::{Lift, lift_from_distinct_on, lift_from_unary, restore_columns};
use crate::config::ForebayConfig;
use crate::logical::Inference;
use crate::sql::scalar::as_call;

/// See the [module](self).
#[derive(Debug)]
pub struct ExtractScalarInference;

impl AnalyzerRule for ExtractScalarInference {
    fn name(&self) -> &str {
        "extract_scalar_inference"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if let LogicalPlan::Dml(dml) = &plan
            && matches!(dml.op, WriteOp::Delete | WriteOp::Update)
            && plan.exists(|node| Ok(node.expressions().iter().any(contains_call)))?
        {
            return not_impl_err!(
                "ml_predict is not supported in {}; write the rows to keep into a new table with \
                 CREATE TABLE … AS SELECT",
                dml.op
            );
        }
        let config = config.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
        let by_cost = config.order_filters_by_cost;
        plan.transform_up_with_subqueries(|plan| extract(plan, by_cost)).data()
    }
}

/// Whether a call of `ml_predict` is part of the expression.
pub(crate) fn contains_call(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(as_call(expr).is_some())).unwrap_or(false)
}

fn extract(plan: LogicalPlan, by_cost: bool) -> Result<Transformed<LogicalPlan>> {
    if !plan.expressions().iter().any(contains_call) {
        return Ok(Transformed::no(plan));
    }
    let original = Arc::clone(plan.schema());
    let rewritten = match plan {
        LogicalPlan::Join(join) => extract_from_join(join, by_cost)?,
        LogicalPlan::Distinct(Distinct::On(distinct)) => lift_from_distinct_on::<Lifter>(distinct)?,
        LogicalPlan::Filter(filter) => extract_from_filter(filter, by_cost)?,
        plan => extract_from_unary(plan)?,
    };
    Ok(Transformed::yes(restore_columns(rewritten, &original)?))
}

fn extract_from_unary(plan: LogicalPlan) -> Result<LogicalPlan> {
    match plan.inputs()[..] {
        [_] => lift_from_unary::<Lifter>(plan),
        _ => not_impl_err!(
            "ml_predict is not supported in {}; compute it in a subquery",
            plan.display()
        ),
    }
}

/// Conditions without a call run first, below the inference: the model sees fewer rows, and none
/// that they were there to keep away from it. Then those with calls, the cheapest model first, so
/// that a larger one sees only what the smaller ones have left.
fn extract_from_filter(filter: Filter, by_cost: bool) -> Result<LogicalPlan> {
    let (calls, plain): (Vec<Expr>, Vec<Expr>) =
        split_conjunction_owned(filter.predicate).into_iter().partition(contains_call);
    let mut input = filter.input;
    if let Some(plain) = conjunction(plain) {
        input = Arc::new(LogicalPlan::Filter(Filter::try_new(plain, input)?));
    }
    let groups = if by_cost { order_by_cost(calls)? } else { vec![calls] };
    for group in groups {
        if let Some(group) = conjunction(group) {
            let original = Arc::clone(input.schema());
            let filter = extract_from_unary(LogicalPlan::Filter(Filter::try_new(group, input)?))?;
            input = Arc::new(restore_columns(filter, &original)?);
        }
    }
    Ok(Arc::unwrap_or_clone(input))
}

/// Conditions that need the same calls together, the cheapest group first. What a model costs is
/// estimated by its memory. One group if a model's rows must stay as they are.
fn order_by_cost(conditions: Vec<Expr>) -> Result<Vec<Vec<Expr>>> {
    let mut groups: Vec<(Vec<Expr>, u64, Vec<Expr>)> = Vec::new();
    for condition in &conditions {
        let (calls, cost, needs_its_rows) = calls_of(condition)?;
        if needs_its_rows {
            return Ok(vec![conditions]);
        }
        let condition = condition.clone();
        match groups.iter_mut().find(|(known, _, _)| *known == calls) {
            Some((_, _, group)) => group.push(condition),
            None => groups.push((calls, cost, vec![condition])),
        }
    }
    groups.sort_by_key(|(_, cost, _)| *cost);
    Ok(groups.into_iter().map(|(_, _, group)| group).collect())
}

/// The calls in an expression, the memory of their models in bytes, and whether one of these models
/// needs its rows.
fn calls_of(expr: &Expr) -> Result<(Vec<Expr>, u64, bool)> {
    let (mut calls, mut cost, mut needs_its_rows) = (Vec::new(), 0u64, false);
    expr.apply(|expr| {
        if let Some((function, args)) = as_call(expr)
            && !calls.contains(expr)
        {
            let model = function.model(args)?.model;
            needs_its_rows |= model.needs_its_rows();
            let resources = &model.resources;
            cost = cost.saturating_add(resources.memory.max(resources.gpu_memory));
            calls.push(expr.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok((calls, cost, needs_its_rows))
}

/// Conditions with calls over columns of both sides are a filter above an inner join; those of other
/// joins decide what becomes of a side's rows, which nothing above can do.
fn extract_from_join(mut join: Join, by_cost: bool) -> Result<LogicalPlan> {
    let (left, right) = (Arc::clone(join.left.schema()), Arc::clone(join.right.schema()));
    let is_above = |condition: &Expr| {
        let is_over_both = |expr: &Expr| {
            let columns = expr.column_refs();
            let has_all = |side: &DFSchema| columns.iter().all(|column| side.has_column(column));
            Ok(as_call(expr).is_some() && !has_all(&left) && !has_all(&right))
        };
        condition.exists(is_over_both).unwrap_or(false)
    };
    if join.join_type != JoinType::Inner {
        return extract_from_sides(join);
    }
    let conditions = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
    let (above, within): (Vec<_>, Vec<_>) = conditions.into_iter().partition(is_above);
    join.filter = conjunction(within);
    let original = Arc::clone(&join.schema);
    let join = restore_columns(extract_from_sides(join)?, &original)?;
    match conjunction(above) {
        Some(above) => extract_from_filter(Filter::try_new(above, Arc::new(join))?, by_cost),
        None => Ok(join),
    }
}

/// Each call below the side whose columns it is given.
fn extract_from_sides(join: Join) -> Result<LogicalPlan> {
    let mut left = Lifter::above(Arc::unwrap_or_clone(join.left));
    let mut right = Lifter::above(Arc::unwrap_or_clone(join.right));
    let on = join
        .on
        .into_iter()
        .map(|(l, r)| {
            let l = left.lift_beside(l, &right.column_names())?;
            Ok((l, right.lift_beside(r, &left.column_names())?))
        })
        .collect::<Result<Vec<_>>>()?;
    let filter = join
        .filter
        .map(|filter| {
            let lift = |expr: Expr| {
                if as_call(&expr).is_none() {
                    return Ok(Transformed::no(expr));
                }
                let lifted = if left.has_columns_of(&expr) {
                    left.lift_beside(expr, &right.column_names())
                } else if right.has_columns_of(&expr) {
                    right.lift_beside(expr, &left.column_names())
                } else {
                    not_impl_err!(
                        "ml_predict over columns of both sides of a join, or of a subquery and the \
                         query around it, is not supported in their condition; join first, and call it \
                         in WHERE or in a query around the join"
                    )
                };
                lifted.map(Transformed::yes)
            };
            filter.transform_down(lift).data()
        })
        .transpose()?;
    let join = Join::try_new(
        Arc::new(left.input),
        Arc::new(right.input),
        on,
        filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    Ok(LogicalPlan::Join(join))
}

/// Collects the inferences below one operator.
struct Lifter {
    input: LogicalPlan,
    /// Calls already lifted, and what they became.
    lifted: Vec<(Expr, Expr)>,
}

impl Lift for Lifter {
    fn above(input: LogicalPlan) -> Self {
        Self { input, lifted: vec![] }
    }

    fn lift(&mut self, expr: Expr) -> Result<Expr> {
        self.lift_beside(expr, &[])
    }

    fn into_input(self) -> Result<LogicalPlan> {
        Ok(self.input)
    }
}

impl Lifter {
    /// Replaces every call in `expr`, innermost first. `taken`: names that a join's other side has.
    fn lift_beside(&mut self, expr: Expr, taken: &[String]) -> Result<Expr> {
        expr.transform_up(|expr| {
            if as_call(&expr).is_some() {
                return self.lift_call(expr, taken).map(Transformed::yes);
            }
            Ok(match field_of_struct(&expr) {
                Some(field) => Transformed::yes(field),
                None => Transformed::no(expr),
            })
        })
        .data()
    }

    fn lift_call(&mut self, call: Expr, taken: &[String]) -> Result<Expr> {
        if let Some((_, column)) = self.lifted.iter().find(|(lifted, _)| *lifted == call) {
            return Ok(column.clone());
        }
        let Some((function, args)) = as_call(&call) else { return Ok(call) };
        let resolved = function.model(args)?;
        let names = self.output_names(&resolved.model, &resolved.inputs, taken);
        let replacement = replacement(&resolved.model, &names);
        let is_volatile = resolved.model.determinism == Determinism::Volatile
            || resolved.inputs.iter().any(Expr::is_volatile);
        let is_shared = !is_volatile || function.is_one_call();
        let inference = Inference::try_new_with_names(
            self.input.clone(),
            resolved.model,
            resolved.inputs,
            names,
        )?;
        self.input = inference.into_plan();
        if is_shared {
            self.lifted.push((call, replacement.clone()));
        }
        Ok(replacement)
    }

    /// `toxic(text).score`: what a reader of EXPLAIN recognises, with a number if it is taken.
    fn output_names(
        &self,
        model: &ModelDeclaration,
        inputs: &[Expr],
        taken: &[String],
    ) -> Vec<String> {
        let inputs: Vec<String> = inputs.iter().map(|e| e.qualified_name().1).collect();
        let call = format!("{}({})", model.name, inputs.join(", "));
        let own = self.column_names();
        let names = |call: &str| -> Vec<String> {
            match &model.output_columns()[..] {
                [_] => vec![call.to_owned()],
                many => many.iter().map(|f| format!("{call}.{}", f.name())).collect(),
            }
        };
        let is_free = |names: &Vec<String>| {
            names.iter().all(|name| !own.contains(name) && !taken.contains(name))
        };
        let numbered = (2..).map(|n| names(&format!("{call} #{n}")));
        std::iter::once(names(&call)).chain(numbered).find(is_free).unwrap_or_default()
    }

    fn column_names(&self) -> Vec<String> {
        self.input.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn has_columns_of(&self, expr: &Expr) -> bool {
        let columns = expr.column_refs();
        columns.iter().all(|column| self.input.schema().has_column(column))
    }
}

/// A column for one output, a struct of columns otherwise.
fn replacement(model: &ModelDeclaration, names: &[String]) -> Expr {
    match names {
        [one] => ident(one),
        many => named_struct(
            model
                .output_columns()
                .iter()
                .zip(many)
                .flat_map(|(field, name)| [lit(field.name().as_str()), ident(name)])
                .collect(),
        ),
    }
}

/// `get_field(named_struct('a', x, 'b', y), 'b')` → `y`
fn field_of_struct(expr: &Expr) -> Option<Expr> {
    let Expr::ScalarFunction(get) = expr else { return None };
    let ("get_field", [Expr::ScalarFunction(made), Expr::Literal(wanted, _)]) =
        (get.func.name(), &get.args[..])
    else {
        return None;
    };
    let is_wanted = |name: &Expr| match name {
        Expr::Literal(name, _) => text(name).is_some() && text(name) == text(wanted),
        _ => false,
    };
    let fields = (made.func.name() == "named_struct").then(|| made.args.chunks_exact(2))?;
    fields.into_iter().find(|field| is_wanted(&field[0])).map(|field| field[1].clone())
}

fn text(value: &ScalarValue) -> Option<&str> {
    value.try_as_str().flatten()
}
