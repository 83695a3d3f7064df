//! Cuts a physical plan into stages, at shuffles and where resource classes change.
//!
//! Ballista's planner cuts at shuffles. What it leaves whole is cut again:
//!
//! - below each exchange: CPU work streams to the model's stage, block by block if a task that runs
//!   again gives the same blocks, else task by task;
//! - above a model, where something heavier than a filter or a projection follows;
//! - below each operator that needs all rows of a stage of which several tasks run.
//!
//! A hash shuffle stays Ballista's. All other stages write blocks.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::{ShuffleWriter, SortShuffleWriterExec, UnresolvedShuffleExec};
use ballista_scheduler::planner::{DefaultDistributedPlanner, DistributedPlanner};
use datafusion::common::tree_node::{TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use forebay_engine::{ExchangeOptions, StreamingExchangeExec};
use forebay_planner::ForebayConfig;
use forebay_planner::physical::{disguised, undisguised};

use crate::graph::{EdgeKind, JobSpec, Limits};
use crate::stages::asked_order::asked_order;
use crate::stages::assembly::{Inputs, Piece, Stages, UNIT, in_one_partition, reader};
use crate::stages::input_wants::{Scope, Wants, sorted, wants};
use crate::stages::rewrites::{limit_joins, limit_merges, limit_scans, without_repartition};
use crate::stages::staged::{Reads, StagedPlan};
use crate::stages::traits::{can_be_left_out, holds_model, is_light, task_rows};

/// Cuts `plan`.
///
/// # Errors
/// What Ballista's planner cannot do.
pub(crate) fn cut(
    job: &JobId,
    plan: Arc<dyn ExecutionPlan>,
    options: &ConfigOptions,
) -> Result<StagedPlan> {
    let plan = plan.transform_up(limit_joins).data()?.transform_up(limit_scans).data()?;
    let plan = plan.transform_up(limit_merges).data()?;
    let order = asked_order(&plan);
    // Ballista's planner has DataFusion's rules look at parts of it once more.
    let plan = disguised(plan)?;
    let writers = DefaultDistributedPlanner::new()
        .plan_query_stages(job, plan, options)
        .map_err(ballista_core::error::BallistaError::into_datafusion)?;
    let config = options.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
    let mut stages = Stages { config, orders: merged(&writers)?, ..Stages::default() };
    stages.orders.extend(writers.last().map(|root| root.stage_id()).zip(order));
    for writer in writers {
        stages.add_shuffle_stage(writer.as_ref())?;
    }
    stages.add_client();
    let job_budget = stages.config.job_budget as u64;
    let limits = Limits {
        buffered_bytes_max: job_budget,
        kept_bytes_max: job_budget / KEPT_PART,
        ..Limits::default()
    };
    Ok(StagedPlan {
        plans: stages.plans,
        readers: stages.readers,
        shuffles: stages.shuffles,
        spec: JobSpec { stages: stages.specs, edges: stages.edges, limits },
    })
}

/// Of the job's budget, what may be kept after it has been read: it saves work when a worker is
/// lost, and takes room that what comes next could need.
const KEPT_PART: u64 = 8;

impl Stages {
    fn add_shuffle_stage(&mut self, writer: &dyn ShuffleWriter) -> Result<()> {
        let written = undisguised(only_child(writer.children())?)?;
        let written = written.transform_up(without_repartition).data()?;
        let order = self.orders.remove(&writer.stage_id());
        let (child, inputs) = self.cut(written, Scope::Own)?;
        let id = match writer.shuffle_output_partitioning() {
            None => {
                let child = order.map_or(Ok(Arc::clone(&child)), |order| sorted(child, order))?;
                self.add_block_stage(child, inputs, self.block_size())?
            }
            Some(_) => {
                let root: Arc<dyn ExecutionPlan> = writer_of(writer)?;
                self.add(replace_children_if_necessary(root, vec![child])?, inputs)?
            }
        };
        self.shuffles.insert(writer.stage_id(), id);
        Ok(())
    }

    /// The part of a plan that stays in its stage; what is below a cut is added.
    fn cut(&mut self, plan: Arc<dyn ExecutionPlan>, scope: Scope) -> Result<Piece> {
        if let Some(shuffle) = plan.downcast_ref::<UnresolvedShuffleExec>() {
            return self.read_shuffle(shuffle, &plan, scope);
        }
        if let Some(exchange) = plan.downcast_ref::<StreamingExchangeExec>()
            && !exchange.options().ordered
        {
            return self.cut_below_exchange(exchange);
        }
        if plan.is::<RepartitionExec>() {
            // Of what was one partition until Ballista's planner planned its stage anew.
            let piece = self.cut(only_child(plan.children())?, Scope::Own)?;
            return self.collect(piece);
        }
        let mut pieces = vec![];
        for (child, wants) in plan.children().into_iter().zip(wants(&plan, scope)) {
            let piece = self.cut(Arc::clone(child), wants.scope)?;
            let piece = match () {
                () if piece.1.streams() && wants.all_rows => self.collect(piece)?,
                () if wants.lacks_one_partition(&piece.0) => self.collect(piece)?,
                () if wants.one_task && holds_model(&piece.0) => self.collect(piece)?,
                () if wants.one_task => in_one_partition(piece),
                // A task would read its own part of a stream.
                () if !is_light(&plan) && holds_model(&piece.0) => match wants.all_rows {
                    true => self.collect(piece)?,
                    false => self.stream_in_order(piece)?,
                },
                // Restricted to no partition at all, such a branch would still have some, or not be made.
                () if plan.is::<UnionExec>() && !can_be_left_out(&piece.0) => {
                    self.stream_in_order(piece)?
                }
                () => piece,
            };
            pieces.push((piece, wants));
        }
        let are_apart = partitioned_apart(&pieces);
        let (mut children, mut inputs) = (vec![], Inputs::default());
        for (piece, wants) in pieces {
            let (child, found) = if are_apart { self.collect(piece)? } else { piece };
            children.push(wants.in_its_order(child)?);
            inputs.0.extend(found.0);
        }
        Ok((replace_children_if_necessary(plan, children)?, inputs))
    }

    fn read_shuffle(
        &mut self,
        shuffle: &UnresolvedShuffleExec,
        plan: &Arc<dyn ExecutionPlan>,
        scope: Scope,
    ) -> Result<Piece> {
        let stage = self.shuffles.get(&shuffle.stage_id).copied();
        let from = stage.ok_or_else(|| {
            internal_datafusion_err!("stage {} is read before it is planned", shuffle.stage_id)
        })?;
        let is_hash = self.plans[from.0 as usize].is::<SortShuffleWriterExec>();
        let (kind, reads) = match (shuffle.broadcast, scope) {
            (true, _) if is_hash => (EdgeKind::Broadcast, None),
            (false, _) if is_hash => (EdgeKind::Blocking, None),
            (true, _) => (EdgeKind::Broadcast, Some(Reads::AllInOne)),
            (false, Scope::All) => (EdgeKind::Blocking, Some(Reads::AllApart)),
            (false, Scope::Own) => (UNIT, Some(Reads::Unit)),
        };
        let inputs = Inputs(vec![(from, kind, reads)]);
        if is_hash {
            return Ok((Arc::clone(plan), inputs));
        }
        Ok((reader(from, plan), inputs))
    }

    fn cut_below_exchange(&mut self, exchange: &StreamingExchangeExec) -> Result<Piece> {
        let piece = self.cut(only_child(exchange.children())?, Scope::Own)?;
        let rows = task_rows(&exchange.options().batch);
        let (input, inputs) = self.stream(piece, self.block_size().in_windows_of(rows))?;
        // A task is one replica.
        let options = ExchangeOptions { replicas: 1, ..exchange.options().clone() };
        Ok((Arc::new(StreamingExchangeExec::try_new(input, options)?), inputs))
    }
}

/// Whether the inputs of one operator, which are to have equal keys in partitions of the same number, are
/// partitioned in different ways: where Ballista's planner plans a stage anew, the rows of one side may have
/// to be dealt out once more, as nobody knows any more that columns of it are equal. Those are in one partition
/// now (see [`RepartitionExec`] in [`Stages::cut`]).
fn partitioned_apart(pieces: &[(Piece, Wants)]) -> bool {
    let by_keys = pieces.iter().filter(|(_, wants)| wants.is_by_keys());
    let mut counts = by_keys.map(|((plan, _), _)| plan.output_partitioning().partition_count());
    let first = counts.next();
    counts.any(|count| Some(count) != first)
}

/// The orders in which stages are merged, by Ballista's numbers of them.
fn merged(writers: &[Arc<dyn ShuffleWriter>]) -> Result<HashMap<usize, LexOrdering>> {
    let mut orders = HashMap::new();
    for writer in writers {
        only_child(writer.children())?.apply(|plan| {
            let merge = plan.downcast_ref::<SortPreservingMergeExec>();
            let read =
                merge.and_then(|merge| merge.input().downcast_ref::<UnresolvedShuffleExec>());
            orders.extend(
                read.map(|read| read.stage_id).zip(merge.map(|merge| merge.expr().clone())),
            );
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(orders)
}

fn only_child(children: Vec<&Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
    let first = children.first().copied().cloned();
    first.ok_or_else(|| internal_datafusion_err!("an operator without an input"))
}

fn writer_of(writer: &dyn ShuffleWriter) -> Result<Arc<dyn ExecutionPlan>> {
    let writer: &dyn std::any::Any = writer;
    let sorted = writer.downcast_ref::<SortShuffleWriterExec>();
    let sorted = sorted.ok_or_else(|| internal_datafusion_err!("an unknown shuffle writer"))?;
    Ok(Arc::new(sorted.clone()))
}
