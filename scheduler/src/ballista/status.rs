//! How a task ended, from the operator on a worker to the graph: typed all the way.
//!
//! Ballista's status has no field for the kind of a failure, but one that it keeps whole: which
//! worker, stage and partition could not be fetched. A failure of ours travels there, under a
//! worker's name that no worker has.

use std::{io, iter};

use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::failed_task::FailedReason;
use ballista_core::serde::protobuf::{FailedTask, ShuffleWritePartition};
use datafusion::error::DataFusionError;
use forebay_engine::{EngineError, ErrorKind, chain};
use forebay_udf::{ErrorClass, ModelError, RuntimeError};

use serde::{Deserialize, Serialize};

use crate::block::open_block::Sealed;
use crate::block::{self, BlockError, DiskError};
use crate::graph::{
    BlockReport, Failure, FailureKind, RowKey, RunBlock, Segments, StageId, UnitId, WorkerId,
};
use crate::protocol::location::FileId;

/// In place of a worker's name.
const MARK: &str = "forebay:failure";

/// A failure as it travels.
#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    kind: Kind,
    /// Of an [`ErrorKind`], for a failure that is final.
    error: String,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Final,
    Passing,
    NoProgress,
    OutOfMemory,
    DiskFull,
    DiskBroken,
    DeviceBroken,
    DeviceLost,
    BlockLost { stage: u32, task: u32, seq: u32 },
    OutputLost { stage: u32, worker: String },
}

/// On a worker: a task's error, so that its kind survives.
pub(crate) fn sealed_failure(error: DataFusionError) -> DataFusionError {
    let envelope = Envelope {
        kind: kind(&error),
        error: ErrorKind::of(&error).name().to_owned(),
        message: error.strip_backtrace(),
    };
    let text = serde_json::to_string(&envelope).unwrap_or_else(|_| envelope.message.clone());
    DataFusionError::External(Box::new(BallistaError::FetchFailed(MARK.to_owned(), 0, 0, text)))
}

fn kind(error: &DataFusionError) -> Kind {
    if let Some(BlockError { id, worker, is_one_of_many, .. }) = BlockError::find(error) {
        return match is_one_of_many {
            true => Kind::OutputLost { stage: id.stage, worker: worker.clone() },
            false => Kind::BlockLost { stage: id.stage, task: id.task, seq: id.seq },
        };
    }
    for cause in chain(error) {
        match cause.downcast_ref::<DiskError>() {
            Some(DiskError::Full(_)) => return Kind::DiskFull,
            Some(DiskError::Broken(_)) => return Kind::DiskBroken,
            None => {}
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return io_kind(error);
        }
        match cause.downcast_ref::<EngineError>() {
            Some(EngineError::Runtime(source)) => return runtime_kind(source),
            Some(EngineError::Batch { source, .. }) => return runtime_kind(source),
            Some(EngineError::NoProgress { .. }) => return Kind::NoProgress,
            Some(EngineError::TooManyErrors { .. }) => return Kind::Final,
            Some(EngineError::Model(ModelError::Unreachable { .. })) => return Kind::Passing,
            _ => {}
        }
        match cause.downcast_ref::<DataFusionError>() {
            Some(DataFusionError::ResourcesExhausted(_)) => return Kind::OutOfMemory,
            Some(DataFusionError::ObjectStore(source)) => return store_kind(source),
            _ => {}
        }
    }
    Kind::Final
}

fn io_kind(error: &io::Error) -> Kind {
    if block::says_full(error) { Kind::DiskFull } else { Kind::Passing }
}

fn runtime_kind(error: &RuntimeError) -> Kind {
    match (error, error.class()) {
        (RuntimeError::OutOfMemory { .. }, _) => Kind::OutOfMemory,
        (RuntimeError::NoRoom { .. }, _) => Kind::OutOfMemory,
        (RuntimeError::DeviceLost { by_others: true, .. }, _) => Kind::DeviceLost,
        // The machine lacks it, not the model: another worker may have it.
        (RuntimeError::Library { .. }, _) => Kind::DeviceBroken,
        (_, ErrorClass::Model | ErrorClass::Data) => Kind::Final,
        (_, ErrorClass::Passing) => Kind::Passing,
        (_, ErrorClass::Device) => Kind::DeviceBroken,
    }
}

