//! Files of Arrow IPC that are there as a whole or not at all. Those of other formats are staged
//! (`forebay_engine::write`); of this one DataFusion tells nobody how it writes it.
//!
//! When rows for a file end with an error, DataFusion's sinks close the file as if they had ended
//! well. Here such rows do not end: the writer is dropped instead, and what it has begun with it.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, execute_stream,
    replace_children_if_necessary,
};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Runs a plan. If it writes, and its input fails, then no file that it was writing is left.
///
/// # Errors
/// Those of starting it.
pub fn execute(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let Some(sink) = plan.downcast_ref::<DataSinkExec>() else {
        return execute_stream(plan, context);
    };
    let failure = Arc::new(Failure::default());
    let input = Arc::new(Guard { input: Arc::clone(sink.input()), failure: Arc::clone(&failure) });
    let plan = replace_children_if_necessary(plan, vec![input])?;
    let schema = plan.schema();
    let written = execute_stream(plan, context)?;
    let rows = stream::once(async move {
        tokio::select! {
            biased;
            error = failure.wait() => Err(error),
            rows = written.try_collect::<Vec<_>>() => rows,
        }
    });
    let rows = rows.map_ok(|rows| stream::iter(rows).map(Ok)).try_flatten();
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// Why the rows ended.
#[derive(Debug, Default)]
struct Failure {
    error: Mutex<Option<DataFusionError>>,
    is_there: Notify,
}

impl Failure {
    fn set(&self, error: DataFusionError) {
        *self.error.lock() = Some(error);
        self.is_there.notify_one();
    }

    async fn wait(&self) -> DataFusionError {
        loop {
            self.is_there.notified().await;
            if let Some(error) = self.error.lock().take() {
                return error;
            }
        }
    }
}

/// Gives its input's rows; an error goes to `failure`, and ends nothing.
#[derive(Debug)]
struct Guard {
    input: Arc<dyn ExecutionPlan>,
    failure: Arc<Failure>,
}

impl DisplayAs for Guard {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl ExecutionPlan for Guard {
    fn name(&self) -> &'static str {
        "Guard"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input, failure: Arc::clone(&self.failure) })),
            Err(children) => internal_err!("Guard takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let (schema, failure) = (rows.schema(), Arc::clone(&self.failure));
        let rows = stream::unfold(rows, move |mut rows| {
            let failure = Arc::clone(&failure);
            async move {
                match rows.next().await? {
                    Ok(batch) => Some((Ok(batch), rows)),
                    Err(error) => {
                        failure.set(error);
                        std::future::pending().await
                    }
                }
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}
