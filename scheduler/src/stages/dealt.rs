//! Stages whose rows are dealt out by a hash of keys, in blocks of ours.
//!
//! ```text
//!  HashWriterExec(keys, 4)          ShuffleReaderExec of 4 partitions, in the stage's plan
//!                                                │ a task is restricted to one of them, as Ballista does it
//!                                                ▼
//!                                   BlockReaderExec: the segments of that one
//! ```

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use ballista_core::execution_plans::{ShuffleReaderExec, ShuffleWriter, UnresolvedShuffleExec};
use ballista_core::serde::scheduler::{
    ExecutorMetadata, ExecutorOperatingSystemSpecification, ExecutorSpecification, PartitionId,
    PartitionLocation, PartitionStats,
};
use datafusion::common::{Result, internal_datafusion_err, internal_err, plan_err};
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::block::HashWriterExec;
use crate::graph::{Segments, StageId};

/// Bytes of a round at most: of one key it is one segment, which a reader has in memory even if the pool has no room
/// for it.
const ROUND_BYTES_MAX: u64 = 48 << 20;

/// What deals out the rows of `input` as Ballista's writer would.
pub(super) fn writer(
    writer: &dyn ShuffleWriter,
    input: Arc<dyn ExecutionPlan>,
    round_bytes: u64,
) -> Result<HashWriterExec> {
    match writer.shuffle_output_partitioning() {
        Some(Partitioning::Hash(keys, partitions)) if *partitions > Segments::PARTITIONS_MAX => {
            let (keys, most) = (keys.len(), Segments::PARTITIONS_MAX);
            plan_err!(
                "rows are dealt out by {keys} keys into {partitions} partitions, expected {most} at most; lower \
                 datafusion.execution.target_partitions"
            )
        }
        Some(Partitioning::Hash(keys, partitions)) => {
            let partitions = u32::try_from(*partitions).unwrap_or(u32::MAX);
            let round_bytes = round_bytes.min(ROUND_BYTES_MAX);
            Ok(HashWriterExec::new(input, keys.clone(), partitions, round_bytes))
        }
        other => internal_err!("rows are dealt out by {other:?}, expected a hash"),
    }
}

/// A leaf that stands for what such a stage has written. It is Ballista's, so that Ballista restricts it to the
/// partitions of a task with all else in the plan; which these are is then read off it by [`partitions`].
pub(super) fn hole(
    from: StageId,
    shuffle: &UnresolvedShuffleExec,
) -> Result<Arc<dyn ExecutionPlan>> {
    let (stage, schema) = (from.0 as usize, Arc::clone(&shuffle.schema));
    if shuffle.broadcast {
        let partitions = shuffle.upstream_partition_count;
        let hole = ShuffleReaderExec::try_new_broadcast(stage, vec![], schema, partitions)?;
        return Ok(Arc::new(hole));
    }
    hole_of(from, schema, shuffle.properties().output_partitioning().clone())
}

/// The same for one that is read in these partitions.
pub(super) fn hole_of(
    from: StageId,
    schema: SchemaRef,
    partitioning: Partitioning,
) -> Result<Arc<dyn ExecutionPlan>> {
    let stage = from.0 as usize;
    let marks = (0..partitioning.partition_count()).map(|partition| vec![mark(stage, partition)]);
    Ok(Arc::new(ShuffleReaderExec::try_new(stage, marks.collect(), schema, partitioning)?))
}

/// The stage for which a [`hole`] stands.
pub(crate) fn stage_of(hole: &ShuffleReaderExec) -> StageId {
    StageId(u32::try_from(hole.stage_id).unwrap_or(u32::MAX))
}

/// The partitions that are left of a [`hole`].
///
/// # Errors
/// If it is none.
pub(crate) fn partitions(hole: &ShuffleReaderExec) -> Result<Vec<u32>> {
    let partition = |marks: &Vec<PartitionLocation>| {
        let mark = marks.first().map(|mark| mark.partition_id.partition_id);
        mark.and_then(|partition| u32::try_from(partition).ok())
            .ok_or_else(|| internal_datafusion_err!("a shuffle reader without marks"))
    };
    hole.partition.iter().map(partition).collect()
}

fn mark(stage_id: usize, partition_id: usize) -> PartitionLocation {
    PartitionLocation {
        map_partition_id: 0,
        partition_id: PartitionId { job_id: "mark".into(), stage_id, partition_id },
        executor_meta: ExecutorMetadata {
            id: String::new(),
            host: String::new(),
            port: 0,
            grpc_port: 0,
            specification: ExecutorSpecification::default(),
            os_info: ExecutorOperatingSystemSpecification::default(),
        },
        partition_stats: PartitionStats::new(None, None, None),
        file_id: None,
        is_sort_shuffle: false,
    }
}
