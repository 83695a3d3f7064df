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
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::config::ConfigOptions;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::{Distribution, LexOrdering};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, replace_children_if_necessary,
};
use forebay_engine::{ExchangeOptions, InferenceExec, StreamingExchangeExec};
use forebay_planner::ForebayConfig;
use forebay_planner::physical::{disguised, undisguised};
use forebay_udf::model::BatchLimits;

use crate::block::{BlockReaderExec, BlockSize, BlockWriterExec};
use crate::graph::{EdgeKind, EdgeSpec, Granularity, JobSpec, Limits, StageId, StageSpec};
use crate::stages::asked_order::asked_order;
use crate::stages::input_wants::{Scope, Wants, sorted, wants};
use crate::stages::joined_stages::joined;
use crate::stages::kept_joins;
use crate::stages::traits::{gives_rows_for_nothing, is_light, is_replayable, needs};

/// A plan in stages.
#[derive(Debug, Default)]
pub(crate) struct StagedPlan {
    /// By [`StageId`]; roots write, leaves scan or read what other stages write.
    pub(crate) plans: Vec<Arc<dyn ExecutionPlan>>,
    /// By [`StageId`].
    pub(crate) readers: Vec<HashMap<StageId, Reads>>,
    /// The stages of Ballista's shuffle readers.
    pub(crate) shuffles: HashMap<usize, StageId>,
    /// Stages and edges.
    pub(crate) spec: JobSpec,
}

impl StagedPlan {
    /// Whether a stage writes a hash shuffle.
    pub(crate) fn is_shuffle(&self, stage: StageId) -> bool {
        let plan = self.plans.get(stage.0 as usize);
        plan.is_some_and(|plan| plan.is::<SortShuffleWriterExec>())
    }
}

/// How a stage reads another one's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// A unit's input is one partition.
    Unit,
    /// Each unit of the other stage is a partition; something above makes one of them.
    AllApart,
    /// All of it is one partition.
    AllInOne,
}

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
    let plan = disguised(plan)?.transform_up(kept_joins::hidden).data()?;
    let writers = DefaultDistributedPlanner::new()
        .plan_query_stages(job, plan, options)
        .map_err(ballista_core::error::BallistaError::into_datafusion)?;
    let writers = joined(writers)?;
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

/// Tasks of a stage that may start before it is known how much one of them writes.
const FIRST_TASKS: u64 = 4;

#[derive(Default)]
struct Stages {
    config: ForebayConfig,
    plans: Vec<Arc<dyn ExecutionPlan>>,
    readers: Vec<HashMap<StageId, Reads>>,
    specs: Vec<StageSpec>,
    edges: Vec<EdgeSpec>,
    /// Ballista's numbers of stages.
    shuffles: HashMap<usize, StageId>,
    /// By these: the order in which a stage's units are merged, or the client's rows come. A cut may
    /// have taken away what it came from.
    orders: HashMap<usize, LexOrdering>,
}

/// A piece of a stage, and what it reads.
#[derive(Default)]
struct Inputs(Vec<(StageId, EdgeKind, Option<Reads>)>);

impl Inputs {
    /// Whether its partitions come from other stages' blocks, as many as there will be.
    fn streams(&self) -> bool {
        self.0.iter().any(|(_, _, reads)| *reads == Some(Reads::Unit))
    }
}

type Piece = (Arc<dyn ExecutionPlan>, Inputs);

