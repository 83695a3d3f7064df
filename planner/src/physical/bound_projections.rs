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
use datafusion::physical_plan::projection::ProjectionExec;
use forebay_engine::BoundedProjectionExec;

use super::disguise::{self, Plan, Rule};

/// DataFusion's rule that moves projections into scans.
const MOVES_INTO_SCANS: &str = "ProjectionPushdown";

/// Makes `rules` leave projections that may make rows large where they are, and bounds these last.
pub(crate) fn add_to(rules: &mut Vec<Rule>) {
    disguise::add_to(rules, MOVES_INTO_SCANS, bounded, unbounded);
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

pub(super) fn bounded(plan: Plan) -> Result<Transformed<Plan>> {
    let projection = plan.downcast_ref::<ProjectionExec>();
    let Some(projection) = projection.filter(|found| BoundedProjectionExec::is_worthwhile(found))
    else {
        return Ok(Transformed::no(plan));
    };
    let bounded = BoundedProjectionExec::try_new(Arc::new(projection.clone()))?;
    Ok(Transformed::yes(Arc::new(bounded)))
}

pub(super) fn unbounded(plan: Plan) -> Result<Transformed<Plan>> {
    Ok(match plan.downcast_ref::<BoundedProjectionExec>() {
        Some(found) => Transformed::yes(Arc::clone(found.projection()) as _),
        None => Transformed::no(plan),
    })
}
