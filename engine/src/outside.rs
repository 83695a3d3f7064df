//! Operators of DataFusion's that run with a context of their own, and inputs that go back to that outside.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::common::{Result, internal_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion::prelude::SessionConfig;
use futures::{StreamExt, TryStreamExt};

type Plan = Arc<dyn ExecutionPlan>;

/// What an operator runs with: this in the place of what the context outside has. It calls no function by its name.
pub(crate) fn within(runtime: RuntimeEnv, outside: Arc<TaskContext>) -> Arc<TaskContext> {
    let config = outside.session_config().clone();
    context(config, Arc::new(runtime), outside)
}

/// The same with other options.
pub(crate) fn within_options(
    outside: Arc<TaskContext>,
    change: impl FnOnce(&mut ConfigOptions),
) -> Arc<TaskContext> {
    let (mut config, runtime) = (outside.session_config().clone(), outside.runtime_env());
    change(config.options_mut());
    context(config, runtime, outside)
}

/// The same with another configuration, too.
pub(crate) fn context(
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
    outside: Arc<TaskContext>,
) -> Arc<TaskContext> {
    let (task, session) = (outside.task_id(), outside.session_id());
    let config = config.with_extension(Arc::new(Outside(outside)));
    let none = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    Arc::new(TaskContext::new(task, session, config, none.0, none.1, none.2, none.3, runtime))
}

/// The context that the inputs run with.
#[derive(Debug)]
struct Outside(Arc<TaskContext>);

/// An input of an operator that has a context of its own.
#[derive(Debug)]
pub(crate) struct SideExec {
    input: Plan,
    /// Of a side that is held: its bytes.
    held: Option<Arc<AtomicUsize>>,
}

impl SideExec {
    pub(crate) fn over(input: Plan) -> Plan {
        Arc::new(Self { input, held: None })
    }

    /// The same, whose bytes are counted from the beginning of each execution on.
    pub(crate) fn counted(input: Plan, held: Arc<AtomicUsize>) -> Plan {
        Arc::new(Self { input, held: Some(held) })
    }
}

impl DisplayAs for SideExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SideExec")
    }
}

impl ExecutionPlan for SideExec {
    fn name(&self) -> &str {
        "SideExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input, held: self.held.clone() })),
            Err(all) => internal_err!("SideExec takes one input, found {}", all.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let outside = context.session_config().get_extension::<Outside>();
        let outside = outside.map_or(context, |outside| Arc::clone(&outside.0));
        let rows = self.input.execute(partition, outside)?;
        let Some(held) = self.held.clone() else { return Ok(rows) };
        held.store(0, Ordering::Relaxed);
        let schema = rows.schema();
        let rows = rows.inspect_ok(move |batch| {
            // As the join counts it.
            held.fetch_add(get_record_batch_memory_size(batch), Ordering::Relaxed);
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.boxed())))
    }
}
