//! A rule of DataFusion's that does not get to see some operators as what they are.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

pub(super) type Plan = Arc<dyn ExecutionPlan>;
pub(super) type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// One operator in the place of another.
pub(super) type Exchange = fn(Plan) -> Result<Transformed<Plan>>;

/// A rule that meets other operators than there are.
#[derive(Debug)]
struct Disguised {
    rule: Rule,
    before: Exchange,
    after: Exchange,
}

/// Replaces operators before each rule of this name, and puts them back after it.
pub(super) fn add_to(rules: &mut [Rule], name: &str, before: Exchange, after: Exchange) {
    for rule in rules.iter_mut().filter(|rule| rule.name() == name) {
        *rule = Arc::new(Disguised { rule: Arc::clone(rule), before, after });
    }
}

impl PhysicalOptimizerRule for Disguised {
    fn optimize(&self, plan: Plan, config: &ConfigOptions) -> Result<Plan> {
        let disguised = plan.transform_up(self.before).data()?;
        self.rule.optimize(disguised, config)?.transform_up(self.after).data()
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}
