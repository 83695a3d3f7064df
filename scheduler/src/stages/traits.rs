//! What the operators of a stage say about it: what it needs, whether it can be run again.

use std::sync::Arc;

use ballista_core::execution_plans::ShuffleReaderExec;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::{Distribution, PhysicalExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_engine::{
    BoundedProjectionExec, InferenceExec, RestoreOrderExec, StreamingExchangeExec, TransformExec,
    WriteExec,
};
use forebay_udf::model::{BatchLimits, ModelDeclaration, RuntimeKind};

use crate::block::{BlockReaderExec, BlockWriterExec};
use crate::inventory::{CUDA, EMULATED};
use crate::resources::{AcceleratorNeed, Need, WHOLE};
use crate::stages::window_functions::computed_by;

/// What a task of a stage takes of its worker: what its models declare, or one core.
///
/// # Errors
/// If a model needs a part of an accelerator that cannot be given.
pub(crate) fn needs(plan: &Arc<dyn ExecutionPlan>) -> Result<Need> {
    let mut models = vec![];
    plan.apply(|node| {
        if let Some(inference) = node.downcast_ref::<InferenceExec>() {
            models.push(model_needs(inference.model(), inference.placement().is_accelerated())?);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(models.into_iter().reduce(larger).unwrap_or(Need::cpus(WHOLE)))
}

fn model_needs(model: &ModelDeclaration, is_accelerated: bool) -> Result<Need> {
    let resources = &model.resources;
    let cpus_milli = resources.cpus.millis();
    let need = Need {
        memory_bytes: resources.memory,
        labels: resources.worker_labels.clone(),
        ..Need::cpus(cpus_milli)
    };
    if !is_accelerated {
        return Ok(Need { cpus_milli: cpus_milli.max(WHOLE), ..need });
    }
    let kind = match model.runtime {
        RuntimeKind::Emulated { .. } => EMULATED,
        RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } | RuntimeKind::Onnx { .. } => CUDA,
    };
    // A model that names no share of its accelerator has it alone.
    let share = match resources.gpus.millis() {
        0 => WHOLE,
        millis => millis,
    };
    let accelerator = AcceleratorNeed::try_new(share)
        .map_err(|problem| plan_datafusion_err!("model '{}': {problem}", model.name))?;
    let accelerator = accelerator.with_kind(kind).with_memory_bytes(resources.gpu_memory);
    Ok(need.with_accelerator(accelerator))
}

/// For models that share a task, one after the other.
fn larger(a: Need, b: Need) -> Need {
    let key = |need: &Need| need.accelerator.as_ref().map_or(0, AcceleratorNeed::milli);
    let cpus_milli = a.cpus_milli.max(b.cpus_milli);
    let memory_bytes = a.memory_bytes + b.memory_bytes;
    let accelerator = if key(&a) >= key(&b) { a.accelerator } else { b.accelerator };
    let labels = a.labels.union(&b.labels).cloned().collect();
    Need { cpus_milli, memory_bytes, accelerator, labels, ..Need::default() }
}

/// Whether an operator is so light that it may run where the model runs.
pub(crate) fn is_light(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<InferenceExec>()
        || plan.is::<TransformExec>()
        || plan.is::<StreamingExchangeExec>()
        || plan.is::<RestoreOrderExec>()
        || plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<BoundedProjectionExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<GlobalLimitExec>()
        || plan.is::<UnionExec>()
}

/// Whether a task that runs again gives the same blocks: one chain of operators that keep the
/// order of their input, over inputs that do not change, without a volatile function.
pub(crate) fn is_replayable(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let keeps_order = plan.is::<BlockWriterExec>()
        || plan.is::<BlockReaderExec>()
        || plan.is::<DataSourceExec>()
        || plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<BoundedProjectionExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<UnnestExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<TransformExec>();
    keeps_order && !is_volatile(plan) && plan.children().into_iter().all(is_replayable)
}

/// Whether a plan has rows where its input has none: of GROUPING SETS, ROLLUP and CUBE, the grand
/// total. (Without GROUP BY, it is the aggregate of one partition that gives the row.)
pub(crate) fn gives_rows_for_nothing(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let totals = |groups: &PhysicalGroupBy| {
        groups.groups().iter().any(|left_out| left_out.iter().all(|is_left_out| *is_left_out))
    };
    plan.downcast_ref::<AggregateExec>().is_some_and(|aggregate| totals(aggregate.group_expr()))
        || plan.children().into_iter().any(gives_rows_for_nothing)
}

fn is_volatile(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut found = false;
    let visited = plan.apply_expressions(&mut |expr| {
        found |= expr_is_volatile(expr);
        Ok(TreeNodeRecursion::Continue)
    });
    found || visited.is_err()
}

/// Whether an operator of a plan has a volatile function.
pub(crate) fn holds_volatile(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_volatile(plan) || plan.children().into_iter().any(holds_volatile)
}

/// Whether an operator of a plan computes window functions.
pub(crate) fn holds_window(plan: &Arc<dyn ExecutionPlan>) -> bool {
    computed_by(plan).is_some() || plan.children().into_iter().any(holds_window)
}

/// Whether an operator of a plan joins by hash.
pub(crate) fn holds_hash_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<HashJoinExec>() || plan.children().into_iter().any(holds_hash_join)
}

fn expr_is_volatile(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is_volatile_node() || expr.children().into_iter().any(expr_is_volatile)
}

pub(crate) fn holds_model(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<InferenceExec>() || plan.children().into_iter().any(holds_model)
}

/// Whether a branch of a UNION has no partitions where it is restricted to none, as tasks have it of which the
/// partition is another branch's.
pub(crate) fn can_be_left_out(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let wanted = plan.input_distribution_requirements().into_per_child();
    let takes_all = wanted.iter().any(|wanted| matches!(wanted, Distribution::SinglePartition))
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    let stays =
        plan.is::<ShuffleReaderExec>() || plan.is::<PlaceholderRowExec>() || plan.is::<SortExec>();
    !takes_all && !stays && plan.children().into_iter().all(can_be_left_out)
}

/// Partitions of a plan that come from no other stage's blocks.
pub(crate) fn own_partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let children = plan.children();
    if plan.is::<BlockReaderExec>() {
        return 0;
    }
    if children.is_empty() {
        return plan.output_partitioning().partition_count();
    }
    let of_children = children.into_iter().map(own_partitions);
    match plan.is::<UnionExec>() {
        true => of_children.sum(),
        false => of_children.max().unwrap_or(0),
    }
}

/// Full batches of a model whose rows one task takes: of a lost task no more is computed again, and
/// other workers find rows too.
const TASK_BATCHES: u32 = 32;

/// Rows of a task that are for a model: those in which it forms its batches, if they are not too many.
pub(crate) fn task_rows(batch: &BatchLimits) -> u32 {
    batch.window_rows.min(batch.max_rows.saturating_mul(TASK_BATCHES))
}

/// Rows of a task of this stage, if it has models: a task has them from small blocks, and leaves the
/// other blocks to other tasks.
pub(crate) fn model_rows(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let of_children = plan.children().into_iter().map(model_rows).min().unwrap_or(u64::MAX);
    match plan.downcast_ref::<InferenceExec>() {
        Some(inference) => of_children.min(task_rows(&inference.planned_limits()).into()),
        None => of_children,
    }
}

/// Bytes of the rows of a file, if the stage writes files.
pub(crate) fn written_to(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    match plan.downcast_ref::<WriteExec>() {
        Some(write) => Some(write.target().file_bytes()),
        None => plan.children().into_iter().find_map(written_to),
    }
}

/// What people call a stage: the operators that tell it from others.
pub(crate) fn name(root: &Arc<dyn ExecutionPlan>) -> String {
    fn names(plan: &Arc<dyn ExecutionPlan>, found: &mut Vec<String>) {
        let name = plan.name().trim_end_matches("Exec").to_owned();
        match plan.downcast_ref::<InferenceExec>() {
            Some(inference) => found.push(format!("{name}({})", inference.model().name)),
            None => found.push(name),
        }
        plan.children().into_iter().for_each(|child| names(child, found));
    }
    let mut found = vec![];
    names(root, &mut found);
    found.join(" < ")
}
