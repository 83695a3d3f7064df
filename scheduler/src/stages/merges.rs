//! Hash shuffles of many small segments go through tasks that merge them.
//!
//! ```text
//!  HashWriterExec(keys, 1000 in groups of 8)              a round has a segment for each group
//!        │ by hash
//!  HashWriterExec(keys, 1000) < ShuffleReaderExec         a task for each group, whose rounds have 8 large segments
//!        │ by hash, merged
//!  ShuffleReaderExec of 1000 partitions
//! ```
//! It is chosen when a plan is cut, as the first of these stages must know it.

use std::sync::Arc;

use ballista_core::execution_plans::ShuffleReaderExec;
use datafusion::common::{Result, Statistics};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, Partitioning, StatisticsArgs, StatisticsContext,
};

use crate::block::{BlockReaderExec, Groups, HashWriterExec};
use crate::graph::{EdgeKind, StageId};
use crate::stages::assembly::{Input, Piece, Stages};
use crate::stages::dealt;
use crate::stages::staged::{Reads, StagedPlan};
use crate::stages::traits::own_partitions;

/// With fewer partitions there is nothing to merge.
const PARTITIONS_MIN: u64 = 4;

/// Bytes of a value of which the type does not tell them.
const VALUE_BYTES: u64 = 32;

impl Stages {
    /// Makes a stage that deals out what the writer's input gives, and if that would be many small segments, one that
    /// merges them. It is the last of these that is read.
    pub(super) fn add_dealt(
        &mut self,
        writer: HashWriterExec,
        inputs: Vec<Input>,
    ) -> Result<StageId> {
        let groups = self.groups(&writer, &inputs);
        let dealt = writer.clone().in_groups(groups);
        let from = self.add(Piece { plan: Arc::new(dealt), inputs })?;
        if groups == Groups::default() {
            return Ok(from);
        }
        let segments = groups.segments(writer.partitions()) as usize;
        let partitioning = Partitioning::UnknownPartitioning(segments);
        let hole = dealt::hole_of(from, writer.input().schema(), partitioning)?;
        let (keys, partitions) = (writer.keys().to_vec(), writer.partitions());
        let merge = HashWriterExec::new(hole, keys, partitions, writer.round_bytes());
        let inputs = vec![Input { from, kind: EdgeKind::Hash, reads: Reads::Dealt }];
        let id = self.add(Piece { plan: Arc::new(merge), inputs })?;
        self.merges.insert(id);
        if let Some(spec) = self.staged.spec.stages.get_mut(id.0 as usize) {
            spec.units_together = groups.slices;
        }
        Ok(id)
    }

    /// The groups of partitions that have a segment together.
    fn groups(&self, writer: &HashWriterExec, inputs: &[Input]) -> Groups {
        let (below, from) =
            (self.config.merge_segments_below as u64, self.config.merge_segments_from as u64);
        let expected = Expected {
            tasks: self.tasks(writer.input(), inputs),
            bytes: None,
            partitions: writer.partitions(),
            round_bytes: writer.round_bytes().max(1),
        };
        if expected.cannot_be(below, from) {
            return Groups::default();
        }
        let bytes = expected_bytes(writer.input(), &self.staged);
        Expected { bytes, ..expected }.groups(below, from)
    }

    /// How many tasks will run a plan, if each task of what streams into it is read by another one.
    fn tasks(&self, plan: &Arc<dyn ExecutionPlan>, inputs: &[Input]) -> u64 {
        let mut streams = inputs.iter().filter(|input| input.reads == Reads::Unit).peekable();
        if streams.peek().is_none() {
            return plan.output_partitioning().partition_count() as u64;
        }
        let streamed: u64 = streams.map(|input| self.tasks_of(input.from)).sum();
        streamed + own_partitions(plan) as u64
    }

    fn tasks_of(&self, stage: StageId) -> u64 {
        let own = self.staged.spec.stages.get(stage.0 as usize).map_or(0, |spec| spec.partitions);
        let edges = self.staged.spec.edges.iter();
        let streams = edges.filter(|edge| edge.to == stage && !edge.kind.is_blocking());
        streams.map(|edge| self.tasks_of(edge.from)).sum::<u64>() + u64::from(own)
    }
}

