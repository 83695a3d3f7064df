//! What `EXPLAIN` and `EXPLAIN ANALYZE` say of a query that runs on a cluster.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use ballista_core::JobId;
use ballista_core::extension::{SessionConfigExt, SessionConfigHelperExt};
use ballista_core::serde::protobuf::KeyValuePair;
use datafusion::catalog::Session;
use datafusion::common::format::ExplainFormat;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use forebay_planner::physical::{plan, with_verdict};
use futures::{StreamExt, TryStreamExt, stream};

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
                match cluster_exec(&explained) {
                    Some(exec) if !options.explain.logical_plan_only => {
                        let entries = options.entries().into_iter();
                        let options = entries
                            .map(|entry| KeyValuePair { key: entry.key, value: entry.value })
                            .collect();
                        let text = stages_text(Arc::clone(exec.input()), options);
                        let note = Note::Stages(text);
                        Ok(Arc::new(NoteExec { input: planned, note }))
                    }
                    _ => Ok(planned),
                }
            }
            LogicalPlan::Analyze(_) if runs_on_cluster(&planned) => {
                Ok(Arc::new(NoteExec { input: planned, note: Note::Measured }))
            }
            _ => Ok(with_verdict(planned)),
        }
    }
}

/// Programs that read JSON or graphs get the one document that they expect.
fn is_for_people(format: &ExplainFormat) -> bool {
    matches!(format, ExplainFormat::Indent | ExplainFormat::Tree)
}

fn runs_on_cluster(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let format = plan.downcast_ref::<AnalyzeExec>().map(AnalyzeExec::format);
    format.is_some_and(is_for_people) && cluster_exec(plan).is_some()
}

fn cluster_exec(plan: &Arc<dyn ExecutionPlan>) -> Option<&ClusterExec> {
    let below = || plan.children().into_iter().find_map(cluster_exec);
    plan.downcast_ref::<ClusterExec>().or_else(below)
}

/// The stages, as the scheduler will cut the plan; else why it cannot.
fn stages_text(plan: Arc<dyn ExecutionPlan>, options: Vec<KeyValuePair>) -> String {
    let config = session::config()
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

/// What is said after an explanation.
#[derive(Debug)]
enum Note {
    /// The stages.
    Stages(String),
    /// What the scheduler has measured.
    Measured,
}

/// An explanation, and what is to be said after it.
///
/// Rows: the input's, then one or two. If all of a plan ran on the cluster, the input's row with
/// metrics of this process is left out, because there are none.
#[derive(Debug)]
struct NoteExec {
    input: Arc<dyn ExecutionPlan>,
    note: Note,
}

impl NoteExec {
    fn ran_elsewhere(&self) -> bool {
        let analyzed = self.input.downcast_ref::<AnalyzeExec>();
        analyzed.is_some_and(|analyzed| analyzed.input().is::<ClusterExec>())
    }
}

async fn measured(plan: Arc<dyn ExecutionPlan>, schema: SchemaRef) -> Result<RecordBatch> {
    let exec = cluster_exec(&plan);
    let job = exec.and_then(|exec| Some((exec.cluster().clone(), exec.job()?.to_owned())));
    let Some((cluster, job)) = job else { return Ok(RecordBatch::new_empty(schema)) };
    let found = cluster.analysis(job).await?;
    let all = [("Stages with Metrics", found.stages), ("Verdict", found.verdict)];
    rows(&schema, all.into_iter().filter(|(_, text)| !text.is_empty()))
}

fn rows(
    schema: &SchemaRef,
    rows: impl Iterator<Item = (&'static str, String)>,
) -> Result<RecordBatch> {
    let (kinds, texts): (Vec<_>, Vec<_>) = rows.unzip();
    let columns: Vec<ArrayRef> =
        vec![Arc::new(StringArray::from(kinds)), Arc::new(StringArray::from(texts))];
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

/// Without the plan whose metrics are not of this process.
fn without_plan(batch: &RecordBatch) -> Result<RecordBatch> {
    let Some(kinds) = batch.column(0).as_string_opt::<i32>() else { return Ok(batch.clone()) };
    let is_plan = |kind: Option<&str>| kind.is_some_and(|kind| kind.starts_with("Plan with"));
    let kept = kinds.iter().map(|kind| Some(!is_plan(kind))).collect();
    Ok(filter_record_batch(batch, &kept)?)
}

impl DisplayAs for NoteExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NoteExec")
    }
}

impl ExecutionPlan for NoteExec {
    fn name(&self) -> &'static str {
        "NoteExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let note = match &self.note {
            Note::Stages(text) => Note::Stages(text.clone()),
            Note::Measured => Note::Measured,
        };
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input, note })),
            Err(children) => internal_err!("NoteExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let explained = self.input.execute(partition, context)?;
        let schema = self.schema();
        let leaves_out = self.ran_elsewhere();
        let explained =
            explained.map(move |batch| if leaves_out { without_plan(&batch?) } else { batch });
        let note = match &self.note {
            Note::Stages(text) => {
                let row = rows(&schema, std::iter::once(("stages", text.clone())));
                stream::once(std::future::ready(row)).boxed()
            }
            // Polled when the plan has run.
            Note::Measured => {
                stream::once(measured(Arc::clone(&self.input), Arc::clone(&schema))).boxed()
            }
        };
        let rows = explained.chain(note);
        let rows = rows.try_filter(|batch| std::future::ready(batch.num_rows() > 0));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}
