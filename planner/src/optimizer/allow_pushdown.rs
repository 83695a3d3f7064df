//! Tells each inference what DataFusion's own rules may move below it: the session's options, which
//! a node cannot ask for when a rule asks the node.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;

use crate::config::ForebayConfig;
use crate::logical::Inference;
use crate::logical::inference::Pushdown;

/// See the [module](self).
#[derive(Debug)]
pub struct AllowPushdown;

impl AnalyzerRule for AllowPushdown {
    fn name(&self) -> &str {
        "allow_pushdown"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let config = config.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
        let pushdown = Pushdown {
            filters: config.push_filters_below_inference,
            limits: config.push_limits_below_inference,
        };
        let set = |plan: LogicalPlan| match Inference::of(&plan) {
            Some(inference) if inference.pushdown() != pushdown => {
                Ok(Transformed::yes(inference.clone().with_pushdown(pushdown).into_plan()))
            }
            _ => Ok(Transformed::no(plan)),
        };
        plan.transform_up_with_subqueries(set).data()
    }
}
