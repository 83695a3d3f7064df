//! A model's input that needs the result of a scalar subquery or calls an asynchronous function is
//! computed by a projection below: DataFusion rewrites such expressions, and sends them to other
//! processes, for its own operators only.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::optimizer::AnalyzerRule;

use crate::logical::Inference;
use crate::logical::inference::INPUT_PREFIX;

/// See the [module](self).
#[derive(Debug)]
pub struct ComputeInputsBelowInference;

impl AnalyzerRule for ComputeInputsBelowInference {
    fn name(&self) -> &str {
        "compute_inputs_below_inference"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let rewrite = |plan: LogicalPlan| match Inference::of(&plan) {
            Some(inference) if inference.args().iter().any(is_for_projection) => {
                Ok(Transformed::yes(with_projection(inference)?))
            }
            _ => Ok(Transformed::no(plan)),
        };
        plan.transform_up_with_subqueries(rewrite).data()
    }
}

fn is_for_projection(expr: &Expr) -> bool {
    let is_found = |expr: &Expr| match expr {
        Expr::ScalarSubquery(_) => true,
        Expr::ScalarFunction(call) => call.func.as_async().is_some(),
        _ => false,
    };
    expr.exists(|expr| Ok(is_found(expr))).unwrap_or(false)
}

fn with_projection(inference: &Inference) -> Result<LogicalPlan> {
    let input = inference.input();
    let mut columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut dropped = inference.dropped().clone();
    let mut args = inference.args().to_vec();
    for arg in args.iter_mut().filter(|arg| is_for_projection(arg)) {
        let name = format!("{INPUT_PREFIX}{}", columns.len());
        let below = Column::new_unqualified(&name);
        columns.push(std::mem::replace(arg, Expr::Column(below.clone())).alias(name));
        dropped.insert(below);
    }
    let input = LogicalPlanBuilder::from(input.clone()).project(columns)?.build()?;
    let rewritten = inference.with_exprs_and_inputs(args, vec![input])?;
    Ok(rewritten.with_dropped(dropped)?.into_plan())
}
