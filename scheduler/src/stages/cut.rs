//! Cuts a physical plan into stages, at shuffles and where resource classes change.
//!
//! Ballista's planner cuts at shuffles. What it leaves whole is cut again:
//!
//! - below each exchange: CPU work streams to the model's stage, block by block if a task that runs
//!   again gives the same blocks, else task by task;
//! - above a model, where something heavier than a filter or a projection follows;
//! - below what writes files, so that a task of it has the rows of a file, unless it is planned as direct;
//! - below each operator that needs all rows of a stage of which several tasks run.
//!
//! What merges all rows of a query in its order does so range by range (`ranges`).
//!
//! All stages write blocks, a hash shuffle with a segment for each partition (`dealt`), or for some of them together,
//! and another stage merges what those before it have dealt out (`merges`).

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_core::execution_plans::{ShuffleWriter, UnresolvedShuffleExec};
use ballista_scheduler::planner::{DefaultDistributedPlanner, DistributedPlanner};
use datafusion::common::tree_node::{TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use forebay_engine::{ExchangeOptions, StreamingExchangeExec, WriteExec};
use forebay_planner::ForebayConfig;
use forebay_planner::physical::{disguised, undisguised};

use crate::graph::{EdgeKind, Limits};
use crate::stages::asked_order::asked_order;
use crate::stages::assembly::{Input, Piece, Stages, UNIT, reader};
use crate::stages::dealt;
use crate::stages::finer_shuffles::finer_shuffles;
use crate::stages::input_wants::{Scope, Wants, sorted, wants};
use crate::stages::joined_stages::joined;
use crate::stages::kept_joins;
use crate::stages::rewrites::{limit_joins, limit_merges, limit_scans, without_repartition};
use crate::stages::short_runs::short_runs;
use crate::stages::staged::{PlannedStage, Reads, StagedPlan};
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
    let config = options.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
    let range_bytes = config.range_bytes as u64;
    let plan = plan.transform_up(|plan| short_runs(plan, range_bytes, options)).data()?;
    let partition_bytes = config.partition_bytes as u64;
    let (plan, options) = finer_shuffles(plan, partition_bytes, options);
    let order = asked_order(&plan);
    // Ballista's planner has DataFusion's rules look at parts of it once more.
    let plan = disguised(plan)?.transform_up(kept_joins::hidden).data()?;
    let writers = DefaultDistributedPlanner::new()
        .plan_query_stages(job, plan, &options)
        .map_err(ballista_core::error::BallistaError::into_datafusion)?;
    let writers = joined(writers)?;
    let (orders, cores) = (merged(&writers)?, options.execution.target_partitions);
    let mut stages = Stages { config, cores, orders, ..Stages::default() };
    stages.orders.extend(writers.last().map(|root| root.stage_id()).zip(order));
    let last = writers.last().map(|writer| writer.stage_id());
    for writer in writers {
        let is_last = last == Some(writer.stage_id());
        stages.add_shuffle_stage(writer.as_ref(), is_last)?;
    }
    stages.add_client();
    let job_budget = stages.config.job_budget as u64;
    // Of rounds that were merged each is read again when anything of these is lost: they go when a worker is full.
    let keeps_all = !stages.merges.is_empty();
    stages.staged.spec.limits = Limits {
        buffered_bytes_max: job_budget,
        kept_bytes_max: if keeps_all { u64::MAX } else { job_budget / KEPT_PART },
        ..Limits::default()
    };
    Ok(stages.staged)
}

/// Of the job's budget, what may be kept after it has been read: it saves work when a worker is
/// lost, and takes room that what comes next could need.
const KEPT_PART: u64 = 8;

impl Stages {
    fn add_shuffle_stage(&mut self, writer: &dyn ShuffleWriter, is_last: bool) -> Result<()> {
        let written = only_child(writer.children())?.transform_up(kept_joins::shown).data()?;
        let written = undisguised(written)?;
        let written = written.transform_up(without_repartition).data()?;
        let order = self.orders.remove(&writer.stage_id());
        let Piece { plan: child, inputs } = self.cut(written, Scope::Own)?;
        let id = if writer.shuffle_output_partitioning().is_some() {
            let writer = dealt::writer(writer, child, self.config.block_bytes as u64)?;
            self.add_dealt(writer, inputs)?
        } else {
            let plan = order.map_or(Ok(Arc::clone(&child)), |order| sorted(child, order))?;
            let mut piece = Piece { plan, inputs };
            if is_last {
                self.merge_in_ranges(&mut piece)?;
            }
            self.add_block_stage(piece, self.block_size())?
        };
        self.shuffles.insert(writer.stage_id(), id);
        Ok(())
    }