/// What is expected of a hash shuffle.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// Those that deal out.
    tasks: u64,
    /// Of the rows, as they are in memory, if anything is known of them.
    bytes: Option<u64>,
    partitions: u32,
    /// Of a round at most, one at least.
    round_bytes: u64,
}

impl Expected {
    /// Whether segments are few or large, whatever the bytes are: full rounds have large segments, and other rounds there
    /// are not more of than tasks.
    fn cannot_be(&self, below: u64, from: u64) -> bool {
        let partitions = u64::from(self.partitions);
        let of_full_rounds = self.round_bytes / partitions.max(1);
        below == 0
            || partitions < PARTITIONS_MIN
            || of_full_rounds >= below && self.tasks.saturating_mul(partitions) < from
    }

    /// Which partitions have a segment together: each its own, if segments would not be both many and small.
    ///
    /// There are as many groups as give segments that are not small, but not fewer than groups have partitions: then the rounds
    /// of both stages have about as many segments.
    fn groups(&self, below: u64, from: u64) -> Groups {
        let partitions = u64::from(self.partitions);
        // Of what nothing is known each task deals out a full round.
        let bytes = self.bytes.unwrap_or(self.tasks.saturating_mul(self.round_bytes));
        let rounds = self.tasks.max(bytes.div_ceil(self.round_bytes)).max(1);
        let segments = rounds.saturating_mul(partitions);
        if self.cannot_be(below, from) || segments < from || bytes / segments.max(1) >= below {
            return Groups::default();
        }
        let (of_round, square) = (bytes / rounds, partitions.isqrt().max(2));
        let groups = (of_round / below.max(1)).clamp(square, (partitions / 2).max(square));
        let width = partitions.div_ceil(groups);
        let groups = partitions.div_ceil(width);
        // As many tasks as will read the partitions, if each of them has a full round to merge.
        let rounds_of_group = bytes / groups.saturating_mul(self.round_bytes).max(1);
        let slices = (partitions / groups).min(self.tasks).min(rounds_of_group).max(1);
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Groups { width: number(width), slices: number(slices), slice: 0 }
    }
}

/// Bytes of the rows that a plan gives, as they are in memory: what its operators expect, or else as many as they read,
/// of other stages too.
fn expected_bytes(plan: &Arc<dyn ExecutionPlan>, staged: &StagedPlan) -> Option<u64> {
    if let Some(from) = stage_read_by(plan) {
        let before = staged.stage(from)?.plan.children();
        return expected_bytes(before.first().copied()?, staged);
    }
    // Nobody has counted what other stages will give.
    if let Some(bytes) = told_bytes(plan).filter(|_| !reads_stages(plan)) {
        return Some(bytes);
    }
    let children = plan.children();
    if children.is_empty() {
        return None;
    }
    let of_children = children.into_iter().map(|child| expected_bytes(child, staged));
    of_children.reduce(|a, b| Some(a?.saturating_add(b?))).flatten()
}

fn stage_read_by(plan: &Arc<dyn ExecutionPlan>) -> Option<StageId> {
    let hole = plan.downcast_ref::<ShuffleReaderExec>().map(dealt::stage_of);
    let reader = plan.downcast_ref::<BlockReaderExec>().map(|reader| StageId(reader.stage()));
    hole.or(reader)
}

fn reads_stages(plan: &Arc<dyn ExecutionPlan>) -> bool {
    stage_read_by(plan).is_some() || plan.children().into_iter().any(reads_stages)
}

