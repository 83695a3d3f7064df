//! How a worker runs a task: on its own devices.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::{
    DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor,
};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DataFusionError, Result};
use datafusion::config::{ConfigOptions, ExtensionOptions};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use datafusion::prelude::SessionConfig;
use forebay_engine::arrow_files::checked;
use forebay_engine::device::Placement;
use forebay_engine::{Devices, InferenceExec};
use forebay_planner::ForebayConfig;

use crate::ballista::session;
use crate::ballista::status;
use crate::block::open_block::Sealed;
use crate::block::shuffle::ShuffleFiles;
use crate::block::{BlockReaderExec, BlockStore, BlockWriterExec, HashWriterExec};
use crate::protocol::location::FileId;
use crate::protocol::messages;
use crate::worker::account::Account;
use crate::worker::joins::Tables;

/// Runs stages on this worker's devices: those that write blocks itself, others as Ballista does.
pub(crate) struct TaskEngine {
    devices: Arc<Devices>,
    store: Arc<BlockStore>,
    account: Arc<Account>,
    tables: Arc<Tables>,
    inner: DefaultExecutionEngine,
}

impl TaskEngine {
    /// Keeps blocks in `store` and tells the scheduler of them.
    pub(crate) fn new(
        devices: Arc<Devices>,
        store: Arc<BlockStore>,
        account: Arc<Account>,
    ) -> Self {
        let (tables, inner) = (Arc::default(), DefaultExecutionEngine::new());
        Self { devices, store, account, tables, inner }
    }

    /// What its tasks build once for all.
    pub(crate) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// The accelerators that the scheduler gave to the task, or what this worker has for the model.
    fn placement(&self, inference: &InferenceExec) -> Result<Placement> {
        let own = self.devices.place(inference.model())?;
        let mut given = inference.placement().clone();
        given.devices.retain(|device| own.devices.contains(device));
        Ok(if own.is_accelerated() && !given.devices.is_empty() { given } else { own })
    }

    /// The plan was made for all workers: this one has devices and a folder of its own, and does not
    /// believe what files say.
    fn placed(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let place = |node: Arc<dyn ExecutionPlan>| {
            if let Some(reader) = node.downcast_ref::<ShuffleReaderExec>() {
                let reader = Arc::new(reader.with_work_dir(work_dir.to_owned()));
                return Ok(Transformed::yes(reader as Arc<dyn ExecutionPlan>));
            }
            if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>()
                && let Some(reader) = merge.input().downcast_ref::<BlockReaderExec>()
            {
                let reader = Arc::new(reader.clone().merged_by(merge.expr().clone()));
                return Ok(Transformed::yes(replace_children_if_necessary(node, vec![reader])?));
            }
            let Some(inference) = node.downcast_ref::<InferenceExec>() else {
                return Ok(checked(node));
            };
            let placement = self.placement(inference)?;
            let placed = Arc::new(inference.try_placed(placement)?);
            Ok(Transformed::yes(placed as Arc<dyn ExecutionPlan>))
        };
        plan.transform(place).data()
    }
}

impl fmt::Debug for TaskEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskEngine").finish_non_exhaustive()
    }
}

impl ExecutionEngine for TaskEngine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let job = job_id.to_string();
        let stage = u32::try_from(stage_id).unwrap_or(u32::MAX);
        let plan = self.placed(plan, work_dir)?;
        // A filter that one side of a join gives the scan of the other is a task's own.
        let plan = if config.options().optimizer.enable_dynamic_filter_pushdown {
            plan
        } else {
            self.tables.joined(&job, stage, plan)?
        };
        let tables = Arc::clone(&self.tables);
        if let Some(writer) = Writer::of(&plan) {
            return Ok(Arc::new(BlockTask {
                job,
                stage,
                writer,
                store: Arc::clone(&self.store),
                tables,
                account: Arc::clone(&self.account),
            }));
        }
        let shuffle = Arc::clone(&plan);
        let inner = self.inner.create_query_stage_exec(
            job_id,
            stage_id,
            task_id,
            global_output_partition_ids,
            plan,
            work_dir,
            config,
        )?;
        let store = Arc::clone(&self.store);
        Ok(Arc::new(ShuffleTask { job, stage, inner, plan: shuffle, tables, store }))
    }
}

/// The root of a stage that writes blocks.
#[derive(Debug)]
enum Writer {
    Plain(BlockWriterExec),
    ByHash(HashWriterExec),
}