    /// The part of a plan that stays in its stage; what is below a cut is added.
    fn cut(&mut self, plan: Arc<dyn ExecutionPlan>, scope: Scope) -> Result<Piece> {
        if let Some(shuffle) = plan.downcast_ref::<UnresolvedShuffleExec>() {
            return self.read_shuffle(shuffle, scope);
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
            let piece = match becomes(&piece, &plan, &wants) {
                Becomes::PartOfIt => piece,
                Becomes::OnePartition => {
                    Piece { plan: Arc::new(CoalescePartitionsExec::new(piece.plan)), ..piece }
                }
                Becomes::Stream => self.stream_in_order(piece)?,
                Becomes::Grouped => self.stream_in_groups(piece)?,
                Becomes::Collected => self.collect(piece)?,
            };
            pieces.push((piece, wants));
        }
        let are_apart = partitioned_apart(&pieces);
        let (mut children, mut inputs) = (vec![], vec![]);
        for (piece, wants) in pieces {
            let piece = if are_apart { self.collect(piece)? } else { piece };
            children.push(wants.in_its_order(piece.plan)?);
            inputs.extend(piece.inputs);
        }
        Ok(Piece { plan: replace_children_if_necessary(plan, children)?, inputs })
    }

    fn read_shuffle(&mut self, shuffle: &UnresolvedShuffleExec, scope: Scope) -> Result<Piece> {
        let stage = self.shuffles.get(&shuffle.stage_id).copied();
        let from = stage.ok_or_else(|| {
            internal_datafusion_err!("stage {} is read before it is planned", shuffle.stage_id)
        })?;
        if self.staged.stage(from).is_some_and(PlannedStage::is_dealt) {
            let kind = if shuffle.broadcast { EdgeKind::Broadcast } else { EdgeKind::Hash };
            let input = Input { from, kind, reads: Reads::Dealt };
            return Ok(Piece { plan: dealt::hole(from, shuffle)?, inputs: vec![input] });
        }
        let (kind, reads) = match (shuffle.broadcast, scope) {
            (true, _) => (EdgeKind::Broadcast, Reads::AllInOne),
            (false, Scope::All) => (EdgeKind::Blocking, Reads::AllApart),
            (false, Scope::Own) => (UNIT, Reads::Unit),
        };
        Ok(Piece {
            plan: reader(from, Arc::clone(&shuffle.schema)),
            inputs: vec![Input { from, kind, reads }],
        })
    }

    fn cut_below_exchange(&mut self, exchange: &StreamingExchangeExec) -> Result<Piece> {
        let piece = self.cut(only_child(exchange.children())?, Scope::Own)?;
        let rows = task_rows(&exchange.options().batch);
        let Piece { plan, inputs } = self.stream(piece, self.block_size().in_windows_of(rows))?;
        // A task is one replica.
        let options = ExchangeOptions { replicas: 1, ..exchange.options().clone() };
        Ok(Piece { plan: Arc::new(StreamingExchangeExec::try_new(plan, options)?), inputs })
    }
}

/// What an operator's input becomes.
enum Becomes {
    /// It stays in the operator's stage.
    PartOfIt,
    /// The same. What a task reads of a whole stage is as many partitions as that had tasks: they
    /// become one.
    OnePartition,
    /// A stage, whose units the operator's tasks read as they come.
    Stream,
    /// A stage, of which the operator's tasks read as much at a time as they like.
    Grouped,
    /// A stage, all of which the operator reads in one task.
    Collected,
}

fn becomes(piece: &Piece, operator: &Arc<dyn ExecutionPlan>, wants: &Wants) -> Becomes {
    let has_model = holds_model(&piece.plan);
    if piece.streams() && wants.all_rows || wants.lacks_one_partition(&piece.plan) {
        return Becomes::Collected;
    }
    if wants.one_task {
        return if has_model { Becomes::Collected } else { Becomes::OnePartition };
    }
    if let Some(write) = operator.downcast_ref::<WriteExec>()
        && !is_one_partition(piece)
        && (piece.streams() || !write.is_direct())
    {
        // Files have a size of their own, whatever the tasks have that make the rows.
        return Becomes::Grouped;
    }
    if has_model && !is_light(operator) {
        // A task would read its own part of a stream.
        return if wants.all_rows { Becomes::Collected } else { Becomes::Stream };
    }
    // Restricted to no partition at all, such a branch would still have some, or not be made.
    if operator.is::<UnionExec>() && !can_be_left_out(&piece.plan) {
        return Becomes::Stream;
    }
    Becomes::PartOfIt
}

fn is_one_partition(piece: &Piece) -> bool {
    !piece.streams() && piece.plan.output_partitioning().partition_count() == 1
}

/// Whether the inputs of one operator, which are to have equal keys in partitions of the same number, are
/// partitioned in different ways: where Ballista's planner plans a stage anew, the rows of one side may have
/// to be dealt out once more, as nobody knows any more that columns of it are equal. Those are in one partition
/// now (see [`RepartitionExec`] in [`Stages::cut`]).
fn partitioned_apart(pieces: &[(Piece, Wants)]) -> bool {
    let by_keys = pieces.iter().filter(|(_, wants)| wants.is_by_keys());
    let mut counts = by_keys.map(|(piece, _)| piece.plan.output_partitioning().partition_count());
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
