//! What `EXPLAIN` and `EXPLAIN ANALYZE` say of a query that runs on a cluster.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use ballista_core::JobId;
use ballista_core::extension::{SessionConfigExt, SessionConfigHelperExt};
use ballista_core::serde::protobuf::KeyValuePair;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::analyze::AnalyzeExec;
use forebay_planner::ForebayConfig;
use forebay_planner::physical::{NotedExec, Notes, is_for_people, plan, with_verdict};

use crate::ballista::session;
use crate::client::cluster_exec::ClusterExec;
use crate::graph::StageId;
use crate::no_panic::no_panic;
use crate::stages::{self, StagedPlan};
use crate::tables::rows::{counted, need_text, reads};

/// Forebay's planner; `EXPLAIN` also says into which stages a cluster cuts the plan, and
/// `EXPLAIN ANALYZE` what was measured there.
#[derive(Debug)]
pub struct ClusterQueryPlanner;

#[tonic::async_trait]
impl QueryPlanner for ClusterQueryPlanner {
    async fn create_physical_plan(
        &self,
        logical: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = plan(logical, session).await?;
        match logical {
            LogicalPlan::Explain(explain) if is_for_people(&explain.explain_format) => {
                let options = session.config().options();
                // Planned again: what was explained is text by now. If it cannot be planned, that
                // is in the text.
                let Ok(explained) = plan(&explain.plan, session).await else { return Ok(planned) };
                match cluster_exec(explained.as_ref()) {
                    Some(exec) if !options.explain.logical_plan_only => {
                        let entries = options.entries().into_iter();
                        let options = entries
                            .map(|entry| KeyValuePair { key: entry.key, value: entry.value })
                            .collect();
                        let text = stages_text(Arc::clone(exec.input()), options);
                        Ok(Arc::new(NotedExec::new(planned, Arc::new(Stages(text)))))
                    }
                    _ => Ok(planned),
                }
            }
            LogicalPlan::Analyze(_) if runs_on_cluster(&planned) => {
                let measured = Measured::of(planned.as_ref());
                Ok(Arc::new(NotedExec::new(planned, Arc::new(measured))))
            }
            _ => Ok(with_verdict(planned)),
        }
    }
}

fn runs_on_cluster(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let format = plan.downcast_ref::<AnalyzeExec>().map(AnalyzeExec::format);
    format.is_some_and(is_for_people) && cluster_exec(plan.as_ref()).is_some()
}

fn cluster_exec(plan: &dyn ExecutionPlan) -> Option<&ClusterExec> {
    let below = || plan.children().into_iter().find_map(|child| cluster_exec(child.as_ref()));
    plan.downcast_ref::<ClusterExec>().or_else(below)
}

/// The stages, as the scheduler will cut the plan; else why it cannot.
fn stages_text(plan: Arc<dyn ExecutionPlan>, options: Vec<KeyValuePair>) -> String {
    let config = session::config()
        .with_option_extension(ForebayConfig::default())
        .with_ballista_adaptive_query_planner(false)
        .update_from_key_value_pair(&options);
    let job = JobId::new("explain");
    let staged = no_panic(|| stages::cut(&job, plan, config.options()));
    match staged {
        Ok(staged) => described(&staged),
        Err(error) => error.strip_backtrace(),
    }
}

/// `stage 1: Inference(m) < BlockReader; 0.5 emulated; reads 0 block by block`
fn described(staged: &StagedPlan) -> String {
    let stages = (0..).map(StageId).zip(&staged.spec.stages);
    let line = |(id, stage): (StageId, &crate::graph::StageSpec)| {
        if stage.is_client {
            let reads = reads(staged.spec.edges.iter().filter(|edge| edge.to == id));
            return format!("client: reads {reads}");
        }
        let mut parts = vec![need_text(&stage.need)];
        let reads = reads(staged.spec.edges.iter().filter(|edge| edge.to == id));
        if stage.partitions > 0 {
            parts.push(counted(stage.partitions as usize, "partition"));
        }
        if !reads.is_empty() {
            parts.push(format!("reads {reads}"));
        }
        if stage.replayable {
            parts.push("replayable".to_owned());
        }
        format!("stage {id}: {}; {}", stage.name, parts.join("; "))
    };
    stages.map(line).collect::<Vec<_>>().join("\n")
}

/// Into which stages a cluster cuts the plan.
#[derive(Debug)]
struct Stages(String);

#[tonic::async_trait]
impl Notes for Stages {
    async fn under(&self, _: &dyn ExecutionPlan) -> Result<Vec<(&'static str, String)>> {
        Ok(vec![("stages", self.0.clone())])
    }
}

/// What the scheduler has measured.
#[derive(Debug)]
struct Measured {
    /// Nothing of the plan ran in this process.
    all_elsewhere: bool,
}

impl Measured {
    fn of(explanation: &dyn ExecutionPlan) -> Self {
        let analyzed = explanation.downcast_ref::<AnalyzeExec>();
        let all_elsewhere = analyzed.is_some_and(|analyzed| analyzed.input().is::<ClusterExec>());
        Self { all_elsewhere }
    }
}

#[tonic::async_trait]
impl Notes for Measured {
    /// Without the plan, if its metrics are not of this process.
    fn shown(&self, rows: RecordBatch) -> Result<RecordBatch> {
        let kinds = rows.column(0).as_string_opt::<i32>().filter(|_| self.all_elsewhere);
        let Some(kinds) = kinds else { return Ok(rows) };
        let is_plan = |kind: Option<&str>| kind.is_some_and(|kind| kind.starts_with("Plan with"));
        let kept = kinds.iter().map(|kind| Some(!is_plan(kind))).collect();
        Ok(filter_record_batch(&rows, &kept)?)
    }

    async fn under(&self, explanation: &dyn ExecutionPlan) -> Result<Vec<(&'static str, String)>> {
        let exec = cluster_exec(explanation);
        let job = exec.and_then(|exec| Some((exec.cluster().clone(), exec.job()?.to_owned())));
        let Some((cluster, job)) = job else { return Ok(vec![]) };
        let found = cluster.analysis(job).await?;
        let all = [("Stages with Metrics", found.stages), ("Verdict", found.verdict)];
        Ok(all.into_iter().filter(|(_, text)| !text.is_empty()).collect())
    }
}
