//! What an operator needs of its input and does not get, it gets: rows in an order, in one partition, or
//! those with equal keys together.
//!
//! DataFusion's rules see to that, and its last one refuses a plan in which they have not: they take a key
//! that is constant for sorted and for partitioned, and further up the plan, above a join or a repartition,
//! nobody knows any more that it is. Few rows have such keys; so no care is taken here to sort once only.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::physical_expr::{Distribution, OrderingRequirements, Partitioning};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ChildSatisfactionOptions, ExecutionPlanProperties};

use super::disguise::{self, Plan, Rule};

/// DataFusion's rule that refuses such plans.
const CHECKS: &str = "SanityCheckPlan";

/// Makes that rule find what it looks for.
pub(crate) fn add_to(rules: &mut [Rule]) {
    disguise::add_to(rules, CHECKS, met, |plan| Ok(Transformed::no(plan)));
}

fn met(plan: Plan) -> Result<Transformed<Plan>> {
    let mut inputs: Vec<Plan> = plan.children().into_iter().cloned().collect();
    let is_alone = inputs.len() == 1;
    let distributions = plan.input_distribution_requirements();
    let mut is_changed = false;
    for (at, order) in plan.required_input_ordering().into_iter().enumerate() {
        let options = ChildSatisfactionOptions::new().with_allow_subset(true);
        let input = &inputs[at];
        let mut given = None;
        if !distributions.child_satisfaction(at, input.as_ref(), options)?.is_satisfied() {
            given = distributed(input, distributions.per_child_distributions().nth(at), is_alone)?;
        }
        let input = given.as_ref().unwrap_or(input);
        given = in_order(input, order)?.or(given);
        if let Some(given) = given {
            inputs[at] = given;
            is_changed = true;
        }
    }
    Ok(if is_changed {
        Transformed::yes(replace_children_if_necessary(plan, inputs)?)
    } else {
        Transformed::no(plan)
    })
}

/// The input as it is to be distributed. Those of a join are distributed alike, or not at all.
fn distributed(
    input: &Plan,
    wanted: Option<&Distribution>,
    is_alone: bool,
) -> Result<Option<Plan>> {
    let partitions = input.output_partitioning().partition_count();
    Ok(match wanted {
        Some(Distribution::SinglePartition) => {
            Some(Arc::new(CoalescePartitionsExec::new(Arc::clone(input))))
        }
        Some(Distribution::KeyPartitioned(keys)) if is_alone => {
            let partitioning = Partitioning::Hash(keys.clone(), partitions);
            Some(Arc::new(RepartitionExec::try_new(Arc::clone(input), partitioning)?))
        }
        _ => None,
    })
}

/// The input with each of its partitions sorted, unless they are.
fn in_order(input: &Plan, wanted: Option<OrderingRequirements>) -> Result<Option<Plan>> {
    let Some(order) = wanted.map(OrderingRequirements::into_single) else { return Ok(None) };
    if input.equivalence_properties().ordering_satisfy_requirement(order.clone())? {
        return Ok(None);
    }
    let sorted = SortExec::new(order.into(), Arc::clone(input)).with_preserve_partitioning(true);
    Ok(Some(Arc::new(sorted)))
}