impl Stages {
    fn add_shuffle_stage(&mut self, writer: &dyn ShuffleWriter) -> Result<()> {
        let written = only_child(writer.children())?.transform_up(kept_joins::shown).data()?;
        let written = undisguised(written)?;
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

    fn add_block_stage(
        &mut self,
        plan: Arc<dyn ExecutionPlan>,
        inputs: Inputs,
        size: BlockSize,
    ) -> Result<StageId> {
        let size = if self.config.dynamic_blocks { size } else { BlockSize::WHOLE };
        self.add(Arc::new(BlockWriterExec::new(plan, size)), inputs)
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::up_to(self.config.block_bytes as u64)
    }

    fn add(&mut self, root: Arc<dyn ExecutionPlan>, inputs: Inputs) -> Result<StageId> {
        let id = StageId(self.plans.len() as u32);
        let child = root.children().first().copied().cloned();
        let partitions = match child {
            _ if inputs.streams() => own_partitions(&root),
            Some(child) => child.output_partitioning().partition_count(),
            None => 1,
        };
        let bytes = self.config.block_bytes as u64;
        let mut spec = StageSpec::new(name(&root), needs(&root)?, partitions as u32)
            .with_group_bytes_max(bytes)
            .with_group_rows_max(model_rows(&root))
            .with_output_bytes_guess(bytes.min(self.config.edge_budget as u64 / FIRST_TASKS));
        spec.replayable = is_replayable(&root);
        spec.runs_on_nothing = inputs.streams() && gives_rows_for_nothing(&root);
        let mut readers = HashMap::new();
        for (from, kind, reads) in inputs.0 {
            self.add_edge(from, id, kind);
            readers.extend(reads.map(|reads| (from, reads)));
        }
        self.plans.push(root);
        self.readers.push(readers);
        self.specs.push(spec);
        Ok(id)
    }

    /// The client reads the last stage while it runs.
    fn add_client(&mut self) {
        let id = StageId(self.specs.len() as u32);
        let Some(from) = id.0.checked_sub(1).map(StageId) else { return };
        let bytes = self.config.block_bytes as u64;
        self.specs.push(StageSpec::client().with_group_bytes_max(bytes));
        self.add_edge(from, id, self.streaming(from));
    }

    fn add_edge(&mut self, from: StageId, to: StageId, kind: EdgeKind) {
        let edge = EdgeSpec::new(from, to, kind);
        self.edges.push(edge.with_budget_bytes(self.config.edge_budget as u64));
        if !kind.is_blocking() && !self.config.stream_stages {
            // The stage waits as if for a shuffle.
            self.edges.push(EdgeSpec::new(from, to, EdgeKind::Blocking));
        }
    }

    /// How the output of a stage can be read while it runs.
    fn streaming(&self, from: StageId) -> EdgeKind {
        EdgeKind::Streaming(match self.specs[from.0 as usize].replayable {
            true => Granularity::Block,
            false => Granularity::Unit,
        })
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

    /// Makes a stage of a piece, and a streaming edge from it.
    fn stream(&mut self, (plan, inputs): Piece, size: BlockSize) -> Result<Piece> {
        let schema = Arc::clone(&plan);
        let from = self.add_block_stage(plan, inputs, size)?;
        let kind = self.streaming(from);
        Ok((reader(from, &schema), Inputs(vec![(from, kind, Some(Reads::Unit))])))
    }

    /// The same for a reader that may rely on the piece's order: a unit keeps it.
    fn stream_in_order(&mut self, piece: Piece) -> Result<Piece> {
        let order = piece.0.output_ordering().cloned();
        let (reader, inputs) = self.stream(piece, self.block_size())?;
        let keeps_units = inputs.0.iter().all(|(_, kind, _)| *kind == UNIT);
        Ok(match order.filter(|_| keeps_units) {
            Some(order) => (Arc::new(SortPreservingMergeExec::new(order, reader)), inputs),
            None => (reader, inputs),
        })
    }

    /// Makes a stage of a piece, and one partition of all that it writes, in its order.
    fn collect(&mut self, (plan, inputs): Piece) -> Result<Piece> {
        let was = Arc::clone(&plan);
        let from = self.add_block_stage(plan, inputs, self.block_size())?;
        let reader = reader(from, &was);
        let all: Arc<dyn ExecutionPlan> = match was.output_ordering() {
            Some(order) => Arc::new(SortPreservingMergeExec::new(order.clone(), reader)),
            None => Arc::new(CoalescePartitionsExec::new(reader)),
        };
        Ok((all, Inputs(vec![(from, EdgeKind::Blocking, Some(Reads::AllApart))])))
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

const UNIT: EdgeKind = EdgeKind::Streaming(Granularity::Unit);

/// What a task reads of a whole stage is as many partitions as that had tasks.
fn in_one_partition((plan, inputs): Piece) -> Piece {
    (Arc::new(CoalescePartitionsExec::new(plan)), inputs)
}

/// The limit of a join of one partition holds for all of its rows, in however many it will run.
fn limit_joins(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    match plan.fetch() {
        Some(fetch)
            if plan.is::<HashJoinExec>() && plan.output_partitioning().partition_count() == 1 =>
        {
            Ok(Transformed::yes(Arc::new(GlobalLimitExec::new(plan, 0, Some(fetch)))))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// A merge that ends after some rows, as a limit above one that does not: where Ballista's planner has a
/// stage planned anew, DataFusion's rule takes such a merge for a sort that is already there, and loses the
/// limit.
fn limit_merges(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    match plan.fetch() {
        Some(fetch) if plan.is::<SortPreservingMergeExec>() => {
            let merge = plan.with_fetch(None).unwrap_or(plan);
            Ok(Transformed::yes(Arc::new(GlobalLimitExec::new(merge, 0, Some(fetch)))))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// Ballista gives each task the partitions of a scan in memory that are its own, without the limit of
/// each of them.
fn limit_scans(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let is_in_memory = plan
        .downcast_ref::<DataSourceExec>()
        .is_some_and(|scan| scan.data_source().downcast_ref::<MemorySourceConfig>().is_some());
    match plan.fetch() {
        Some(fetch) if is_in_memory => {
            let scan = plan.with_fetch(None).unwrap_or(plan);
            Ok(Transformed::yes(Arc::new(LocalLimitExec::new(scan, fetch))))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// Dealing out rows is of use to one process: of a stage, each task would run all that is below. Ballista's
/// planner leaves it out or cuts there, and puts it back where it plans a stage anew: to deal out in
/// turn, or what is one partition.
fn without_repartition(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let repartition = plan.downcast_ref::<RepartitionExec>();
    let is_idle = |repartition: &RepartitionExec| {
        matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_))
            || repartition.input().output_partitioning().partition_count() == 1
    };
    Ok(match repartition.filter(|repartition| is_idle(repartition)) {
        Some(repartition) => Transformed::yes(Arc::clone(repartition.input())),
        None => Transformed::no(plan),
    })
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

pub(crate) fn holds_model(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<InferenceExec>() || plan.children().into_iter().any(holds_model)
}

/// Whether a branch of a UNION has no partitions where it is restricted to none, as tasks have it of which the
/// partition is another branch's.
fn can_be_left_out(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let wanted = plan.input_distribution_requirements().into_per_child();
    let takes_all = wanted.iter().any(|wanted| matches!(wanted, Distribution::SinglePartition))
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    let stays = plan.is::<UnresolvedShuffleExec>()
        || plan.is::<PlaceholderRowExec>()
        || plan.is::<SortExec>();
    !takes_all && !stays && plan.children().into_iter().all(can_be_left_out)
}

fn reader(from: StageId, plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Arc::new(BlockReaderExec::new(from.0, plan.schema(), vec![vec![]]))
}

/// Partitions of a plan that come from no other stage's blocks.
fn own_partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
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

/// Full batches of a model whose rows one task takes: of a lost task no more is computed again, and
/// other workers find rows too.
const TASK_BATCHES: u32 = 32;

/// Rows of a task that are for a model: those in which it forms its batches, if they are not too many.
fn task_rows(batch: &BatchLimits) -> u32 {
    batch.window_rows.min(batch.max_rows.saturating_mul(TASK_BATCHES))
}

/// Rows of a task of this stage, if it has models: a task has them from small blocks, and leaves the
/// other blocks to other tasks.
fn model_rows(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let of_children = plan.children().into_iter().map(model_rows).min().unwrap_or(u64::MAX);
    match plan.downcast_ref::<InferenceExec>() {
        Some(inference) => of_children.min(task_rows(&inference.model().batch).into()),
        None => of_children,
    }
}

/// What people call a stage: the operators that tell it from others.
fn name(root: &Arc<dyn ExecutionPlan>) -> String {
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

impl From<crate::graph::GraphError> for DataFusionError {
    fn from(error: crate::graph::GraphError) -> Self {
        internal_datafusion_err!("stages that do not fit together: {error}")
    }
}
