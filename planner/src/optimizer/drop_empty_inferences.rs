//! An inference over no rows is no rows: no model is loaded for them, and DataFusion's rule for empty
//! inputs goes on with what is above.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{EmptyRelation, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::contains_inference;
use crate::logical::Inference;

/// See the [module](self).
#[derive(Debug)]
pub struct DropEmptyInferences;

impl OptimizerRule for DropEmptyInferences {
    fn name(&self) -> &str {
        "drop_empty_inferences"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if !contains_inference(&plan)? {
            return Ok(Transformed::no(plan));
        }
        plan.transform_up_with_subqueries(|plan| {
            Ok(match Inference::of(&plan) {
                Some(inference) if is_empty(inference.input()) => {
                    let schema = Arc::clone(plan.schema());
                    let empty = EmptyRelation { produce_one_row: false, schema };
                    Transformed::yes(LogicalPlan::EmptyRelation(empty))
                }
                _ => Transformed::no(plan),
            })
        })
    }
}

fn is_empty(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row)
}
