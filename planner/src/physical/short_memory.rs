//! Joins that go to disk when memory is short, or say what to do.
//!
//! The last of the physical rules: those before know DataFusion's joins. Those who look at plans later do, too, as
//! the operators pass for them. A plan that goes to a worker goes with DataFusion's joins, and the worker sees to
//! them (with the same operators).

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use forebay_engine::{LoopJoinExec, SpillingJoinExec};

use super::disguise::{Plan, Rule};

pub(crate) fn add_to(rules: &mut Vec<Rule>) {
    rules.push(Arc::new(SpillJoins));
}

/// Puts a [`SpillingJoinExec`] in the place of each hash join that may be one, and a [`LoopJoinExec`] in that of joins
/// without keys. Whether memory has a limit is known when they run.
#[derive(Debug)]
struct SpillJoins;

impl PhysicalOptimizerRule for SpillJoins {
    fn optimize(&self, plan: Plan, _: &ConfigOptions) -> Result<Plan> {
        let plan = plan.transform_up(SpillingJoinExec::in_place_of).data()?;
        plan.transform_up(LoopJoinExec::in_place_of).data()
    }

    fn name(&self) -> &str {
        "spill_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
