//! The last line of `EXPLAIN ANALYZE`: the bottleneck, and what to do about it.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::analyze::AnalyzeExec;
use forebay_engine::RunReport;

use super::noted::{NotedExec, Notes, is_for_people};

/// The verdict on a plan with a model that has run in this process.
#[derive(Debug)]
struct Verdict;

#[async_trait]
impl Notes for Verdict {
    async fn under(&self, explanation: &dyn ExecutionPlan) -> Result<Vec<(&'static str, String)>> {
        let verdict = RunReport::of(explanation).verdict();
        Ok(verdict.map(|verdict| ("Verdict", verdict)).into_iter().collect())
    }
}

/// The plan with a verdict, if it is an `EXPLAIN ANALYZE` for people.
pub fn with_verdict(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let format = plan.downcast_ref::<AnalyzeExec>().map(AnalyzeExec::format);
    if format.is_some_and(is_for_people) {
        Arc::new(NotedExec::new(plan, Arc::new(Verdict)))
    } else {
        plan
    }
}