impl Writer {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let by_hash = plan.downcast_ref::<HashWriterExec>().cloned().map(Self::ByHash);
        by_hash.or_else(|| plan.downcast_ref::<BlockWriterExec>().cloned().map(Self::Plain))
    }

    fn input(&self) -> &Arc<dyn ExecutionPlan> {
        match self {
            Self::Plain(writer) => writer.input(),
            Self::ByHash(writer) => writer.input(),
        }
    }
}

/// A task that writes blocks.
#[derive(Debug)]
struct BlockTask {
    job: String,
    stage: u32,
    writer: Writer,
    store: Arc<BlockStore>,
    tables: Arc<Tables>,
    account: Arc<Account>,
}

impl fmt::Display for BlockTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}, stage {}", self.job, self.stage)
    }
}

#[tonic::async_trait]
impl QueryStageExecutor for BlockTask {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let on_sealed = |id: FileId, sealed: &Sealed| {
            tracing::debug!(
                seq = id.seq,
                rows = sealed.rows,
                bytes = sealed.bytes,
                "sealed a block"
            );
            self.account.seals(messages::Sealed {
                job: self.job.clone(),
                id,
                bytes: sealed.bytes,
                rows: sealed.rows,
                checksum: sealed.checksum,
            });
        };
        let task = u32::try_from(task_id).unwrap_or(u32::MAX);
        log_options(&context);
        let used = self.tables.used(&self.job, self.stage);
        let memory = Arc::clone(context.memory_pool());
        let (store, job, stage) = (&self.store, self.job.as_str(), self.stage);
        let written = match &self.writer {
            Writer::Plain(writer) => {
                writer.write(store, job, stage, task, context, &on_sealed).await
            }
            Writer::ByHash(writer) => {
                writer.write(store, job, stage, task, context, &on_sealed).await
            }
        };
        let blocks = written.map_err(status::sealed_failure)?;
        used.ended_well(memory.as_ref());
        Ok(status::to_records(&blocks))
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        let mut found = vec![MetricsSet::new()];
        metrics(self.writer.input().as_ref(), &mut found);
        found
    }
}

/// A task of Ballista's, whose errors keep their kind.
#[derive(Debug)]
struct ShuffleTask {
    job: String,
    stage: u32,
    store: Arc<BlockStore>,
    tables: Arc<Tables>,
    inner: Arc<dyn QueryStageExecutor>,
    plan: Arc<dyn ExecutionPlan>,
}

impl fmt::Display for ShuffleTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[tonic::async_trait]
impl QueryStageExecutor for ShuffleTask {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        log_options(&context);
        let used = self.tables.used(&self.job, self.stage);
        let memory = Arc::clone(context.memory_pool());
        let task = u32::try_from(task_id).unwrap_or(u32::MAX);
        let run = async {
            let mut files = ShuffleFiles::new(&self.store, &self.job, self.stage, task)?;
            let work = self.inner.execute_query_stage(task_id, context);
            let written = match files.count_while(work).await {
                Ok(written) => written,
                Err(error) => return Err(files.disk_error().map_or(error, DataFusionError::from)),
            };
            files.keep().await?;
            Ok(written)
        };
        let written = run.await.map_err(status::sealed_failure)?;
        used.ended_well(memory.as_ref());
        Ok(written)
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        // The writer that runs is one of Ballista's making, over the same operators.
        let mut found = vec![MetricsSet::new()];
        let children = self.plan.children().into_iter();
        children.for_each(|child| metrics(child.as_ref(), &mut found));
        found
    }
}

/// Says with which options a task runs that are not at their defaults.
fn log_options(context: &TaskContext) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let ballista = session::config().options().entries().into_iter();
    let ballista = ballista.filter(|entry| entry.key.starts_with("ballista."));
    let usual = ConfigOptions::default().entries().into_iter().chain(ballista);
    let usual = usual.chain(ForebayConfig::default().entries());
    let usual: HashMap<_, _> = usual.map(|entry| (entry.key, entry.value)).collect();
    let set = context.session_config().options().entries().into_iter();
    let set = set.filter(|entry| usual.get(&entry.key) != Some(&entry.value));
    let set = set.map(|entry| format!("{} = {}", entry.key, entry.value.unwrap_or_default()));
    tracing::debug!("runs with {}", set.collect::<Vec<_>>().join("; "));
}

/// The metrics of each operator, in the order in which `EXPLAIN` shows them. None is left out, so
/// that the scheduler knows whose they are.
fn metrics(plan: &dyn ExecutionPlan, found: &mut Vec<MetricsSet>) {
    found.push(plan.metrics().unwrap_or_default());
    plan.children().into_iter().for_each(|child| metrics(child.as_ref(), found));
}
