//! The plan node below which a plan runs on a cluster.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties, displayable,
};
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::PhysicalPlanNode;
use forebay_planner::sql::StatementText;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tonic::Streaming;

use super::client::Cluster;
use super::session;
use crate::block::{BlockError, BlockLocation, BlockReaderExec};
use crate::rpc::messages::run_update::News;
use crate::rpc::messages::{PROTOCOL, Progress, RunRequest, RunUpdate, SessionOption};

/// Characters of a job's name.
const NAME_CHARS_MAX: usize = 200;

/// Runs its input on a cluster.
///
/// Rows: the input's, in its order. Partitions: one. Memory: a batch at a time. Cancel: dropping
/// the stream cancels the job. Errors: a worker's, as the operator there said it.
#[derive(Debug)]
pub struct ClusterExec {
    input: Arc<dyn ExecutionPlan>,
    cluster: Cluster,
    properties: Arc<PlanProperties>,
    run: Arc<Run>,
}

/// What is known of the job, while it runs and after.
#[derive(Debug, Default)]
struct Run {
    job: OnceLock<String>,
    progress: Mutex<Option<Progress>>,
}

impl ClusterExec {
    /// Runs `input` on `cluster`.
    pub fn new(input: Arc<dyn ExecutionPlan>, cluster: Cluster) -> Self {
        let one = input.output_partitioning().partition_count() == 1;
        let equivalences = match one {
            true => input.equivalence_properties().clone(),
            false => EquivalenceProperties::new(input.schema()),
        };
        let properties = Arc::new(PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        Self { input, cluster, properties, run: Arc::default() }
    }

    /// What runs there.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Where it runs.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The id of the job that it became, once the scheduler has it.
    pub fn job(&self) -> Option<&str> {
        self.run.job.get().map(String::as_str)
    }

    /// How far the job is, or came.
    pub fn progress(&self) -> Option<Progress> {
        self.run.progress.lock().clone()
    }

    /// The statement, if a session says it, else the operator that gives the rows.
    fn job_name(&self, context: &TaskContext) -> String {
        let statement = context.session_config().get_extension::<StatementText>();
        let name = match statement {
            Some(statement) => statement.0.clone(),
            None => displayable(self.input.as_ref()).one_line().to_string(),
        };
        match name.char_indices().nth(NAME_CHARS_MAX) {
            Some((end, _)) => format!("{}…", &name[..end]),
            None => name.trim_end().to_owned(),
        }
    }

    fn request(&self, context: &TaskContext) -> Result<RunRequest> {
        let codec = session::physical_codec();
        let mut plan = vec![];
        PhysicalPlanNode::try_from_physical_plan(Arc::clone(&self.input), codec.as_ref())?
            .try_encode(&mut plan)?;
        let options = context.session_config().options().entries().into_iter();
        let options =
            options.filter_map(|entry| Some(SessionOption { key: entry.key, value: entry.value? }));
        Ok(RunRequest {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            plan,
            options: options.collect(),
            session: context.session_id(),
            name: self.job_name(context),
        })
    }
}

/// Where the rows are, once they are there, and what must be held while they are read.
async fn result(
    cluster: Cluster,
    request: RunRequest,
    run: Arc<Run>,
) -> Result<(Vec<BlockLocation>, Streaming<RunUpdate>)> {
    let mut updates = cluster.run(request).await?;
    loop {
        match updates.message().await.map_err(|status| cluster.failed(&status))? {
            Some(update) => match update.news {
                Some(News::Finished(finished)) => return Ok((finished.blocks, updates)),
                Some(News::Failed(problem)) => return exec_err!("{problem}"),
                Some(News::Accepted(id)) => {
                    run.job.set(id).ok();
                }
                Some(News::Progress(progress)) => *run.progress.lock() = Some(progress),
                None => {}
            },
            None => return exec_err!("the scheduler at {} stopped", cluster.scheduler()),
        }
    }
}

/// The query has ended: nobody makes again what is lost now.
fn gone(error: DataFusionError) -> DataFusionError {
    match BlockError::find(&error) {
        Some(lost) => exec_datafusion_err!(
            "the query has finished, and a part of its rows was lost before it was read ({lost}); \
             run it again"
        ),
        None => error,
    }
}

impl DisplayAs for ClusterExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "ClusterExec"),
            DisplayFormatType::TreeRender => Ok(()),
        }
    }
}

impl ExecutionPlan for ClusterExec {
    fn name(&self) -> &'static str {
        "ClusterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
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
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self::new(input, self.cluster.clone()))),
            Err(children) => internal_err!("ClusterExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("ClusterExec has one partition, asked for {partition}");
        }
        let request = self.request(&context)?;
        let schema = self.schema();
        let peers = Arc::clone(self.cluster.peers());
        let rows = stream::once(result(self.cluster.clone(), request, Arc::clone(&self.run)))
            .map(move |result| {
                let (blocks, held) = result?;
                let reader = BlockReaderExec::new(0, Arc::clone(&schema), vec![blocks]);
                let rows = reader.read(0, &context, Arc::clone(&peers))?;
                Ok::<_, DataFusionError>(rows.map_err(gone).inspect(move |_| {
                    let _ = &held;
                }))
            })
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