fn store_kind(error: &object_store::Error) -> Kind {
    match error {
        object_store::Error::Generic { .. } | object_store::Error::JoinError { .. } => {
            Kind::Passing
        }
        _ => Kind::Final,
    }
}

/// What a failed task says, for the graph. `unit_of` tells whose block a file is.
pub(crate) fn failure(
    failed: FailedTask,
    unit_of: impl Fn(u32, u32) -> Option<UnitId>,
) -> Option<Failure> {
    let Some(reason) = failed.failed_reason else {
        return Some(Failure::new(FailureKind::Final(ErrorKind::Internal), failed.error));
    };
    let kind = match reason {
        FailedReason::TaskKilled(_) => return None,
        FailedReason::FetchPartitionError(fetch) if fetch.executor_id == MARK => {
            return Some(opened(&failed.error, unit_of));
        }
        FailedReason::FetchPartitionError(_) | FailedReason::IoError(_) => FailureKind::Passing,
        FailedReason::ExecutorLost(_) | FailedReason::ResultLost(_) => FailureKind::WorkerLost,
        FailedReason::ExecutionError(_) => FailureKind::Final(ErrorKind::Internal),
    };
    Some(Failure::new(kind, failed.error))
}

fn opened(text: &str, unit_of: impl Fn(u32, u32) -> Option<UnitId>) -> Failure {
    let Ok(envelope) = serde_json::from_str::<Envelope>(text) else {
        return Failure::new(FailureKind::Final(ErrorKind::Internal), text);
    };
    let kind = match envelope.kind {
        Kind::Final => FailureKind::Final(ErrorKind::named(&envelope.error)),
        Kind::Passing => FailureKind::Passing,
        Kind::NoProgress => FailureKind::NoProgress,
        Kind::OutOfMemory => FailureKind::OutOfMemory,
        Kind::DiskFull => FailureKind::DiskFull,
        Kind::DiskBroken => FailureKind::DiskBroken,
        Kind::DeviceBroken => FailureKind::DeviceBroken,
        Kind::DeviceLost => FailureKind::DeviceLost,
        Kind::BlockLost { stage, task, seq } => match unit_of(stage, task) {
            Some(unit) => FailureKind::BlockLost(unit.block(seq)),
            None => FailureKind::Passing,
        },
        Kind::OutputLost { stage, worker } => {
            FailureKind::OutputLost { stage: StageId(stage), worker: WorkerId::new(worker) }
        }
    };
    Failure::new(kind, envelope.message)
}

/// Bytes in one record behind that of a block: four numbers of eight bytes.
const RECORD_BYTES: usize = 32;

/// What else is told of a block begins with one of these.
const RUN: u8 = 1;
const SEGMENTS: u8 = 2;

/// Bytes that are told of a block of a run at most: see [`run_bytes`].
const RUN_BYTES_MAX: usize = 1 + 8 + 2 + RowKey::BYTES_MAX + 1 + RowKey::BYTES_MAX;

/// The same of a hash shuffle.
const SEGMENTS_BYTES_MAX: usize = 1 + Segments::BYTES_MAX;

/// On a worker: blocks as Ballista's records of an output. The file number is our checksum; the number of
/// batches, which blocks do not tell, is that of the bytes of what else is told of a block of a run or of a hash
/// shuffle, which follow in records of their own.
pub(crate) fn to_records(blocks: &[(FileId, Sealed)]) -> Vec<ShuffleWritePartition> {
    let mut records = vec![];
    for (id, sealed) in blocks {
        let more = match (&sealed.run, &sealed.segments) {
            (Some(run), _) => run_bytes(run),
            (None, Some(segments)) => [&[SEGMENTS], segments.bytes()].concat(),
            (None, None) => vec![],
        };
        records.push(ShuffleWritePartition {
            partition_id: u64::from(id.seq),
            num_batches: more.len() as u64,
            num_rows: sealed.rows,
            num_bytes: sealed.bytes,
            file_id: Some(u64::from(sealed.checksum)),
            is_sort_shuffle: false,
        });
        records.extend(more.chunks(RECORD_BYTES).map(record_of));
    }
    records
}

