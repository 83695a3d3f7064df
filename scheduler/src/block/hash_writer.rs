//! The root of a stage whose rows are dealt out by a hash of keys.
//!
//! ```text
//!            gathered in memory               a file, when that is full or all rows have come
//!  rows ──▶  ├ 0 ┤├ 3 ┤├ 1 ┤├ 0 ┤ …   ──▶    <task>-<seq>.arrow   ├─ 0 ─┤├─ 1 ─┤├─ 3 ─┤
//!                                             told: where each partition's segment is, its rows, its checksum
//! ```
//! Small ones are put together at the end (`small_rounds`). Where partitions are many, several of them may have one
//! segment together (`groups`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    apply_expression_roots,
};
use forebay_engine::unreserved::admit;
use forebay_engine::{in_claimed_order, weight};
use futures::StreamExt;
use futures::stream::select_all;

use super::groups::Groups;
use super::open_block::Sealed;
use super::open_round::OpenRound;
use super::round::{Partitioner, ROW_BYTES, Round};
use super::small_rounds;
use super::store::BlockStore;
use super::writer::OnSealed;
use crate::protocol::location::FileId;

/// Deals its input's rows out by a hash of keys, and writes them in rounds.
///
/// Rows: all of the input's. Order: within a partition of a round, that in which they came; the input's partitions are
/// read at a time. Memory: a round, reserved; what the pool refuses of it passes up to 4 MiB, and beyond that the
/// round ends early. While it is written, a batch of a segment and its form in the file, reserved or
/// [small](forebay_engine::unreserved). Cancel: dropping it removes all that it has written. Errors: the input's, a full disk, a
/// full store, the pool's, and a key that cannot be computed.
#[derive(Clone, Debug)]
pub struct HashWriterExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    partitions: u32,
    groups: Groups,
    round_bytes: u64,
}

/// Bytes of a round that may be gathered though the pool has refused them: each round has a segment, with the
/// schema, for each partition.
const UNRESERVED_BYTES: usize = 4 << 20;

/// Rows of a round are not gathered beyond so many bytes, whatever is asked for: the places of its segments in the file are numbers of
/// 32 bits, and a file takes a little more than its rows.
const ROUND_BYTES_MAX: u64 = 3 << 30;

/// Rows and bytes that are taken in at a time, but for a row that has more.
const SLICE_ROWS: usize = 1 << 16;
const SLICE_BYTES: usize = 8 << 20;

/// Rows of a round at most.
const ROWS_MAX: usize = 1 << 30;

impl HashWriterExec {
    /// Deals rows out into so many partitions, in rounds of about so many bytes.
    pub fn new(
        input: Arc<dyn ExecutionPlan>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
        partitions: u32,
        round_bytes: u64,
    ) -> Self {
        Self { input, keys, partitions, groups: Groups::default(), round_bytes }
    }

    /// Has segments for groups of partitions, and none for each.
    #[must_use]
    pub fn in_groups(mut self, groups: Groups) -> Self {
        self.groups = groups;
        self
    }

    /// Which partitions have a segment together.
    pub fn groups(&self) -> Groups {
        self.groups
    }

    /// The plan whose rows it writes.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What decides where a row belongs.
    pub fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.keys
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Bytes of a round.
    pub fn round_bytes(&self) -> u64 {
        self.round_bytes
    }

    /// Writes everything.
    ///
    /// # Errors
    /// The input's, a full disk, a full store.
    pub async fn write(
        &self,
        store: &Arc<BlockStore>,
        job: &str,
        stage: u32,
        task: u32,
        context: Arc<TaskContext>,
        on_sealed: OnSealed<'_>,
    ) -> Result<Vec<(FileId, Sealed)>> {
        let memory = MemoryConsumer::new("HashWriterExec").with_can_spill(true);
        let mut output = Output {
            written: Written { store, job, blocks: vec![], is_whole: false },
            next: FileId { stage, task, seq: 0 },
            partitioner: Partitioner::new(self.keys.clone(), self.partitions, self.groups),
            segments: self.groups.segments(self.partitions),
            round_bytes: usize::try_from(self.round_bytes.min(ROUND_BYTES_MAX))
                .unwrap_or(usize::MAX),
            round: Round::default(),
            memory: memory.register(context.memory_pool()),
            unreserved: 0,
        };
        let partitions = self.input.output_partitioning().partition_count();
        let streams = (0..partitions)
            .map(|partition| {
                let rows = self.input.execute(partition, Arc::clone(&context))?;
                Ok(in_claimed_order(self.input.as_ref(), rows))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut rows = select_all(streams);
        while let Some(batch) = rows.next().await {
            for slice in weight::slices(batch?, SLICE_ROWS, SLICE_BYTES) {
                output.take_in(weight::compact(&slice)?).await?;
            }
        }
        output.write_round().await?;
        output.put_together().await?;
        output.written.blocks.iter().for_each(|(id, sealed)| on_sealed(*id, sealed));
        Ok(output.written.whole())
    }
}

/// Where the rounds of one task go.
struct Output<'a> {
    written: Written<'a>,
    /// The next file.
    next: FileId,
    partitioner: Partitioner,
    /// Of a round at most.
    segments: u32,
    round_bytes: usize,
    round: Round,
    memory: MemoryReservation,
    /// Bytes of the round that the pool has refused.
    unreserved: usize,
}

impl Output<'_> {
    async fn take_in(&mut self, rows: RecordBatch) -> Result<()> {
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let segments = self.partitioner.segments_of(&rows)?;
        let bytes = weight::bytes(&rows);
        let held = bytes + rows.num_rows() * ROW_BYTES;
        if !self.holds(held) {
            self.write_round().await?;
            if !self.holds(held) {
                admit(&self.memory, held)?;
            }
        }
        self.round.add(rows, bytes, segments);
        if self.round.bytes() >= self.round_bytes || self.round.rows() >= ROWS_MAX {
            self.write_round().await?;
        }
        Ok(())
    }

