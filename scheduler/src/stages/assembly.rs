//! Stages as they come to be: what was cut off becomes a stage, and a reader stands in its place.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_planner::ForebayConfig;

use crate::block::{BlockReaderExec, BlockSize, BlockWriterExec};
use crate::graph::{EdgeKind, EdgeSpec, Granularity, StageId, StageSpec};
use crate::stages::staged::Reads;
use crate::stages::traits::{
    gives_rows_for_nothing, is_replayable, model_rows, name, needs, own_partitions,
};

/// Tasks of a stage that may start before it is known how much one of them writes.
const FIRST_TASKS: u64 = 4;

#[derive(Default)]
pub(crate) struct Stages {
    pub(crate) config: ForebayConfig,
    pub(crate) plans: Vec<Arc<dyn ExecutionPlan>>,
    pub(crate) readers: Vec<HashMap<StageId, Reads>>,
    pub(crate) specs: Vec<StageSpec>,
    pub(crate) edges: Vec<EdgeSpec>,
    /// Ballista's numbers of stages.
    pub(crate) shuffles: HashMap<usize, StageId>,
    /// By these: the order in which a stage's units are merged, or the client's rows come. A cut may
    /// have taken away what it came from.
    pub(crate) orders: HashMap<usize, LexOrdering>,
}

/// A piece of a stage, and what it reads.
#[derive(Default)]
pub(crate) struct Inputs(pub(crate) Vec<(StageId, EdgeKind, Option<Reads>)>);

impl Inputs {
    /// Whether its partitions come from other stages' blocks, as many as there will be.
    pub(crate) fn streams(&self) -> bool {
        self.0.iter().any(|(_, _, reads)| *reads == Some(Reads::Unit))
    }
}

pub(crate) type Piece = (Arc<dyn ExecutionPlan>, Inputs);

impl Stages {
    pub(crate) fn add_block_stage(
        &mut self,
        plan: Arc<dyn ExecutionPlan>,
        inputs: Inputs,
        size: BlockSize,
    ) -> Result<StageId> {
        let size = if self.config.dynamic_blocks { size } else { BlockSize::WHOLE };
        self.add(Arc::new(BlockWriterExec::new(plan, size)), inputs)
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        BlockSize::up_to(self.config.block_bytes as u64)
    }

    pub(crate) fn add(&mut self, root: Arc<dyn ExecutionPlan>, inputs: Inputs) -> Result<StageId> {
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
    pub(crate) fn add_client(&mut self) {
        let id = StageId(self.specs.len() as u32);
        let Some(from) = id.0.checked_sub(1).map(StageId) else { return };
        let bytes = self.config.block_bytes as u64;
        self.specs.push(StageSpec::client().with_group_bytes_max(bytes));
        self.add_edge(from, id, self.streaming(from));
    }

    pub(crate) fn add_edge(&mut self, from: StageId, to: StageId, kind: EdgeKind) {
        let edge = EdgeSpec::new(from, to, kind);
        self.edges.push(edge.with_budget_bytes(self.config.edge_budget as u64));
        if !kind.is_blocking() && !self.config.stream_stages {
            // The stage waits as if for a shuffle.
            self.edges.push(EdgeSpec::new(from, to, EdgeKind::Blocking));
        }
    }

    /// How the output of a stage can be read while it runs.
    pub(crate) fn streaming(&self, from: StageId) -> EdgeKind {
        EdgeKind::Streaming(match self.specs[from.0 as usize].replayable {
            true => Granularity::Block,
            false => Granularity::Unit,
        })
    }

    /// Makes a stage of a piece, and a streaming edge from it.
    pub(crate) fn stream(&mut self, (plan, inputs): Piece, size: BlockSize) -> Result<Piece> {
        let schema = Arc::clone(&plan);
        let from = self.add_block_stage(plan, inputs, size)?;
        let kind = self.streaming(from);
        Ok((reader(from, &schema), Inputs(vec![(from, kind, Some(Reads::Unit))])))
    }

    /// The same for a reader that may rely on the piece's order: a unit keeps it.
    pub(crate) fn stream_in_order(&mut self, piece: Piece) -> Result<Piece> {
        let order = piece.0.output_ordering().cloned();
        let (reader, inputs) = self.stream(piece, self.block_size())?;
        let keeps_units = inputs.0.iter().all(|(_, kind, _)| *kind == UNIT);
        Ok(match order.filter(|_| keeps_units) {
            Some(order) => (Arc::new(SortPreservingMergeExec::new(order, reader)), inputs),
            None => (reader, inputs),
        })
    }

    /// Makes a stage of a piece, and one partition of all that it writes, in its order.
    pub(crate) fn collect(&mut self, (plan, inputs): Piece) -> Result<Piece> {
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

pub(crate) const UNIT: EdgeKind = EdgeKind::Streaming(Granularity::Unit);

/// What a task reads of a whole stage is as many partitions as that had tasks.
pub(crate) fn in_one_partition((plan, inputs): Piece) -> Piece {
    (Arc::new(CoalescePartitionsExec::new(plan)), inputs)
}

pub(crate) fn reader(from: StageId, plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Arc::new(BlockReaderExec::new(from.0, plan.schema(), vec![vec![]]))
}