fn told_bytes(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    let told = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()).ok()?;
    let Statistics { num_rows, total_byte_size, column_statistics } = told.as_ref();
    let mut columns = column_statistics.iter().map(|column| column.byte_size.get_value());
    let of_columns = columns.try_fold(0_usize, |sum, bytes| Some(sum.saturating_add(*bytes?)));
    let bytes = of_columns.or_else(|| total_byte_size.get_value().copied());
    bytes.map(|bytes| bytes as u64).or_else(|| {
        let rows = *num_rows.get_value()? as u64;
        let schema = plan.schema();
        let widths = schema.fields().iter().map(|field| field.data_type().primitive_width());
        let of_row: u64 = widths.map(|width| width.map_or(VALUE_BYTES, |width| width as u64)).sum();
        Some(rows.saturating_mul(of_row))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// With the options as they are if nobody sets them.
    fn chosen(tasks: u64, bytes: Option<u64>, partitions: u32) -> Option<(u32, u32)> {
        let expected = Expected { tasks, bytes, partitions, round_bytes: 48 * MIB };
        groups(expected, 256 * KIB, 256 * KIB)
    }

    /// Partitions of a group, and slices. None if each partition has its own segment.
    fn groups(expected: Expected, below: u64, from: u64) -> Option<(u32, u32)> {
        let Groups { width, slices, slice } = expected.groups(below, from);
        assert_eq!(slice, 0);
        (width > 1).then_some((width, slices))
    }

    #[test]
    fn segments_are_merged_that_are_many_and_small() {
        // A thousand full rounds of a thousand partitions: 48 KiB each. 192 groups have 256 KiB.
        assert_eq!(chosen(1000, Some(1000 * 48 * MIB), 1000), Some((6, 5)));
        // If tasks have less than a full round there are fewer groups, but not fewer than groups have partitions.
        assert_eq!(chosen(1000, Some(1000 * MIB), 1000), Some((33, 1)));
        // Each has a round, whatever nobody knows of.
        assert_eq!(chosen(1000, None, 1000), chosen(1000, Some(1000 * 48 * MIB), 1000));
        // Few tasks, many rounds.
        assert_eq!(chosen(4, Some(2000 * 48 * MIB), 256), Some((2, 2)));
    }

    #[test]
    fn segments_that_are_few_or_large_are_not() {
        for (tasks, bytes, partitions) in [
            (16, Some(100 << 40), 16),
            (16, Some(MIB), 16),
            (16, None, 16),
            (1000, Some(100 << 40), 192),
            (100, Some(100 * MIB), 1000),
            (262, None, 1000),
            (0, None, 1000),
            (1 << 40, Some(0), 3),
            (1 << 40, Some(0), 0),
        ] {
            assert_eq!(chosen(tasks, bytes, partitions), None, "{tasks}, {bytes:?}, {partitions}");
        }
    }

    #[test]
    fn options_say_what_is_many_and_what_is_small() {
        let few = Expected { tasks: 3, bytes: Some(1000), partitions: 4, round_bytes: 10_000 };
        assert_eq!(groups(few, 256 * KIB, 1), Some((2, 1)));
        assert_eq!(groups(few, 256 * KIB, 12), Some((2, 1)));
        assert_eq!(groups(few, 256 * KIB, 13), None);
        // 83 bytes each.
        assert_eq!(groups(few, 84, 1), Some((2, 1)));
        assert_eq!(groups(few, 83, 1), None);
        assert_eq!(groups(few, 0, 0), None);
        let unknown = Expected { bytes: None, ..few };
        assert_eq!(groups(unknown, 1 << 40, 0), Some((2, 1)));
        assert_eq!(groups(unknown, 100, 1), None);
    }

    /// Whatever is expected, nothing overflows, and there are not more tasks than partitions, nor fewer than two groups.
    #[test]
    fn no_number_is_absurd() {
        let numbers = [0, 1, 2, 7, 1000, 1 << 20, 1 << 40, u64::MAX];
        let all = || numbers.into_iter();
        for (tasks, bytes, below, from) in all()
            .flat_map(|a| all().map(move |b| (a, b)))
            .flat_map(|(a, b)| all().map(move |c| (a, b, c)))
            .flat_map(|(a, b, c)| [0, 1, 1000, u64::MAX].map(|d| (a, b, c, d)))
        {
            for partitions in [0, 1, 3, 4, 5, 1000, 1 << 20] {
                for round_bytes in [1, 48 * MIB] {
                    let bytes = Some(bytes).filter(|bytes| *bytes != 7);
                    let expected = Expected { tasks, bytes, partitions, round_bytes };
                    let groups = expected.groups(below, from);
                    if groups == Groups::default() {
                        continue;
                    }
                    let found = (groups.count(partitions), groups.segments(partitions));
                    let says = || format!("{expected:?}, {below}, {from}: {groups:?}");
                    assert!(groups.width > 1 && found.0 > 1, "{}", says());
                    assert!(found.1 <= partitions, "{}", says());
                }
            }
        }
    }
}