/// The digest, the bytes of the key and how many they are, and where the run ends, 1 and the bytes of that key.
fn run_bytes(run: &RunBlock) -> Vec<u8> {
    let mut bytes = vec![RUN];
    bytes.extend(run.digest.to_be_bytes());
    bytes.extend((run.key.bytes().len() as u16).to_be_bytes());
    bytes.extend(run.key.bytes());
    if let Some(end) = &run.end {
        bytes.push(1);
        bytes.extend(end.bytes());
    }
    bytes
}

/// What else there is to a block.
#[derive(Default)]
struct More {
    run: Option<RunBlock>,
    segments: Option<Segments>,
}

impl More {
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (&RUN, bytes) => Some(Self { run: Some(run_of(bytes)?), segments: None }),
            (&SEGMENTS, bytes) => {
                Some(Self { run: None, segments: Some(Segments::from_bytes(bytes)?) })
            }
            _ => None,
        }
    }
}

fn run_of(bytes: &[u8]) -> Option<RunBlock> {
    let (digest, rest) = bytes.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    let end = rest.split_first().map(|(_, end)| RowKey::new(end));
    Some(RunBlock { key: RowKey::new(key), end, digest: u64::from_be_bytes(*digest) })
}

fn record_of(part: &[u8]) -> ShuffleWritePartition {
    let number = |at: usize| {
        let bytes = part.iter().copied().chain(iter::repeat(0)).skip(at * 8).take(8);
        bytes.fold(0, |number, byte| number << 8 | u64::from(byte))
    };
    ShuffleWritePartition {
        partition_id: number(0),
        num_batches: number(1),
        num_rows: number(2),
        num_bytes: number(3),
        file_id: None,
        is_sort_shuffle: false,
    }
}

/// The blocks in Ballista's records of an output.
///
/// # Errors
/// If they are not what a worker makes of blocks: some might be missing.
pub(crate) fn from_records(records: &[ShuffleWritePartition]) -> Result<Vec<BlockReport>, String> {
    let (mut reports, mut records) = (vec![], records);
    while let [record, rest @ ..] = records {
        let (More { run, segments }, rest) = behind(record, rest).ok_or_else(|| {
            let (block, bytes) = (record.partition_id, record.num_batches);
            format!(
                "its worker's report is damaged, at the {bytes} bytes on block {block} beside its size"
            )
        })?;
        reports.push(BlockReport {
            seq: u32::try_from(record.partition_id).unwrap_or(u32::MAX),
            bytes: record.num_bytes,
            rows: record.num_rows,
            checksum: record.file_id.unwrap_or(0),
            run,
            segments,
        });
        records = rest;
    }
    Ok(reports)
}

/// What else is told of a block, in the records behind its own, and those behind that. Nothing if it is damaged.
fn behind<'a>(
    record: &ShuffleWritePartition,
    rest: &'a [ShuffleWritePartition],
) -> Option<(More, &'a [ShuffleWritePartition])> {
    let bytes = usize::try_from(record.num_batches).ok();
    let bytes = bytes.filter(|bytes| *bytes <= RUN_BYTES_MAX.max(SEGMENTS_BYTES_MAX))?;
    if bytes == 0 {
        return Some((More::default(), rest));
    }
    let (parts, rest) = rest.split_at_checked(bytes.div_ceil(RECORD_BYTES))?;
    let more: Vec<u8> = parts
        .iter()
        .flat_map(|part| [part.partition_id, part.num_batches, part.num_rows, part.num_bytes])
        .flat_map(u64::to_be_bytes)
        .collect();
    Some((More::of(more.get(..bytes)?)?, rest))
}

#[cfg(test)]
mod tests {
    use arrow::error::ArrowError;
    use ballista_core::serde::protobuf::FetchPartitionError;

    use super::*;
    use crate::graph::Segment;
    use crate::protocol::location::BlockLocation;

