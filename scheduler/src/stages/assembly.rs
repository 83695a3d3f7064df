//! Stages as they come to be: what was cut off becomes a stage, and a reader stands in its place.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_planner::ForebayConfig;

use crate::block::{BlockReaderExec, BlockSize, BlockWriterExec};
use crate::graph::{EdgeKind, EdgeSpec, Granularity, StageId, StageSpec};
use crate::stages::short_runs::RANGES_IN_RUN;
use crate::stages::staged::{PlannedStage, Reads, StagedPlan};
use crate::stages::traits::{
    gives_rows_for_nothing, holds_hash_join, is_replayable, model_rows, name, needs,
    own_partitions, written_to,
};

/// Tasks of a stage that may start before it is known how much one of them writes.
const FIRST_TASKS: u64 = 4;

/// Ranges are not larger than they have to be unless each core has so many.
const RANGES_OF_CORE: u64 = 16;

/// So many times the bytes that were asked for are in a range, at most.
const RANGE_GROWTH_MAX: u64 = 4;

/// What a task that writes files gives, until some have been seen: a row for each.
const FILES_BYTES_GUESS: u64 = 64 << 10;

/// A plan of which some stages are cut off.
#[derive(Default)]
pub(crate) struct Stages {
    pub(crate) config: ForebayConfig,
    /// The cluster's, if that is known.
    pub(crate) cores: usize,
    pub(crate) staged: StagedPlan,
    /// By Ballista's numbers of stages: what became of them.
    pub(crate) shuffles: HashMap<usize, StageId>,
    /// By Ballista's numbers of stages: the order in which a stage's units are merged, or the client's
    /// rows come. A cut may have taken away what it came from.
    pub(crate) orders: HashMap<usize, LexOrdering>,
    /// Those that merge what others have dealt out.
    pub(crate) merges: BTreeSet<StageId>,
}

/// A piece of a stage, and what it reads.
pub(crate) struct Piece {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) inputs: Vec<Input>,
}

/// A stage that a piece reads.
pub(crate) struct Input {
    pub(crate) from: StageId,
    pub(crate) kind: EdgeKind,
    pub(crate) reads: Reads,
}

impl Piece {
    /// Whether its partitions come from other stages' blocks, as many as there will be.
    pub(crate) fn streams(&self) -> bool {
        self.inputs.iter().any(|input| input.reads == Reads::Unit)
    }

    /// A plan above the blocks of one stage.
    fn of_blocks(
        plan: Arc<dyn ExecutionPlan>,
        from: StageId,
        kind: EdgeKind,
        reads: Reads,
    ) -> Self {
        Self { plan, inputs: vec![Input { from, kind, reads }] }
    }
}

impl Stages {
    /// Makes a stage of a piece, which writes blocks.
    pub(crate) fn add_block_stage(&mut self, piece: Piece, size: BlockSize) -> Result<StageId> {
        let size = if self.config.dynamic_blocks { size } else { BlockSize::WHOLE };
        let plan = Arc::new(BlockWriterExec::new(piece.plan, size));
        self.add(Piece { plan, inputs: piece.inputs })
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        BlockSize::up_to(self.config.block_bytes as u64)
    }

    /// Makes a stage of a piece whose root writes.
    pub(crate) fn add(&mut self, piece: Piece) -> Result<StageId> {
        let id = StageId(self.staged.stages.len() as u32);
        let streams = piece.streams();
        let Piece { plan: root, inputs } = piece;
        let child = root.children().first().copied().cloned();
        let partitions = match child {
            // As many as there will be ranges.
            _ if inputs.iter().any(|input| input.kind == EdgeKind::Ranges) => 0,
            _ if streams => own_partitions(&root),
            Some(child) => child.output_partitioning().partition_count(),
            None => 1,
        };
        let bytes = self.config.block_bytes as u64;
        let file_bytes = written_to(&root);
        let mut spec = StageSpec::new(name(&root), needs(&root)?, partitions as u32)
            .with_group_bytes_max(file_bytes.unwrap_or(bytes))
            .with_group_bytes_min(file_bytes.unwrap_or(0))
            .with_group_rows_max(model_rows(&root))
            .with_range_bytes(self.range_bytes(&inputs))
            .with_output_bytes_guess(
                file_bytes.map_or(bytes.min(self.config.edge_budget as u64 / FIRST_TASKS), |_| {
                    FILES_BYTES_GUESS
                }),
            );
        spec.replayable = is_replayable(&root);
        spec.runs_on_nothing = streams && gives_rows_for_nothing(&root);
        // A join's task chooses its sides by the rows that there are; a device is not waited on.
        let is_early = spec.need.accelerator.is_none() && !holds_hash_join(&root);
        let mut reads = HashMap::new();
        for input in inputs {
            self.add_edge(input.from, id, input.kind, is_early);
            reads.insert(input.from, input.reads);
        }
        self.staged.stages.push(PlannedStage { plan: root, reads });
        self.staged.spec.stages.push(spec);
        Ok(id)
    }

    /// Bytes of a range of the runs that a stage reads. With many runs a block of each is all that a range of
    /// `forebay.range_bytes` has, and a task has no row before it has read them: in a larger range it waits for a smaller part
    /// of its time.
    fn range_bytes(&self, inputs: &[Input]) -> u64 {
        let runs = inputs.iter().find(|input| input.kind == EdgeKind::Ranges);
        let runs = runs.and_then(|input| self.staged.spec.stages.get(input.from.0 as usize));
        let ranges = runs.map_or(0, |runs| u64::from(runs.partitions) * RANGES_IN_RUN);
        let enough = RANGES_OF_CORE * (self.cores as u64).max(1);
        let bytes = self.config.range_bytes as u64;
        bytes.saturating_mul((ranges / enough).clamp(1, RANGE_GROWTH_MAX))
    }

