//! `Inference` → `InferenceExec` over `TransformExec`, with a projection between them if columns are
//! dropped.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{Column, Result, internal_datafusion_err};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column as PhysicalColumn;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use forebay_engine::{Devices, InferenceExec, TransformExec};

use super::describe;
use super::resumable::StagedExec;
use super::verdict::with_verdict;
use crate::config::ForebayConfig;
use crate::logical::{Inference, Staged};

/// DataFusion's planner, extended by [`Inference`].
#[derive(Debug)]
pub struct ForebayQueryPlanner;

#[async_trait]
impl QueryPlanner for ForebayQueryPlanner {
    async fn create_physical_plan(
        &self,
        logical_plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(with_verdict(plan(logical_plan, session).await?))
    }
}

/// The plan without a verdict under `EXPLAIN ANALYZE`: for planners whose queries run elsewhere.
///
/// # Errors
/// As DataFusion's planner.
pub async fn plan(
    logical_plan: &LogicalPlan,
    session: &dyn Session,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(described) = describe::tensors(logical_plan)? {
        return Ok(described);
    }
    let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(LowerInference)]);
    planner.create_physical_plan(logical_plan, session).await
}

/// A plan without the columns that nobody needs: what only the model reads waits in no exchange.
fn without(
    plan: Arc<dyn ExecutionPlan>,
    is_dropped: impl Fn(usize) -> bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = plan.schema();
    let columns = schema.fields().iter().enumerate().filter(|(at, _)| !is_dropped(*at));
    let columns: Vec<ProjectionExpr> = columns
        .map(|(at, field)| {
            let column: Arc<dyn PhysicalExpr> = Arc::new(PhysicalColumn::new(field.name(), at));
            ProjectionExpr::new(column, field.name().clone())
        })
        .collect();
    if columns.len() == schema.fields().len() {
        Ok(plan)
    } else {
        Ok(Arc::new(ProjectionExec::try_new(columns, plan)?))
    }
}

#[derive(Debug)]
struct LowerInference;

#[async_trait]
impl ExtensionPlanner for LowerInference {
    async fn plan_extension(
        &self,
        planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        planning: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let (true, [input]) = (node.as_any().is::<Staged>(), physical_inputs) {
            let partitions = session.config().target_partitions();
            return Ok(Some(Arc::new(StagedExec::new(Arc::clone(input), partitions))));
        }
        let Some(inference) = node.as_any().downcast_ref::<Inference>() else { return Ok(None) };
        let ([logical], [input]) = (logical_inputs, physical_inputs) else { return Ok(None) };
        let devices = session.config().get_extension::<Devices>().ok_or_else(|| {
            internal_datafusion_err!("Inference: the session has no devices; use install()")
        })?;
        let args = inference
            .args()
            .iter()
            .map(|arg| planner.create_physical_expr(arg, logical.schema(), session, planning))
            .collect::<Result<Vec<_>>>()?;
        let placement = devices.place(inference.model())?;
        let model = Arc::clone(inference.model());
        let is_kept = |column: &Column| !inference.dropped().contains(column);
        let transform = TransformExec::try_new(Arc::clone(input), Arc::clone(&model), args)?;
        let below = logical.schema().columns();
        let prepared = without(Arc::new(transform), |at| !below.get(at).is_none_or(is_kept))?;
        let names = inference.output_columns();
        let names = names.map(|column| is_kept(&column).then_some(column.name)).collect();
        let exec = InferenceExec::try_new(prepared, model, names, placement)?;
        let config = session.config_options().extensions.get::<ForebayConfig>();
        let limit = config.cloned().unwrap_or_default().no_progress_limit();
        Ok(Some(Arc::new(exec.with_no_progress_limit(limit))))
    }
}
