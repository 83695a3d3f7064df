//! A stage's plan, filled in for one task: what it reads, and from where.

use std::collections::BTreeMap;
use std::sync::Arc;

use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::serde::scheduler::TaskKey;
use ballista_scheduler::state::execution_graph::TaskDescription;
use ballista_scheduler::state::task_builder::restrict_plan_to_partitions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_engine::InferenceExec;
use forebay_engine::device::Placement;
use forebay_udf::runtime::Device;

use crate::block::range_window::RowsOfRuns;
use crate::block::{BlockReaderExec, BlockWriterExec, HashWriterExec, RangeWindowExec, Rest};
use crate::coordinator::job::{Addresses, RunningJob};
use crate::graph::{Bound, KeyRange, StageId};
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::TaskName;
use crate::stages::{PlannedStage, Reads, StagedPlan, dealt};

impl RunningJob {
    /// What Ballista sends to the worker.
    pub(crate) fn task(
        &self,
        bound: &Bound,
        devices: &[Device],
        addresses: &Addresses,
    ) -> Result<TaskDescription> {
        let plan = TaskPlan { job: self, plans: &self.plans, bound, devices, addresses };
        let plan = plan.build()?;
        Ok(TaskDescription {
            session_id: self.session.clone(),
            key: TaskKey {
                job_id: self.id.clone(),
                stage_id: bound.task.stage.0 as usize,
                task_id: bound.task.index as usize,
            },
            stage_attempt_num: 0,
            task_attempt: bound.attempt as usize,
            global_input_partition_ids: plan.partitions,
            vcores_consumed: 0,
            plan: plan.plan,
            session_config: Arc::clone(&self.config),
        })
    }
}

/// What a task's plan is made of.
struct TaskPlan<'a> {
    job: &'a RunningJob,
    plans: &'a StagedPlan,
    bound: &'a Bound,
    /// The accelerators that are the task's own on its worker.
    devices: &'a [Device],
    addresses: &'a Addresses,
}

/// A plan, and the partitions of it that the task runs.
struct Filled {
    plan: Arc<dyn ExecutionPlan>,
    partitions: Vec<usize>,
}

