//! Joins and sorts that go to disk when memory is short, or say what to do.
//!
//! The last of the physical rules: those before know DataFusion's operators. Those who look at plans later do, too, as
//! ours pass for them. A plan that goes to a worker goes with DataFusion's, and the worker sees to them (with the
//! same operators).

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use forebay_engine::{LimitedSortExec, LoopJoinExec, SpillingJoinExec};

use super::disguise::{Plan, Rule};

pub(crate) fn add_to(rules: &mut Vec<Rule>) {
    rules.push(Arc::new(ShortMemory));
}

/// Puts a [`SpillingJoinExec`] in the place of each hash join that may be one, a [`LoopJoinExec`] in that of joins
/// without keys, and a [`LimitedSortExec`] in that of sorts. Whether memory has a limit is known when they run.
#[derive(Debug)]
struct ShortMemory;

impl PhysicalOptimizerRule for ShortMemory {
    fn optimize(&self, plan: Plan, _: &ConfigOptions) -> Result<Plan> {
        let plan = plan.transform_up(SpillingJoinExec::in_place_of).data()?;
        let plan = plan.transform_up(LoopJoinExec::in_place_of).data()?;
        plan.transform_up(LimitedSortExec::in_place_of).data()
    }

    fn name(&self) -> &str {
        "short_memory"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
