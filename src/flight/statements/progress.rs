//! How much of a query is done.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use forebay_engine::{InPartsExec, InferenceExec};
use forebay_scheduler::client::cluster_exec::ClusterExec;

/// From 0 to 1: of a write in parts the bytes of its inputs, of a job its units, of a plan in this process the rows that its models or scans have
/// given; nothing if nobody knows how many there are.
pub(super) fn fraction(plan: &Arc<dyn ExecutionPlan>) -> Option<f64> {
    let (done, all) = if let Some(parts) = plan.downcast_ref::<InPartsExec>() {
        let (done, all) = parts.progress()?;
        (done as f64, all as f64)
    } else if let Some(job) = job(plan) {
        let progress = job.progress()?;
        (progress.units_done as f64, progress.units as f64)
    } else {
        let (mut done, mut all) = (0, 0);
        count(plan, &mut done, &mut all)?;
        (done as f64, all as f64)
    };
    (all > 0.0).then(|| (done / all).clamp(0.0, 1.0))
}

fn job(plan: &Arc<dyn ExecutionPlan>) -> Option<&ClusterExec> {
    plan.downcast_ref::<ClusterExec>().or_else(|| plan.children().into_iter().find_map(job))
}

/// Adds the rows of the topmost models, and of the sources that no model stands on: those that they
/// have given, and those that they will have.
fn count(plan: &Arc<dyn ExecutionPlan>, done: &mut usize, all: &mut usize) -> Option<()> {
    let children = plan.children();
    if plan.is::<InferenceExec>() || children.is_empty() {
        let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
        let rows = statistics.ok().and_then(|rows| rows.num_rows.get_value().copied());
        if let Some(rows) = rows {
            *all += rows;
            *done += plan.metrics().and_then(|metrics| metrics.output_rows()).unwrap_or(0);
            return Some(());
        }
        if children.is_empty() {
            return None;
        }
    }
    children.into_iter().try_for_each(|child| count(child, done, all))
}
