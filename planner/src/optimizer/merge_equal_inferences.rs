//! Computes the same model over the same columns once, across the clauses of a query.
//!
//! ```text
//! Inference: toxic(text)               Projection: …, "toxic(text)"
//!   Filter: "toxic(text)" > 0.9     →    Filter: "toxic(text)" > 0.9
//!     Inference: toxic(text)               Inference: toxic(text)
//!       Scan                                 Scan
//! ```
//! The upper inference looks for an equal one below it, through operators that keep rows as they
//! are, and takes its outputs. Volatile models are left alone: each of their calls is one.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use forebay_udf::model::{Determinism, ModelDeclaration};

use super::through::{Through, carrying};
use super::{contains_inference, option};
use crate::logical::Inference;

/// See the [module](self).
#[derive(Debug)]
pub struct MergeEqualInferences;

impl OptimizerRule for MergeEqualInferences {
    fn name(&self) -> &str {
        "merge_equal_inferences"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if !option(config, |config| config.merge_equal_inferences) || !contains_inference(&plan)? {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| match Inference::of(&plan).map(merge) {
            Some(Ok(Some(merged))) => Ok(Transformed::yes(merged)),
            Some(Err(error)) => Err(error),
            _ => Ok(Transformed::no(plan)),
        })
    }
}

fn merge(upper: &Inference) -> Result<Option<LogicalPlan>> {
    let is_volatile = upper.model().determinism == Determinism::Volatile
        || upper.args().iter().any(Expr::is_volatile);
    if is_volatile {
        return Ok(None);
    }
    let Some((input, found)) = expose(upper.input(), upper.model(), upper.args()) else {
        return Ok(None);
    };
    let named: Vec<(Column, Column)> = upper.output_columns().zip(found).collect();
    let columns = upper.columns().into_iter().map(|column| {
        match named.iter().find(|(name, _)| *name == column) {
            Some((name, found)) => Expr::Column(found.clone()).alias(&name.name),
            None => Expr::Column(column),
        }
    });
    Ok(Some(LogicalPlanBuilder::from(input).project(columns)?.build()?))
}

/// The plan with the outputs of an equal inference below it in its schema, and their columns.
fn expose(
    plan: &LogicalPlan,
    model: &ModelDeclaration,
    args: &[Expr],
) -> Option<(LogicalPlan, Vec<Column>)> {
    if let Some(inference) = Inference::of(plan) {
        if is_same_call(inference, model, args) {
            let outputs: Vec<Column> = inference.output_columns().collect();
            let dropped = inference.dropped().iter().filter(|c| !outputs.contains(c)).cloned();
            let exposed = inference.clone().with_dropped(dropped.collect()).ok()?;
            return Some((exposed.into_plan(), outputs));
        }
        if !args.iter().all(|arg| inference.is_of_input(arg)) {
            return None;
        }
        let (input, found) = expose(inference.input(), model, args)?;
        let carried = inference.with_input(input).ok()?;
        // It may have dropped an output of its own of the same name.
        let columns = carried.columns();
        let has_all = found.iter().all(|column| columns.contains(column));
        return has_all.then(|| (carried.into_plan(), found));
    }
    let Through { input, exprs } = Through::of(plan, args)?;
    let (below, found) = expose(plan.inputs()[input], model, &exprs)?;
    carrying(plan, input, below, found)
}

fn is_same_call(inference: &Inference, model: &ModelDeclaration, args: &[Expr]) -> bool {
    let named_alike = ModelDeclaration {
        output_prefix: model.output_prefix.clone(),
        ..inference.model().as_ref().clone()
    };
    named_alike == *model && inference.args() == args
}
