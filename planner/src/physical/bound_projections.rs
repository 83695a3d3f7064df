//! Projections whose functions may make rows large, a few rows at a time.
//!
//! The last of the physical rules: those before know a `ProjectionExec` and how columns and orders pass
//! it. One of them knows too much: it moves what a projection computes into the scan below, where it
//! is computed for whole batches. So that one does not get to see such projections.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use forebay_engine::BoundedProjectionExec;

type Plan = Arc<dyn ExecutionPlan>;
type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's rule that moves projections into scans.
const MOVES_INTO_SCANS: &str = "ProjectionPushdown";

/// Makes `rules` leave projections that may make rows large where they are, and bounds these last.
pub(crate) fn add_to(rules: &mut Vec<Rule>) {
    for rule in rules.iter_mut().filter(|rule| rule.name() == MOVES_INTO_SCANS) {
        *rule = Arc::new(Blindfolded(Arc::clone(rule)));
    }
    rules.push(Arc::new(BoundProjections));
}

/// Puts a [`BoundedProjectionExec`] where a projection has a function whose results may have any
/// size.
#[derive(Debug)]
struct BoundProjections;

impl PhysicalOptimizerRule for BoundProjections {
    fn optimize(&self, plan: Plan, _config: &ConfigOptions) -> Result<Plan> {
        plan.transform_up(bounded).data()
    }

    fn name(&self) -> &str {
        "bound_projections"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A rule that meets an operator unknown to it where a projection will be bounded.
#[derive(Debug)]
struct Blindfolded(Rule);

impl PhysicalOptimizerRule for Blindfolded {
    fn optimize(&self, plan: Plan, config: &ConfigOptions) -> Result<Plan> {
        let hidden = plan.transform_up(bounded).data()?;
        self.0.optimize(hidden, config)?.transform_up(unbounded).data()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn bounded(plan: Plan) -> Result<Transformed<Plan>> {
    let projection = plan.downcast_ref::<ProjectionExec>();
    let Some(projection) = projection.filter(|found| BoundedProjectionExec::is_worthwhile(found))
    else {
        return Ok(Transformed::no(plan));
    };
    let bounded = BoundedProjectionExec::try_new(Arc::new(projection.clone()))?;
    Ok(Transformed::yes(Arc::new(bounded)))
}

fn unbounded(plan: Plan) -> Result<Transformed<Plan>> {
    Ok(match plan.downcast_ref::<BoundedProjectionExec>() {
        Some(found) => Transformed::yes(Arc::clone(found.projection()) as _),
        None => Transformed::no(plan),
    })
}
