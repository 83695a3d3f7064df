//! The order of a query, made by several tasks: what merges all rows in it merges them range by range.
//!
//! ```text
//!  before   BlockWriter < Projection < SortPreservingMerge < BlockReader        one task, all rows
//!                                                                │ when it is done
//!           BlockWriter < Sort < …
//!
//!  after    BlockWriter < Projection < SortPreservingMerge < BlockReader        a task per range
//!                                                                │ in ranges when it is done
//!           BlockWriter(keys=true) < Sort < …                                   a task per run
//! ```
//! The graph makes the ranges when the runs are there, and one range if there are few bytes. A stage stays as it
//! was where a task per range would be wrong, or could not be made again:
//!
//! - above the merge is more than what takes row by row, or a window function whose values over all rows follow from
//!   how many rows there are (`range_windows`): a limit, a sum;
//! - the runs were not sorted for this: what a table says of the order of its files may be wrong, which costs
//!   a merge its order and would cost ranges rows;
//! - a function of the query is volatile: a run that is made again would have other rows, and some ranges would
//!   have been made of those it had first;
//! - there is a window below: `row_number()` numbers rows that are equal to it as they come, so that of two rows each
//!   may have the other's number when they come again. The same keys would be there, and no one would notice;
//! - keys have no form as bytes that compares as the sort does;
//! - rows are written to folders by columns by which they are not sorted first: each range would have a file in
//!   each folder.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_engine::{BoundedProjectionExec, WriteExec};

use crate::block::row_keys::RowKeys;
use crate::block::run_order::run_order;
use crate::block::{BlockReaderExec, BlockSize, BlockWriterExec};
use crate::graph::{EdgeKind, StageId};
use crate::stages::assembly::{Piece, Stages};
use crate::stages::range_windows;
use crate::stages::staged::Reads;
use crate::stages::traits::{holds_volatile, holds_window};
use crate::stages::window_functions::computed_by;

/// Blocks of a run in a range, if there is one run, and of all runs in it at least. What a task reads beside its range is a part of two
/// blocks of each run.
const BLOCKS_IN_RANGE: u64 = 16;

/// But they are not smaller than this: each is asked for by itself.
const RUN_BLOCK_BYTES_MIN: u64 = 64 << 10;

impl Stages {
    /// Has the last stage, which is not added yet, read the runs below its merge in ranges, if that is right.
    ///
    /// # Errors
    /// None that planning the same operators did not find.
    pub(super) fn merge_in_ranges(&mut self, piece: &mut Piece) -> Result<()> {
        if self.config.range_bytes == 0 || !self.config.dynamic_blocks {
            return Ok(());
        }
        let [input] = &mut piece.inputs[..] else { return Ok(()) };
        let is_merged = input.kind == EdgeKind::Blocking && input.reads == Reads::AllApart;
        let merge = merge_below(&piece.plan).filter(|_| is_merged);
        let Some(merge) = merge else { return Ok(()) };
        let from = input.from;
        let reads_it = merge
            .input()
            .downcast_ref::<BlockReaderExec>()
            .is_some_and(|reader| reader.stage() == from.0);
        let has_keys = RowKeys::can_encode(merge.expr(), &merge.input().schema());
        let mut below = self.staged.stages.iter().map(|stage| &stage.plan);
        let may_differ = holds_volatile(&piece.plan)
            || below.any(|plan| holds_volatile(plan) || holds_window(plan));
        let fits = reads_it && has_keys && keeps_folders_together(&piece.plan);
        if !fits || may_differ || self.is_read(from) {
            return Ok(());
        }
        let Some(plan) = range_windows::in_ranges(&piece.plan, from)? else { return Ok(()) };
        if self.write_runs(from, merge) {
            input.kind = EdgeKind::Ranges;
            piece.plan = plan;
        }
        Ok(())
    }

    fn is_read(&self, stage: StageId) -> bool {
        self.staged.spec.edges.iter().any(|edge| edge.from == stage)
    }

    /// Has a stage tell with which keys the blocks of its runs begin. Says whether it gives runs in the order of
    /// this merge.
    fn write_runs(&mut self, stage: StageId, merge: &SortPreservingMergeExec) -> bool {
        let size = self.run_block_size(stage);
        let Some(planned) = self.staged.stages.get_mut(stage.0 as usize) else { return false };
        let Some(writer) = planned.plan.downcast_ref::<BlockWriterExec>() else { return false };
        if run_order(writer.input()).as_ref() != Some(merge.expr()) {
            return false;
        }
        let writer = BlockWriterExec::new(Arc::clone(writer.input()), size).with_keys(true);
        planned.plan = Arc::new(writer);
        true
    }

    fn run_block_size(&self, stage: StageId) -> BlockSize {
        let range_bytes = self.config.range_bytes as u64;
        // A task has a block of each run in memory, and so has one on each core. Of runs that follow what streams in
        // nobody knows how many there will be.
        let runs =
            self.staged.spec.stages.get(stage.0 as usize).map_or(0, |stage| stage.partitions);
        let bytes = |blocks| {
            let bytes = (range_bytes / BLOCKS_IN_RANGE.max(blocks)).max(RUN_BLOCK_BYTES_MIN);
            bytes.min(self.config.block_bytes as u64)
        };
        BlockSize::of_run(bytes(runs.into()), bytes(1))
    }
}

/// Whether the rows of a folder are next to each other, if it writes some to folders by their values.
fn keeps_folders_together(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let Some(write) = plan.downcast_ref::<WriteExec>() else {
        return plan.children().into_iter().all(keeps_folders_together);
    };
    let by = write.target().folder_columns();
    let column = |key: &PhysicalSortExpr| Some(key.expr.downcast_ref::<Column>()?.index());
    let order = plan.children().into_iter().find_map(|input| input.output_ordering());
    let first = order.into_iter().flatten().map(column).take(by.len());
    let first: Option<BTreeSet<usize>> = first.collect();
    by.is_empty() || first == Some(by.into_iter().collect())
}

/// The merge of all rows below operators that take one row after the other, and window functions, which keep their
/// order.
fn merge_below(plan: &Arc<dyn ExecutionPlan>) -> Option<&SortPreservingMergeExec> {
    if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        return Some(merge).filter(|merge| merge.fetch().is_none());
    }
    let by_row = plan.is::<ProjectionExec>()
        || plan.is::<BoundedProjectionExec>()
        || plan.is::<FilterExec>()
        || plan.is::<WriteExec>()
        || computed_by(plan).is_some();
    match plan.children()[..] {
        [input] if by_row && plan.fetch().is_none() => merge_below(input),
        _ => None,
    }
}
