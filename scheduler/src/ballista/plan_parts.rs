//! Plans as bytes, however many operators stand one below the other.
//!
//! A message of protocol buffers is read to a depth of 100 messages, which keeps hostile ones from
//! taking all stack, and an operator takes two of them. So a plan is sent in parts: what is deep becomes
//! a message of its own, and a [`PlanPartExec`] stands for it in the part above.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{
    DataFusionError, Result, exec_datafusion_err, plan_datafusion_err, plan_err,
};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::PhysicalPlanNode;

use super::part_codec::{PlanPartExec, PlanParts};
use super::session;
use crate::graph::Segments;

/// Operators one below the other in a part. Half of a message's depth is left to expressions.
const PART_DEPTH: usize = 24;

/// Operators one below the other in a whole plan: those who walk through it go down by recursion.
const DEPTH_MAX: usize = 400;

/// A plan as bytes: its parts, each after those that it names, the whole of it last.
///
/// # Errors
/// If an operator or a function cannot be sent, the plan or an expression is too deep, or an operator has too many
/// partitions.
pub(crate) fn encode(plan: Arc<dyn ExecutionPlan>) -> Result<Vec<Vec<u8>>> {
    check_size(&plan)?;
    let mut parts = vec![];
    let (rest, _) = without_deep_parts(plan, &mut parts)?;
    parts.push(message(rest)?);
    Ok(parts)
}

/// The plan again.
///
/// # Errors
/// If the bytes are not those of a plan that this build has sent, or `context` has no [`PlanParts`]. A
/// part that is named twice would double the plan, and forty such parts would never end.
pub(crate) fn decode(parts: &[Vec<u8>], context: &TaskContext) -> Result<Arc<dyn ExecutionPlan>> {
    let known = context.session_config().get_extension::<PlanParts>();
    let known = known.ok_or_else(|| exec_datafusion_err!("a session that decodes no plans"))?;
    for part in parts {
        let node = PhysicalPlanNode::try_decode(part)?;
        let found = node.try_into_physical_plan(context, session::physical_codec().as_ref())?;
        check_size(&found)?;
        known.push(found);
    }
    let plan = parts.len().checked_sub(1).and_then(|last| known.take(last));
    plan.ok_or_else(|| exec_datafusion_err!("a request to run no plan"))
}

/// Whether a plan is as small as those who walk through it, and who count its tasks, need it to be.
fn check_size(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    if depth(plan) > DEPTH_MAX {
        return Err(too_deep());
    }
    let checked = plan.apply(|operator| {
        let partitions = operator.output_partitioning().partition_count();
        if partitions <= Segments::PARTITIONS_MAX {
            return Ok(TreeNodeRecursion::Continue);
        }
        let (name, most) = (operator.name(), Segments::PARTITIONS_MAX);
        plan_err!(
            "{name} has {partitions} partitions, expected {most} at most on a cluster, as each is a task; lower \
             datafusion.execution.target_partitions"
        )
    });
    checked.map(drop)
}

/// Operators one below the other.
fn depth(plan: &Arc<dyn ExecutionPlan>) -> usize {
    1 + plan.children().into_iter().map(depth).max().unwrap_or(0)
}

fn too_deep() -> DataFusionError {
    plan_datafusion_err!(
        "this query is nested too deeply for a cluster: its plan has more than {DEPTH_MAX} operators one \
         below the other, or some forty in a part that one task runs, or an expression has more than \
         some thirty levels; compute a part of it first (CREATE TABLE … AS SELECT …), or run it in one \
         process"
    )
}

/// Whether a stage's plan can be sent to a worker, which takes it as one message.
///
/// # Errors
/// If it is too deep.
pub(crate) fn check_depth(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    message(Arc::clone(plan)).map(drop)
}

/// A plan that is not deep, as bytes that can be read.
fn message(plan: Arc<dyn ExecutionPlan>) -> Result<Vec<u8>> {
    let codec = session::physical_codec();
    let mut bytes = vec![];
    PhysicalPlanNode::try_from_physical_plan(plan, codec.as_ref())?.try_encode(&mut bytes)?;
    match PhysicalPlanNode::try_decode(&bytes) {
        Ok(_) => Ok(bytes),
        Err(_) => Err(too_deep()),
    }
}