impl TaskPlan<'_> {
    fn build(&self) -> Result<Filled> {
        let template = Arc::clone(&self.stage()?.plan);
        let plan = template.transform(|node| self.fill(node)).data()?;
        let partition = match self.bound.edge {
            None => own_partition(&plan, self.bound.partition as usize),
            Some(_) => partition_of(&plan, self.edge_from()).unwrap_or(0),
        };
        if !self.stage()?.reads.values().any(|reads| *reads == Reads::Dealt) {
            return Ok(Filled { plan, partitions: vec![partition] });
        }
        // As Ballista would once more: then all that is left is the task's.
        let plan = restrict_plan_to_partitions(plan, &[partition])?;
        let plan = plan.transform(|node| self.fill_dealt(node)).data()?;
        let left =
            plan.children().first().map(|child| child.output_partitioning().partition_count());
        Ok(Filled { plan, partitions: (0..left.unwrap_or(1)).collect() })
    }

    fn stage(&self) -> Result<&PlannedStage> {
        let stage = self.bound.task.stage;
        self.plans.stage(stage).ok_or_else(|| internal_datafusion_err!("stage {stage} has no plan"))
    }

    fn fill(&self, node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        if let Some(writer) = node.downcast_ref::<BlockWriterExec>() {
            let writer = writer.clone().with_skipped(self.bound.skip.clone());
            return Ok(Transformed::yes(Arc::new(writer)));
        }
        if let Some(writer) = node.downcast_ref::<HashWriterExec>() {
            let groups = writer.groups().of_unit(self.bound.unit.index);
            return Ok(Transformed::yes(Arc::new(writer.clone().in_groups(groups))));
        }
        if let Some(inference) = node.downcast_ref::<InferenceExec>()
            && !self.devices.is_empty()
        {
            let placement = Placement { devices: self.devices.to_vec() };
            return Ok(Transformed::yes(Arc::new(inference.try_placed(placement)?)));
        }
        if let Some(window) = node.downcast_ref::<RangeWindowExec>() {
            let window = window.clone().with_rows(self.rows_of(window.stage()));
            return Ok(Transformed::yes(Arc::new(window)));
        }
        let Some(reader) = node.downcast_ref::<BlockReaderExec>() else {
            return Ok(Transformed::no(node));
        };
        let from = StageId(reader.stage());
        let reads = self.stage()?.reads.get(&from).ok_or_else(|| {
            internal_datafusion_err!("stage {} reads {from}, unplanned", self.bound.task.stage)
        })?;
        let partitions = match reads {
            Reads::Unit if self.edge_from() == Some(from) => vec![self.own_input()],
            // Another branch of a UNION. One partition without rows: some operators want one.
            Reads::Unit => vec![vec![]],
            Reads::AllApart => match &self.bound.range {
                Some(range) => self.runs_of(from, range),
                None => self.units_of(from),
            },
            Reads::AllInOne => vec![self.units_of(from).concat()],
            Reads::Dealt => return Ok(Transformed::no(node)),
        };
        let range = self.bound.range.clone().unwrap_or_default();
        let reader = BlockReaderExec::new(reader.stage(), reader.schema(), partitions);
        let reader = reader.in_range(range);
        Ok(Transformed::yes(Arc::new(reader)))
    }

    /// Where the partitions are that are left of what a stage has dealt out by hash. What is read whole by all tasks is
    /// read block by block.
    fn fill_dealt(
        &self,
        node: Arc<dyn ExecutionPlan>,
    ) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let Some(hole) = node.downcast_ref::<ShuffleReaderExec>() else {
            return Ok(Transformed::no(node));
        };
        let from = dealt::stage_of(hole);
        if hole.broadcast {
            let whole = vec![self.units_of(from).concat()];
            let reader = BlockReaderExec::new(from.0, hole.schema(), whole);
            return Ok(Transformed::yes(Arc::new(reader)));
        }
        let partitions = dealt::partitions(hole)?;
        let segments = partitions.iter().map(|partition| self.segments_of(from, *partition));
        let reader = BlockReaderExec::new(from.0, hole.schema(), segments.collect());
        let reader = match self.job.graph.told_so_far(from) {
            Some(told) => reader.followed_by(Rest { task: self.name(), told, partitions }),
            None => reader,
        };
        Ok(Transformed::yes(Arc::new(reader)))
    }

    /// How many rows there are before the range of the task, and in all.
    fn rows_of(&self, runs: u32) -> RowsOfRuns {
        let (runs, graph) = (StageId(runs), &self.job.graph);
        let range = self.bound.range.clone().unwrap_or_default();
        RowsOfRuns { before: graph.rows_before(runs, &range), all: graph.rows_of(runs) }
    }

    fn segments_of(&self, stage: StageId, partition: u32) -> Vec<BlockLocation> {
        let segments = self.job.graph.segments(stage, partition);
        self.job.segments(&segments, partition, self.addresses)
    }

    fn name(&self) -> TaskName {
        let (job, task) = (self.job.id.to_string(), self.bound.task);
        TaskName { job, stage: task.stage.0, task: task.index }
    }

    fn edge_from(&self) -> Option<StageId> {
        let edge = self.bound.edge?;
        self.plans.spec.edges.get(edge.0 as usize).map(|edge| edge.from)
    }

    fn own_input(&self) -> Vec<BlockLocation> {
        let location = |input| self.job.location(input, self.addresses);
        self.bound.inputs.iter().map(location).collect()
    }

    /// The blocks of each unit of a stage; one empty partition if there are none.
    fn units_of(&self, stage: StageId) -> Vec<Vec<BlockLocation>> {
        let mut units: BTreeMap<_, Vec<BlockLocation>> = BTreeMap::new();
        for input in self.job.graph.outputs(stage) {
            let blocks = units.entry(input.block.unit).or_default();
            blocks.push(self.job.location(&input, self.addresses));
        }
        if units.is_empty() { vec![vec![]] } else { units.into_values().collect() }
    }

    /// The blocks of each run of a stage that may have rows of a range; one empty run if there are none.
    fn runs_of(&self, stage: StageId, range: &KeyRange) -> Vec<Vec<BlockLocation>> {
        let runs = self.job.graph.blocks_in(stage, range).into_iter();
        let location = |input| self.job.location(&input, self.addresses);
        let runs: Vec<_> = runs.map(|run| run.into_iter().map(location).collect()).collect();
        if runs.is_empty() { vec![vec![]] } else { runs }
    }
}

/// Which partition of the plan is this one of those that come from no other stage's blocks: in a
/// UNION both kinds stand side by side.
fn own_partition(root: &Arc<dyn ExecutionPlan>, number: usize) -> usize {
    // Of what the root writes: a shuffle's writer has the partitions that it makes.
    let written = root.children().first().map_or_else(Vec::new, |child| are_own(child));
    let own = written.into_iter().enumerate().filter(|(_, own)| *own);
    own.map(|(at, _)| at).nth(number).unwrap_or(number)
}

fn are_own(plan: &Arc<dyn ExecutionPlan>) -> Vec<bool> {
    let partitions = plan.output_partitioning().partition_count();
    if plan.is::<BlockReaderExec>() {
        return vec![false; partitions];
    }
    let mut children = plan.children().into_iter().map(are_own);
    if plan.is::<UnionExec>() {
        return children.flatten().collect();
    }
    // Of a join, the side that its partitions follow.
    let followed = children.rfind(|child| child.len() == partitions);
    followed.unwrap_or_else(|| vec![true; partitions])
}

/// Which partition of the plan is the one that the blocks of a stage make.
fn partition_of(plan: &Arc<dyn ExecutionPlan>, from: Option<StageId>) -> Option<usize> {
    if let Some(reader) = plan.downcast_ref::<BlockReaderExec>() {
        return (Some(StageId(reader.stage())) == from).then_some(0);
    }
    let mut before = 0;
    for child in plan.children() {
        if let Some(found) = partition_of(child, from) {
            return Some(before + found);
        }
        if plan.is::<UnionExec>() {
            before += child.output_partitioning().partition_count();
        }
    }
    None
}
