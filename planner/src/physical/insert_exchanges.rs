//! Exchanges at changes of resource class, and nothing else.
//!
//! Whether an exchange must keep its input's order is decided top down: the query's own result
//! order counts, and what an operator requires of its input; an operator that does not maintain
//! order ends the matter. An ordered exchange has one producer, so several sorted partitions are
//! merged below it.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_engine::{ExchangeOptions, InferenceExec, RestoreOrderExec, StreamingExchangeExec};

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
        insert(plan, OrderUse::Relied, config.byte_budget)
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
    byte_budget: usize,
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
            let order = if relied { OrderUse::Relied } else { OrderUse::Unused };
            insert(Arc::clone(child), order, byte_budget)
        })
        .collect::<Result<Vec<_>>>()?;
    match plan.downcast_ref::<InferenceExec>() {
        Some(inference) => exchange(inference, &children[0], order, byte_budget),
        None if children.is_empty() => Ok(plan),
        None => replace_children_if_necessary(plan, children),
    }
}

fn exchange(
    inference: &InferenceExec,
    input: &Arc<dyn ExecutionPlan>,
    order: OrderUse,
    byte_budget: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    let ordering = input.output_ordering().filter(|_| order == OrderUse::Relied).cloned();
    let options = ExchangeOptions {
        replicas: inference.placement().replicas(),
        byte_budget,
        batch: inference.model().batch.clone(),
        ordered: ordering.is_some(),
    };
    let input = match &ordering {
        Some(ordering) => merged(input, ordering),
        None => Arc::clone(input),
    };
    let exchange = Arc::new(StreamingExchangeExec::try_new(input, options)?);
    let replicas = replace_children_if_necessary(Arc::new(inference.clone()), vec![exchange])?;
    match ordering {
        Some(_) => Ok(Arc::new(RestoreOrderExec::try_new(replicas)?)),
        None => Ok(replicas),
    }
}

/// Several sorted partitions as one.
fn merged(input: &Arc<dyn ExecutionPlan>, ordering: &LexOrdering) -> Arc<dyn ExecutionPlan> {
    match input.output_partitioning().partition_count() {
        1 => Arc::clone(input),
        _ => Arc::new(SortPreservingMergeExec::new(ordering.clone(), Arc::clone(input))),
    }
}