    /// What the graph makes of an error of a task, over the wire.
    fn decided(error: impl Into<DataFusionError>) -> FailureKind {
        let sealed = sealed_failure(error.into());
        let Some(BallistaError::FetchFailed(executor_id, stage, partition, text)) =
            chain(&sealed).find_map(|cause| cause.downcast_ref::<BallistaError>())
        else {
            panic!("{sealed}")
        };
        let fetch = FetchPartitionError {
            executor_id: executor_id.clone(),
            map_stage_id: *stage as u32,
            map_partition_id: *partition as u32,
        };
        let failed = FailedTask {
            error: text.clone(),
            failed_reason: Some(FailedReason::FetchPartitionError(fetch)),
            ..FailedTask::default()
        };
        failure(failed, |_, _| None).unwrap().kind
    }

    /// Of every second partition.
    fn segments(partitions: u32) -> Segments {
        let segment = |partition: u32| {
            let (at, rows, checksum) = (partition * 50, u32::MAX - partition, partition * 7);
            Segment { partition, at, bytes: 100, rows, checksum }
        };
        Segments::new(&(0..partitions).step_by(2).map(segment).collect::<Vec<_>>())
    }

    #[test]
    fn segments_that_are_damaged_are_told() {
        let sealed =
            Sealed { bytes: 100, rows: 1, checksum: 1, run: None, segments: Some(segments(20)) };
        let id = FileId { stage: 1, task: 2, seq: 0 };
        let records = to_records(&[(id, sealed)]);
        assert_eq!(records.len(), 1 + (1 + 16 * 10_usize).div_ceil(RECORD_BYTES));
        from_records(&records).unwrap();
        let mut damaged = records.clone();
        damaged[2].num_rows ^= 0xff << 48;
        for damaged in [&records[..4], &damaged] {
            let problem = from_records(damaged).unwrap_err();
            assert!(problem.contains("161 bytes on block 0"), "{problem}");
        }
    }

    #[test]
    fn a_segment_whose_worker_is_out_of_reach_loses_all_that_the_worker_has_of_the_stage() {
        let id = FileId { stage: 3, task: 2, seq: 1 };
        let whole = BlockLocation { id, worker: "w".to_owned(), ..BlockLocation::default() };
        let segment = BlockLocation { segment_at: Some(0), ..whole.clone() };
        // Of a block that nobody knows.
        assert_eq!(decided(BlockError::unreached(&whole, "silent")), FailureKind::Passing);
        assert_eq!(decided(BlockError::new(&segment, "damaged")), FailureKind::Passing);
        let all = FailureKind::OutputLost { stage: StageId(3), worker: WorkerId::new("w") };
        assert_eq!(decided(BlockError::unreached(&segment, "silent")), all);
    }

    #[test]
    fn blocks_come_back_with_their_keys() {
        let keys = [None, Some(0), Some(1), Some(22), Some(23), Some(256), None];
        let block = |(seq, key): (u32, Option<usize>)| {
            let run = key.map(|bytes| RunBlock {
                key: RowKey::new(&vec![seq as u8 + 1; bytes]),
                end: (seq >= 3).then(|| RowKey::new(&vec![9; bytes - 1])),
                digest: u64::MAX - u64::from(seq) * 3,
            });
            let (bytes, rows) = (u64::from(seq) + 7, u64::MAX - u64::from(seq));
            let segments = (seq == 6).then(|| segments(3000));
            let sealed = Sealed { bytes, rows, checksum: seq, run, segments };
            (FileId { stage: 1, task: 2, seq }, sealed)
        };
        let blocks: Vec<_> = (0..).zip(keys).map(block).collect();
        let report = |(id, sealed): &(FileId, Sealed)| BlockReport {
            seq: id.seq,
            bytes: sealed.bytes,
            rows: sealed.rows,
            checksum: u64::from(sealed.checksum),
            run: sealed.run.clone(),
            segments: sealed.segments.clone(),
        };
        let expected: Vec<_> = blocks.iter().map(report).collect();
        let records = to_records(&blocks);
        assert_eq!(from_records(&records).unwrap(), expected);
        assert_eq!(from_records(&records[..3]).unwrap(), expected[..2]);
        assert!(from_records(&[]).unwrap().is_empty());
    }

