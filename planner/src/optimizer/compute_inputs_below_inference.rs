//! A model's input that needs the result of a scalar subquery is computed by a projection below:
//! DataFusion rewrites such expressions, and sends them to other processes, for its own operators
//! only.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::optimizer::AnalyzerRule;

use crate::logical::Inference;
use crate::logical::inference::INPUT_PREFIX;

/// See the [module](self).
#[derive(Debug)]
pub struct ComputeSubqueriesBelowInference;

impl AnalyzerRule for ComputeSubqueriesBelowInference {
    fn name(&self) -> &str {
        "compute_subqueries_below_inference"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewrite = |plan: LogicalPlan| match Inference::of(&plan) {
            Some(inference) if inference.args().iter().any(has_subquery) => {
                Ok(Transformed::yes(without_subqueries(inference)?))
            }
            _ => Ok(Transformed::no(plan)),
        };
        plan.transform_up_with_subqueries(rewrite).data()
    }
}

fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(matches!(expr, Expr::ScalarSubquery(_)))).unwrap_or(false)
}

fn without_subqueries(inference: &Inference) -> Result<LogicalPlan> {
    let input = inference.input();
    let mut columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut dropped = inference.dropped().clone();
    let mut args = inference.args().to_vec();
    for arg in args.iter_mut().filter(|arg| has_subquery(arg)) {
        let name = format!("{INPUT_PREFIX}{}", columns.len());
        let below = Column::new_unqualified(&name);
        columns.push(std::mem::replace(arg, Expr::Column(below.clone())).alias(name));
        dropped.insert(below);
    }
    let input = LogicalPlanBuilder::from(input.clone()).project(columns)?.build()?;
    let rewritten = inference.with_exprs_and_inputs(args, vec![input])?;
    Ok(rewritten.with_dropped(dropped)?.into_plan())
}