    /// The client reads the last stage while it runs.
    pub(crate) fn add_client(&mut self) {
        let id = StageId(self.staged.stages.len() as u32);
        let Some(from) = id.0.checked_sub(1).map(StageId) else { return };
        let bytes = self.config.block_bytes as u64;
        self.staged.spec.stages.push(StageSpec::client().with_group_bytes_max(bytes));
        self.add_edge(from, id, self.streaming(from), false);
    }

    fn add_edge(&mut self, from: StageId, to: StageId, kind: EdgeKind, is_early: bool) {
        let edge = EdgeSpec::new(from, to, kind);
        let is_early = is_early && kind == EdgeKind::Hash && self.config.stream_stages;
        let edge = if is_early { edge.pipelined() } else { edge };
        let is_merged = kind == EdgeKind::Hash && self.merges.contains(&from);
        let edge = if is_merged { edge.lying_together() } else { edge };
        let edges = &mut self.staged.spec.edges;
        edges.push(edge.with_budget_bytes(self.config.edge_budget as u64));
        if !kind.is_blocking() && !self.config.stream_stages {
            // The stage waits as if for a shuffle.
            edges.push(EdgeSpec::new(from, to, EdgeKind::Blocking));
        }
    }

    /// How the output of a stage can be read while it runs.
    fn streaming(&self, from: StageId) -> EdgeKind {
        let is_replayable = self.staged.spec.stages[from.0 as usize].replayable;
        EdgeKind::Streaming(if is_replayable { Granularity::Block } else { Granularity::Unit })
    }

    /// How it can be read in groups that have a size of their own.
    fn streaming_in_groups(&self, from: StageId) -> EdgeKind {
        match self.streaming(from) {
            UNIT => EdgeKind::Streaming(Granularity::Units),
            other => other,
        }
    }

    /// Makes a stage of a piece, and an edge from it for a reader that takes as much at a time as it likes.
    pub(crate) fn stream_in_groups(&mut self, piece: Piece) -> Result<Piece> {
        let was = Arc::clone(&piece.plan);
        let from = self.add_block_stage(piece, self.block_size())?;
        let kind = self.streaming_in_groups(from);
        Ok(Piece::of_blocks(reader(from, was.schema()), from, kind, Reads::Unit))
    }

    /// Makes a stage of a piece, and a streaming edge from it.
    pub(crate) fn stream(&mut self, piece: Piece, size: BlockSize) -> Result<Piece> {
        let was = Arc::clone(&piece.plan);
        let from = self.add_block_stage(piece, size)?;
        Ok(Piece::of_blocks(reader(from, was.schema()), from, self.streaming(from), Reads::Unit))
    }

    /// The same for a reader that may rely on the piece's order: a unit keeps it.
    pub(crate) fn stream_in_order(&mut self, piece: Piece) -> Result<Piece> {
        let order = piece.plan.output_ordering().cloned();
        let Piece { plan: reader, inputs } = self.stream(piece, self.block_size())?;
        let keeps_units = inputs.iter().all(|input| input.kind == UNIT);
        let plan = match order.filter(|_| keeps_units) {
            Some(order) => Arc::new(SortPreservingMergeExec::new(order, reader)),
            None => reader,
        };
        Ok(Piece { plan, inputs })
    }

    /// Makes a stage of a piece, and one partition of all that it writes, in its order.
    pub(crate) fn collect(&mut self, piece: Piece) -> Result<Piece> {
        let was = Arc::clone(&piece.plan);
        let from = self.add_block_stage(piece, self.block_size())?;
        let reader = reader(from, was.schema());
        let all: Arc<dyn ExecutionPlan> = match was.output_ordering() {
            Some(order) => Arc::new(SortPreservingMergeExec::new(order.clone(), reader)),
            None => Arc::new(CoalescePartitionsExec::new(reader)),
        };
        Ok(Piece::of_blocks(all, from, EdgeKind::Blocking, Reads::AllApart))
    }
}

/// A task reads what one task wrote, when that has ended.
pub(crate) const UNIT: EdgeKind = EdgeKind::Streaming(Granularity::Unit);

/// A leaf that reads blocks of a stage, of this schema. Which ones is known when a task is bound.
pub(crate) fn reader(from: StageId, schema: SchemaRef) -> Arc<dyn ExecutionPlan> {
    Arc::new(BlockReaderExec::new(from.0, schema, vec![vec![]]))
}

#[cfg(test)]
mod tests {
    use crate::resources::Need;

    use super::*;

    #[test]
    fn ranges_of_many_runs_are_larger_as_long_as_each_core_has_enough() {
        let range = |cores, runs| {
            let mut stages = Stages { cores, ..Stages::default() };
            let wanted = stages.config.range_bytes as u64;
            stages.staged.spec.stages.push(StageSpec::new("runs", Need::cpus(1), runs));
            let input = |kind| Input { from: StageId(0), kind, reads: Reads::Unit };
            assert_eq!(stages.range_bytes(&[input(EdgeKind::Hash)]), wanted);
            stages.range_bytes(&[input(EdgeKind::Ranges)]) / wanted
        };
        let found = [1, 16, 31, 32, 50, 64, 1024].map(|runs| range(2, runs));
        assert_eq!(found, [1, 1, 1, 2, 3, 4, 4]);
        assert_eq!([93, 511, 512, 1024].map(|runs| range(32, runs)), [1, 1, 2, 4]);
        assert_eq!(range(0, 1000), 4, "of a cluster of which nothing is known");
    }
}