    /// Records that are taken for something else may be blocks, whose rows would be missing.
    #[test]
    fn a_report_that_is_damaged_is_told() {
        let run = RunBlock { key: RowKey::new(&[7; 20]), end: None, digest: 1 };
        let sealed = |run| Sealed { bytes: 1, rows: 1, checksum: 1, run, segments: None };
        let id = |seq| FileId { stage: 1, task: 2, seq };
        let records = to_records(&[(id(0), sealed(Some(run))), (id(1), sealed(None))]);
        assert_eq!((records.len(), from_records(&records).unwrap().len()), (3, 2));
        let said = |bytes: u64, behind: &[ShuffleWritePartition]| {
            let first = ShuffleWritePartition { num_batches: bytes, ..records[0] };
            let all = [&[first][..], behind].concat();
            from_records(&all).map(|blocks| blocks.len()).map_err(|problem| {
                assert!(problem.contains("on block 0 beside its size"), "{problem}");
            })
        };
        assert_eq!(said(31, &records[1..]), Ok(2));
        // The record is missing, it has less than a digest and a key, or there cannot be so much.
        let many = vec![records[1]; 100];
        for (bytes, behind) in [
            (31, &records[..0]),
            (10, &records[1..]),
            (30, &records[1..]),
            (33, &records[1..2]),
            (SEGMENTS_BYTES_MAX as u64 + 1, &many[..]),
            (u64::MAX, &many[..]),
        ] {
            assert_eq!(said(bytes, behind), Err(()), "{bytes}");
        }
    }

    #[test]
    fn a_full_disk_a_broken_one_and_a_read_that_failed_are_told_apart() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let over_quota = || io::Error::from(io::ErrorKind::QuotaExceeded);
        // `EIO`.
        let broken = || io::Error::from_raw_os_error(5);
        let path = std::path::Path::new("/work/block");
        assert_eq!(decided(DiskError::new(path, &full())), FailureKind::DiskFull);
        assert_eq!(decided(DiskError::new(path, &over_quota())), FailureKind::DiskFull);
        assert_eq!(decided(DiskError::new(path, &broken())), FailureKind::DiskBroken);
        // What operators of DataFusion's write beside blocks.
        for error in [full(), over_quota()] {
            assert_eq!(decided(error), FailureKind::DiskFull);
        }
        assert_eq!(decided(ArrowError::from(full())), FailureKind::DiskFull);
        // It may as well be a file that is read.
        assert_eq!(decided(broken()), FailureKind::Passing);
        // No disk is at fault for rows that have no form in a file.
        let unencoded = ArrowError::NotYetImplemented("run-end encoding".to_owned());
        assert_eq!(decided(unencoded), FailureKind::Final(ErrorKind::Unimplemented));
    }

    #[test]
    fn a_lost_device_counts_against_the_task_that_met_it_and_no_other() {
        let lost = |by_others| RuntimeError::DeviceLost {
            device: "cuda:0".to_owned(),
            problem: "device-side assert triggered".to_owned(),
            by_others,
        };
        assert_eq!(decided(EngineError::from(lost(false))), FailureKind::DeviceBroken);
        assert_eq!(decided(EngineError::from(lost(true))), FailureKind::DeviceLost);
    }

    #[test]
    fn what_another_worker_may_have_and_what_may_pass_is_tried_again() {
        let (location, problem) = ("http://a/b".to_owned(), "503".to_owned());
        let silent = ModelError::Unreachable { location, problem };
        assert_eq!(decided(EngineError::from(silent)), FailureKind::Passing);
        let (operator, waits_for) = ("InferenceExec".to_owned(), "a batch".to_owned());
        let stuck = EngineError::NoProgress { operator, seconds: 600, waits_for };
        assert_eq!(decided(stuck), FailureKind::NoProgress);
        let (library, problem) = ("libc10.so".to_owned(), "no such file".to_owned());
        let lacks = RuntimeError::Library { library, problem };
        assert_eq!(decided(EngineError::from(lacks)), FailureKind::DeviceBroken);
        let (model, device, problem) = ("m".to_owned(), "cuda:0".to_owned(), "no room".to_owned());
        let full = RuntimeError::NoRoom { model, device, problem };
        assert_eq!(decided(EngineError::from(full)), FailureKind::OutOfMemory);
        let (location, problem) = ("http://a/b".to_owned(), "gone".to_owned());
        let gone = ModelError::Package { location, problem, remedy: String::new() };
        assert_eq!(
            decided(EngineError::from(gone)),
            FailureKind::Final(ErrorKind::InvalidArgument)
        );
    }
}
