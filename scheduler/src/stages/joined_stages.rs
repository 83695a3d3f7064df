//! A stage that is written only to be dealt out by hash in the next one is part of that one.
//!
//! Where Ballista's planner deals out the side of a join that was to be read whole, it leaves what made one
//! partition of it, and cuts there: the rows would go through files once more.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::execution_plans::{ShuffleWriter, SortShuffleWriterExec, UnresolvedShuffleExec};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning, replace_children_if_necessary};

use crate::stages::traits::holds_model;

/// The stages of a plan, producers first, without those.
pub(super) fn joined(writers: Vec<Arc<dyn ShuffleWriter>>) -> Result<Vec<Arc<dyn ShuffleWriter>>> {
    let mut plain: HashMap<usize, Arc<dyn ExecutionPlan>> = HashMap::new();
    let (mut stages, mut within): (Vec<Arc<dyn ShuffleWriter>>, Vec<usize>) = (vec![], vec![]);
    for writer in writers {
        let child = writer.children().first().copied().cloned();
        let child = child.ok_or_else(|| internal_datafusion_err!("a stage without operators"))?;
        let is_hash = writer.shuffle_output_partitioning().is_some();
        let read = only_read(&child).filter(|_| is_hash);
        let input = read.and_then(|stage| Some((stage, plain.remove(&stage)?)));
        // A model does not wait until what it gave has been dealt out.
        if !is_hash && !holds_model(&child) {
            plain.insert(writer.stage_id(), child);
        }
        stages.push(match input {
            None => writer,
            Some((stage, input)) => {
                within.push(stage);
                over(writer.as_ref(), input)?
            }
        });
    }
    stages.retain(|writer| !within.contains(&writer.stage_id()));
    Ok(stages)
}

/// The stage that a plan reads if it does nothing else, but for how many partitions it makes of it.
fn only_read(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    if let Some(read) = plan.downcast_ref::<UnresolvedShuffleExec>() {
        return (!read.broadcast).then_some(read.stage_id);
    }
    let repartition = plan.downcast_ref::<RepartitionExec>();
    let deals_in_turn = repartition.is_some_and(|repartition| {
        matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_))
    });
    let collects = plan.is::<CoalescePartitionsExec>() && plan.fetch().is_none();
    match plan.children()[..] {
        [input] if deals_in_turn || collects => only_read(input),
        _ => None,
    }
}

fn over(
    writer: &dyn ShuffleWriter,
    input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ShuffleWriter>> {
    let any: &dyn std::any::Any = writer;
    let sorted = any.downcast_ref::<SortShuffleWriterExec>();
    let sorted = sorted.ok_or_else(|| internal_datafusion_err!("an unknown shuffle writer"))?;
    let plan = replace_children_if_necessary(Arc::new(sorted.clone()), vec![input])?;
    let sorted = plan.downcast_ref::<SortShuffleWriterExec>();
    let sorted = sorted.ok_or_else(|| internal_datafusion_err!("another shuffle writer"))?;
    Ok(Arc::new(sorted.clone()))
}