/// Takes out what is deep; gives the rest, and how many operators stand one below the other in it.
fn without_deep_parts(
    plan: Arc<dyn ExecutionPlan>,
    parts: &mut Vec<Vec<u8>>,
) -> Result<(Arc<dyn ExecutionPlan>, usize)> {
    let mut children: Vec<Arc<dyn ExecutionPlan>> = vec![];
    let mut depth = 0;
    for child in plan.children() {
        let (child, below) = without_deep_parts(Arc::clone(child), parts)?;
        if below < PART_DEPTH {
            depth = depth.max(below);
            children.push(child);
            continue;
        }
        let properties = Arc::clone(child.properties());
        parts.push(message(child)?);
        children.push(Arc::new(PlanPartExec { number: parts.len() - 1, properties }));
    }
    Ok((replace_children_if_necessary(plan, children)?, depth + 1))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Schema;
    use datafusion::physical_plan::Partitioning;
    use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::physical_plan::repartition::RepartitionExec;
    use datafusion::physical_plan::union::UnionExec;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    fn deep(operators: usize) -> Arc<dyn ExecutionPlan> {
        let leaf: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        (0..operators).fold(leaf, |plan, _| Arc::new(CoalescePartitionsExec::new(plan)))
    }

    fn context() -> Arc<TaskContext> {
        let config = SessionConfig::new().with_extension(Arc::new(PlanParts::default()));
        SessionContext::new_with_config(config).task_ctx()
    }

    #[test]
    fn deep_plans_come_back_as_they_were() {
        for operators in [0, 1, PART_DEPTH - 1, PART_DEPTH, PART_DEPTH + 1, 70, 300] {
            let plan = deep(operators);
            let parts = encode(Arc::clone(&plan)).unwrap();
            assert_eq!(parts.len(), 1 + operators / PART_DEPTH);
            let found = decode(&parts, &context()).unwrap();
            let text =
                |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
            assert_eq!(text(&found), text(&plan));
        }
    }

    #[test]
    fn what_one_task_runs_must_not_be_deep() {
        check_depth(&deep(40)).unwrap();
        let error = check_depth(&deep(60)).unwrap_err().to_string();
        assert!(error.contains("nested too deeply for a cluster"), "{error}");
    }

    /// A million of them took the scheduler 8 GB and a minute in which it heard of nobody.
    #[test]
    fn operators_with_very_many_partitions_are_refused_on_both_sides() {
        let dealt_out = |partitions| -> Arc<dyn ExecutionPlan> {
            let partitioning = Partitioning::RoundRobinBatch(partitions);
            let dealt_out = RepartitionExec::try_new(deep(0), partitioning).unwrap();
            Arc::new(CoalescePartitionsExec::new(Arc::new(dealt_out)))
        };
        decode(&encode(dealt_out(65_536)).unwrap(), &context()).unwrap();
        let error = encode(dealt_out(65_537)).unwrap_err().to_string();
        assert!(error.contains("RepartitionExec has 65537 partitions"), "{error}");
        assert!(error.contains("datafusion.execution.target_partitions"), "{error}");
        let sent = message(dealt_out(1_000_000)).unwrap();
        let refused = decode(&[sent], &context()).unwrap_err().to_string();
        assert!(refused.contains("RepartitionExec has 1000000 partitions"), "{refused}");
    }

    #[test]
    fn parts_cannot_be_multiplied_or_piled_up() {
        let mut parts = encode(deep(PART_DEPTH)).unwrap();
        let names_the_first_twice: Arc<dyn ExecutionPlan> = {
            let part = || -> Arc<dyn ExecutionPlan> {
                let properties = Arc::clone(deep(1).properties());
                Arc::new(PlanPartExec { number: 0, properties })
            };
            UnionExec::try_new(vec![part(), part()]).unwrap()
        };
        parts[1] = message(names_the_first_twice).unwrap();
        let error = decode(&parts, &context()).unwrap_err().to_string();
        assert!(error.contains("was named already"), "{error}");
        let error = encode(deep(DEPTH_MAX)).unwrap_err().to_string();
        assert!(error.contains("more than 400 operators"), "{error}");
        let mut parts = encode(deep(DEPTH_MAX - 1)).unwrap();
        let number = parts.len() - 1;
        let properties = Arc::clone(deep(1).properties());
        let above = CoalescePartitionsExec::new(Arc::new(PlanPartExec { number, properties }));
        parts.push(message(Arc::new(above)).unwrap());
        decode(&parts, &context()).unwrap_err();
    }

    #[test]
    fn parts_that_are_missing_or_out_of_order_are_errors() {
        let parts = encode(deep(70)).unwrap();
        for damaged in [&parts[1..], &parts[..0], &[parts[2].clone(), parts[0].clone()]] {
            decode(damaged, &context()).unwrap_err();
        }
    }
}
