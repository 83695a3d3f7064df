//! Exchanges at changes of resource class, and nothing else.
//!
//! Whether an exchange must keep its input's order is decided top down: the query's own result
//! order counts, and what an operator requires of its input; an operator that does not maintain
//! order ends the matter. An ordered exchange has one producer, so several sorted partitions are
//! merged below it. With `forebay.ordered_exchanges` off nothing is ordered and nothing declared so:
//! DataFusion's rules, which run later, sort where they must.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_engine::{
    ExchangeOptions, InferenceExec, RestoreOrderExec, Sharing, StreamingExchangeExec,
};
use forebay_udf::model::Determinism;

use crate::config::ForebayConfig;

/// Inserts exchanges where the resource class changes.
#[derive(Debug)]
pub struct InsertExchanges;

impl PhysicalOptimizerRule for InsertExchanges {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let config = config.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
        if !config.exchange {
            return Ok(plan);
        }
        let order = if config.ordered_exchanges { OrderUse::Relied } else { OrderUse::Unused };
        insert(plan, order, &config)
    }

    fn name(&self) -> &str {
        "insert_exchanges"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// What becomes of an operator's output order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderUse {
    Relied,
    Unused,
}

fn insert(
    plan: Arc<dyn ExecutionPlan>,
    order: OrderUse,
    config: &ForebayConfig,
) -> Result<Arc<dyn ExecutionPlan>> {
    let required = plan.required_input_ordering();
    let maintained = plan.maintains_input_order();
    let children = plan
        .children()
        .into_iter()
        .enumerate()
        .map(|(i, child)| {
            let is = |flags: &[bool]| flags.get(i).copied().unwrap_or(false);
            // An ordered exchange keeps order around inference, whatever the operator itself says.
            let keeps = is(&maintained) || plan.is::<InferenceExec>();
            let relied = required.get(i).is_some_and(Option::is_some)
                || (order == OrderUse::Relied && keeps);
            let relied = relied && config.ordered_exchanges;
            let order = if relied { OrderUse::Relied } else { OrderUse::Unused };
            insert(Arc::clone(child), order, config)
        })
        .collect::<Result<Vec<_>>>()?;
    match plan.downcast_ref::<InferenceExec>() {
        Some(inference) => {
            let ordering = children[0].output_ordering();
            let ordering = ordering.filter(|_| order == OrderUse::Relied).cloned();
            let options = options(inference, ordering.is_some(), config);
            exchange(Arc::clone(&plan), Arc::clone(&children[0]), ordering, options)
        }
        None if children.is_empty() => Ok(plan),
        None => replace_children_if_necessary(plan, children),
    }
}

/// Batches of 1,024 images of 224 pixels take 150 MB each.
const LEARNED_BUDGET_MAX: usize = 1 << 30;

fn options(inference: &InferenceExec, ordered: bool, config: &ForebayConfig) -> ExchangeOptions {
    let model = inference.model();
    let may_share = config.share_equal_inputs && model.determinism != Determinism::Volatile;
    ExchangeOptions {
        replicas: inference.placement().replicas(),
        byte_budget: config.byte_budget,
        byte_budget_max: byte_budget_max(inference, config),
        batch: inference.planned_limits(),
        ordered,
        sharing: if may_share { Sharing::EqualInputs } else { Sharing::None },
        no_progress_limit: config.no_progress_limit(),
    }
}

/// What the budget may become where batches do: a budget that was set is kept to.
fn byte_budget_max(inference: &InferenceExec, config: &ForebayConfig) -> usize {
    let is_default = config.byte_budget == ForebayConfig::default().byte_budget;
    if is_default && inference.learns_batches() { LEARNED_BUDGET_MAX } else { config.byte_budget }
}

fn exchange(
    inference: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    ordering: Option<LexOrdering>,
    options: ExchangeOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let input = match &ordering {
        Some(ordering) => merged(input, ordering),
        None => input,
    };
    let exchange = Arc::new(StreamingExchangeExec::try_new(input, options)?);
    let replicas = replace_children_if_necessary(inference, vec![exchange])?;
    match ordering {
        Some(_) => Ok(Arc::new(RestoreOrderExec::try_new(replicas)?)),
        None => Ok(replicas),
    }
}

/// Several sorted partitions as one.
fn merged(input: Arc<dyn ExecutionPlan>, ordering: &LexOrdering) -> Arc<dyn ExecutionPlan> {
    match input.output_partitioning().partition_count() {
        1 => input,
        _ => Arc::new(SortPreservingMergeExec::new(ordering.clone(), input)),
    }
}
