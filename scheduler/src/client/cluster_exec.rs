//! The plan node below which a plan runs on a cluster.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::Boundedness;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties, displayable,
};
use forebay_engine::in_claimed_order;
use forebay_planner::sql::StatementText;

use crate::ballista::plan_parts;
use crate::client::cluster::Cluster;
use crate::client::rows::{Reading, Run};
use crate::job_id::GivenId;
use crate::owner::Owner;
use crate::protocol::messages::{PROTOCOL, Progress, RunRequest, SessionOption};
use crate::stages::asked_order::asked_order;
use crate::tables::rows::job_name;

/// Batches that wait for whoever reads the rows, beside those of the blocks.
const BATCHES_WAITING_MAX: usize = 1;

/// Runs its input on a cluster.
///
/// Rows: the input's, in its order if it has one, as they are made. Partitions: one. Memory: two
/// blocks of the result, reserved. Cancel: dropping the stream cancels the job. Errors: a worker's,
/// as the operator there said it.
#[derive(Debug)]
pub struct ClusterExec {
    input: Arc<dyn ExecutionPlan>,
    cluster: Cluster,
    properties: Arc<PlanProperties>,
    run: Arc<Run>,
}

impl ClusterExec {
    /// Runs `input` on `cluster`.
    pub fn new(input: Arc<dyn ExecutionPlan>, cluster: Cluster) -> Self {
        let order = asked_order(&input);
        let equivalences = EquivalenceProperties::new_with_orderings(input.schema(), order);
        let properties = Arc::new(PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(1),
            input.pipeline_behavior(),
            Boundedness::Bounded,
        ));
        Self { input, cluster, properties, run: Arc::default() }
    }

    /// The plan that is sent: all of it runs on the cluster.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The cluster on which it runs, once per execution.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The id of the job that it became, once the scheduler has it.
    pub fn job(&self) -> Option<&str> {
        self.run.job()
    }

    /// How far the job is, or came.
    pub fn progress(&self) -> Option<Progress> {
        self.run.progress()
    }

    /// The statement, if a session says it, else the operator that gives the rows.
    fn job_name(&self, context: &TaskContext) -> String {
        let statement = context.session_config().get_extension::<StatementText>();
        match statement {
            Some(statement) => job_name(&statement.0),
            None => job_name(&displayable(self.input.as_ref()).one_line().to_string()),
        }
    }

    fn request(&self, context: &TaskContext) -> Result<RunRequest> {
        let plan = plan_parts::encode(Arc::clone(&self.input))?;
        let owner = context.session_config().get_extension::<Owner>();
        let given = context.session_config().get_extension::<GivenId>();
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
            owner: owner.map(|owner| owner.name.clone()).unwrap_or_default(),
            job: given.and_then(|given| given.take()).unwrap_or_default(),
            is_known: false,
            state: String::new(),
            ends_with_scheduler: self.cluster.ends_with_scheduler(),
        })
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
            // What is known of the job is known to whoever has the plan that was planned.
            Ok([input]) => {
                let run = Arc::clone(&self.run);
                Ok(Arc::new(Self { run, ..Self::new(input, self.cluster.clone()) }))
            }
            Err(children) => internal_err!("ClusterExec takes one input, found {}", children.len()),
        }
    }

    /// Another execution is another job.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(Arc::clone(&self.input), self.cluster.clone())))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("ClusterExec has one partition, asked for {partition}");
        }
        let mut rows = RecordBatchReceiverStream::builder(self.schema(), BATCHES_WAITING_MAX);
        let reading = Reading {
            cluster: self.cluster.clone(),
            run: Arc::clone(&self.run),
            schema: self.schema(),
            request: self.request(&context)?,
            context,
            rows: rows.tx(),
        };
        rows.spawn(reading.read_to_end());
        Ok(in_claimed_order(self, rows.build()))
    }
}
