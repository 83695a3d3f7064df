//! Outer joins with a condition beside their keys are hash joins, whatever was asked for.
//!
//! DataFusion's sort-merge join (`datafusion.optimizer.prefer_hash_join = false`) gives the rows for which the
//! condition found no partner when it gets to them, and claims that the order of its input is kept: an ORDER BY
//! above would be left out, and its rows come in another order.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode, SortMergeJoinExec};

/// The rule that turns outer joins with a further condition into hash joins.
#[derive(Debug)]
pub struct OrderedJoins;

impl PhysicalOptimizerRule for OrderedJoins {
    fn name(&self) -> &str {
        "ordered_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<SortMergeJoinExec>().filter(|join| defers(join))
            else {
                return Ok(Transformed::no(node));
            };
            let hash_join = HashJoinExec::try_new(
                Arc::clone(join.left()),
                Arc::clone(join.right()),
                join.on().to_vec(),
                join.filter().clone(),
                &join.join_type(),
                None,
                PartitionMode::Partitioned,
                join.null_equality(),
                false,
            )?;
            Ok(Transformed::yes(Arc::new(hash_join) as _))
        })
        .data()
    }
}

/// Whether rows wait for what the condition says of all their partners.
fn defers(join: &SortMergeJoinExec) -> bool {
    join.filter().is_some() && join.join_type() != JoinType::Inner
}
