//! How a worker runs a task: on its own devices.

use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_executor::execution_engine::{
    DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor,
};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use forebay_engine::{Devices, InferenceExec};

/// Runs stages as Ballista does, with each model placed on this worker's devices.
pub(super) struct TaskEngine {
    devices: Arc<Devices>,
    inner: DefaultExecutionEngine,
}

impl TaskEngine {
    pub(super) fn new(devices: Arc<Devices>) -> Self {
        Self { devices, inner: DefaultExecutionEngine::new() }
    }

    /// The plan was made for all workers' devices; this one's are its own.
    fn placed(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let place = |node: Arc<dyn ExecutionPlan>| {
            let Some(inference) = node.downcast_ref::<InferenceExec>() else {
                return Ok(Transformed::no(node));
            };
            let placement = self.devices.place(inference.model())?;
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
        self.inner.create_query_stage_exec(
            job_id,
            stage_id,
            task_id,
            global_output_partition_ids,
            self.placed(plan)?,
            work_dir,
            config,
        )
    }
}