    /// Whether there is memory for so much more of the round.
    fn holds(&mut self, bytes: usize) -> bool {
        if self.memory.try_grow(bytes).is_ok() {
            return true;
        }
        let unreserved = self.unreserved.saturating_add(bytes);
        let passes = unreserved <= UNRESERVED_BYTES;
        if passes {
            self.unreserved = unreserved;
        }
        passes
    }

    /// Writes what has been gathered, and lets go of it.
    async fn write_round(&mut self) -> Result<()> {
        let round = std::mem::take(&mut self.round);
        let Some(first) = round.first() else { return Ok(()) };
        let id = self.next_id();
        let mut file = OpenRound::create(self.written.store, self.written.job, id, first)?;
        let sorted = round.sorted(self.segments);
        for segment in 0..self.segments {
            let mut has_rows = false;
            for batches in sorted.of(segment) {
                for batch in batches? {
                    // It, and what lies in the file.
                    let memory = self.memory.new_empty();
                    admit(&memory, weight::bytes(&batch).saturating_mul(2))?;
                    file.write(&batch).await?;
                    has_rows = true;
                }
            }
            if has_rows {
                file.end_segment(segment)?;
                // Others of this thread have waited for the rows of a segment.
                tokio::task::yield_now().await;
            }
        }
        let sealed = file.seal()?;
        self.memory.free();
        self.unreserved = 0;
        self.written.blocks.push((id, sealed));
        Ok(())
    }

    fn next_id(&mut self) -> FileId {
        let id = self.next;
        self.next.seq += 1;
        id
    }

    /// Makes one of several rounds that are small, if there is room for them twice.
    async fn put_together(&mut self) -> Result<()> {
        let groups = small_rounds::groups(&self.written.blocks, self.segments);
        // From the last one on, so that the places of those before it stay.
        for group in groups.into_iter().rev() {
            let (id, Written { store, job, .. }) = (self.next_id(), &self.written);
            let rounds = &self.written.blocks[group.clone()];
            let together =
                small_rounds::together(store, job, id, rounds, self.segments, &self.memory);
            match together.await {
                Ok(whole) => self.written.replace(group, whole),
                Err(error) if small_rounds::lacks_room(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The rounds of a task; gone if it does not end well, as another attempt writes all of them again.
struct Written<'a> {
    store: &'a Arc<BlockStore>,
    job: &'a str,
    blocks: Vec<(FileId, Sealed)>,
    is_whole: bool,
}

impl Written<'_> {
    /// In place of these rounds there is one.
    fn replace(&mut self, rounds: Range<usize>, whole: (FileId, Sealed)) {
        let parts: Vec<_> = self.blocks.splice(rounds, [whole]).collect();
        parts.iter().for_each(|(id, _)| self.store.remove(self.job, *id));
    }

    fn whole(mut self) -> Vec<(FileId, Sealed)> {
        self.is_whole = true;
        std::mem::take(&mut self.blocks)
    }
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.blocks.iter().for_each(|(id, _)| self.store.remove(self.job, *id));
        }
    }
}

impl DisplayAs for HashWriterExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        let (keys, partitions) = (keys.join(", "), self.partitions);
        write!(
            f,
            "HashWriterExec: keys=[{keys}], partitions={partitions}{}, bytes_max={}",
            self.groups, self.round_bytes
        )
    }
}

impl ExecutionPlan for HashWriterExec {
    fn name(&self) -> &'static str {
        "HashWriterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(&self.keys, f)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input, ..Self::clone(&self) })),
            Err(all) => internal_err!("HashWriterExec takes one input, found {}", all.len()),
        }
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("HashWriterExec is the root of a stage: a worker calls write")
    }
}

#[cfg(test)]
mod tests;
