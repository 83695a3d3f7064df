//! Stages that are one with the stage that reads them: their rows would go through files once more for nothing.
//!
//! Where Ballista's planner deals out both sides of a join of which one was to be read whole, it
//!
//! - leaves what made one partition of that one, and cuts there: what is written only to be dealt out by hash in the
//!   next stage is part of that one;
//! - does not ask how the rows of the other one are partitioned already, of a join by the same keys, say: what is dealt
//!   out as it is anyway is part of the stage that reads it.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::execution_plans::{
    ShuffleWriter, ShuffleWriterExec, SortShuffleWriterExec, UnresolvedShuffleExec,
};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::{PhysicalExpr, physical_exprs_equal};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, replace_children_if_necessary,
};

use crate::stages::traits::holds_model;

type Writer = Arc<dyn ShuffleWriter>;

/// The stages of a plan, producers first, without those.
pub(super) fn joined(writers: Vec<Writer>) -> Result<Vec<Writer>> {
    without_dealt_again(without_dealt_next(writers)?)
}

/// Without those that are dealt out in the next one.
fn without_dealt_next(writers: Vec<Writer>) -> Result<Vec<Writer>> {
    let mut plain: HashMap<usize, Arc<dyn ExecutionPlan>> = HashMap::new();
    let (mut stages, mut within): (Vec<Writer>, Vec<usize>) = (vec![], vec![]);
    for writer in writers {
        let child = only_child(&writer)?;
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

/// Without those whose rows are in the partitions into which they are dealt out.
fn without_dealt_again(writers: Vec<Writer>) -> Result<Vec<Writer>> {
    let mut dealt: HashMap<usize, Writer> = HashMap::new();
    let mut stages = vec![];
    for writer in writers {
        let child = only_child(&writer)?;
        // Its inputs have to say that they are partitioned by the same keys, not by equal ones.
        let stays = child.exists(|plan| Ok(plan.is::<InterleaveExec>()))?;
        let read = child.transform_up(|plan| {
            let shuffle = plan.downcast_ref::<UnresolvedShuffleExec>();
            let stage = shuffle.filter(|read| !read.broadcast).map(|read| read.stage_id);
            match stage.and_then(|stage| dealt.remove(&stage)) {
                Some(writer) if stays => stages.push(writer),
                Some(writer) => return Ok(Transformed::yes(only_child(&writer)?)),
                None => {}
            }
            Ok(Transformed::no(plan))
        })?;
        let writer =
            if read.transformed { over(writer.as_ref(), Arc::clone(&read.data))? } else { writer };
        let keys = writer.shuffle_output_partitioning();
        if keys.is_some_and(|keys| is_dealt(&read.data, keys)) {
            dealt.insert(writer.stage_id(), writer);
        } else {
            stages.push(writer);
        }
    }
    let mut lost = dealt.into_keys();
    lost.next().map_or(Ok(stages), |stage| internal_err!("stage {stage} is left out and not read"))
}

/// Whether the rows of a stage are in the partitions of a hash of these keys, dealt out by earlier ones: files of
/// which that is said may have another hash, and what deals out within a stage is taken out of it. A model is not
/// computed with what reads its rows.
fn is_dealt(plan: &Arc<dyn ExecutionPlan>, wanted: &Partitioning) -> bool {
    let (Partitioning::Hash(is, of), Partitioning::Hash(keys, partitions)) =
        (plan.output_partitioning(), wanted)
    else {
        return false;
    };
    let equal = plan.equivalence_properties().eq_group();
    let normal = |keys: &[Arc<dyn PhysicalExpr>]| -> Vec<_> {
        keys.iter().map(|key| equal.normalize_expr(Arc::clone(key))).collect()
    };
    of == partitions
        && physical_exprs_equal(&normal(is), &normal(keys))
        && reads_stages_only(plan)
        && !holds_model(plan)
}

fn reads_stages_only(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let children = plan.children();
    if children.is_empty() {
        return plan.is::<UnresolvedShuffleExec>();
    }
    !plan.is::<RepartitionExec>() && children.into_iter().all(reads_stages_only)
}

fn only_child(writer: &Writer) -> Result<Arc<dyn ExecutionPlan>> {
    let child = writer.children().first().copied().cloned();
    child.ok_or_else(|| internal_datafusion_err!("a stage without operators"))
}

/// The same stage of another plan.
fn over(writer: &dyn ShuffleWriter, input: Arc<dyn ExecutionPlan>) -> Result<Writer> {
    let any: &dyn std::any::Any = writer;
    if let Some(sorted) = any.downcast_ref::<SortShuffleWriterExec>() {
        let plan = replace_children_if_necessary(Arc::new(sorted.clone()), vec![input])?;
        let sorted = plan.downcast_ref::<SortShuffleWriterExec>();
        let sorted = sorted.ok_or_else(|| internal_datafusion_err!("another shuffle writer"))?;
        return Ok(Arc::new(sorted.clone()));
    }
    if !any.is::<ShuffleWriterExec>() {
        return internal_err!("an unknown shuffle writer");
    }
    let (job, stage) = (writer.job_id().clone(), writer.stage_id());
    Ok(Arc::new(ShuffleWriterExec::try_new(job, stage, input, String::new())?))
}
