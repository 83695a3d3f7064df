//! How a worker runs a task: on its own devices.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_executor::execution_engine::{ExecutionEngine, QueryStageExecutor};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::config::{ConfigOptions, ExtensionOptions};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use datafusion::prelude::SessionConfig;
use forebay_engine::arrow_files::checked;
use forebay_engine::device::Placement;
use forebay_engine::{
    Devices, InferenceExec, LimitedSortExec, LoopJoinExec, RunMergeExec, WriteExec,
};
use forebay_planner::ForebayConfig;

use crate::ballista::session;
use crate::ballista::status;
use crate::block::open_block::Sealed;
use crate::block::row_keys::RowKeys;
use crate::block::{BlockReaderExec, BlockStore, BlockWriterExec, HashWriterExec};
use crate::protocol::location::FileId;
use crate::protocol::messages;
use crate::worker::account::Account;
use crate::worker::joins::Tables;

/// Runs stages on this worker's devices.
pub(crate) struct TaskEngine {
    devices: Arc<Devices>,
    store: Arc<BlockStore>,
    account: Arc<Account>,
    tables: Arc<Tables>,
}

impl TaskEngine {
    /// Keeps blocks in `store` and tells the scheduler of them.
    pub(crate) fn new(
        devices: Arc<Devices>,
        store: Arc<BlockStore>,
        account: Arc<Account>,
    ) -> Self {
        Self { devices, store, account, tables: Arc::default() }
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

    /// The plan was made for all workers: this one has devices and a limit of memory of its own, and does not believe
    /// what files say.
    fn placed(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let place = |node: Arc<dyn ExecutionPlan>| {
            if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>()
                && let Some(reader) = merge.input().downcast_ref::<BlockReaderExec>()
            {
                return Ok(Transformed::yes(merge_of_runs(merge, reader)?));
            }
            if let Some(write) = node.downcast_ref::<WriteExec>()
                && !write.target().is_file()
            {
                return Ok(Transformed::yes(Arc::new(write.beside_others())));
            }
            let node = LoopJoinExec::in_place_of(node)?;
            let node = node.transform_data(LimitedSortExec::in_place_of)?;
            if node.transformed {
                return Ok(node);
            }
            let node = node.data;
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

/// The same merge, of a reader that knows its order.
fn merge_of_runs(
    merge: &SortPreservingMergeExec,
    reader: &BlockReaderExec,
) -> Result<Arc<dyn ExecutionPlan>> {
    let is_by_bytes = RowKeys::can_encode(merge.expr(), &merge.schema());
    let reader = Arc::new(reader.clone().merged_by(merge.expr().clone()));
    let merge = replace_children_if_necessary(Arc::new(merge.clone()), vec![reader])?;
    Ok(if is_by_bytes { RunMergeExec::in_place_of(merge).data } else { merge })
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
        _: usize,
        _: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        _: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let job = job_id.to_string();
        let stage = u32::try_from(stage_id).unwrap_or(u32::MAX);
        let plan = self.placed(plan)?;
        // A filter that one side of a join gives the scan of the other is a task's own.
        let plan = if config.options().optimizer.enable_dynamic_filter_pushdown {
            plan
        } else {
            self.tables.joined(&job, stage, plan)?
        };
        let Some(writer) = Writer::of(&plan) else {
            return internal_err!(
                "stage {stage} of job {job} ends with {}, which writes no blocks",
                plan.name()
            );
        };
        Ok(Arc::new(BlockTask {
            job,
            stage,
            writer,
            store: Arc::clone(&self.store),
            tables: Arc::clone(&self.tables),
            account: Arc::clone(&self.account),
        }))
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

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, IntervalUnit, Schema};
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;

    use super::*;

    #[test]
    fn runs_are_merged_by_our_merge_if_bytes_compare_as_keys_do() {
        let interval = DataType::Interval(IntervalUnit::MonthDayNano);
        let kinds = [("text", DataType::Utf8), ("number", DataType::Int64), ("span", interval)];
        let fields: Vec<_> =
            kinds.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let ours = |keys: &[&str]| {
            let keys = keys.iter().map(|key| col(key, &schema).map(PhysicalSortExpr::new_default));
            let order = keys.collect::<Result<Vec<_>>>().unwrap();
            let order = datafusion::physical_expr::LexOrdering::new(order).unwrap();
            let reader = BlockReaderExec::new(0, Arc::clone(&schema), vec![vec![], vec![]]);
            let merge = SortPreservingMergeExec::new(order, Arc::new(reader.clone()));
            format!("{:?}", merge_of_runs(&merge, &reader).unwrap()).starts_with("RunMergeExec")
        };
        assert!(ours(&["text"]) && ours(&["number", "text"]));
        assert!(!ours(&["number"]) && !ours(&["span", "text"]) && !ours(&["text", "span"]));
    }
}
