//! What comes in: reports of workers, and what the cluster tells about them.

use forebay_engine::{ErrorKind, RemoteError};
use serde::{Deserialize, Serialize};

use super::ids::{BlockId, StageId, TaskId, WorkerId};
use super::kinds;
use super::row_key::RunBlock;
use super::segments::Segments;

/// Something that happened. May come late, twice or out of order: the graph says what counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The job begins. A job without any work ends at once.
    Started,
    /// A running task has sealed one block of its output.
    BlockSealed {
        /// The attempt that wrote it.
        task: TaskId,
        /// What it wrote, which readers can have from now on.
        block: BlockReport,
    },
    /// A task has ended well. Commits its output.
    TaskFinished {
        /// The attempt that has ended.
        task: TaskId,
        /// All blocks of the unit. Those that the task was told to skip may be left out.
        blocks: Vec<BlockReport>,
    },
    /// A task has ended without a result.
    TaskFailed {
        /// The attempt that has ended.
        task: TaskId,
        /// What decides whether the unit is tried again.
        failure: Failure,
    },
    /// A task that was canceled has let go of its worker's resources.
    TaskEnded {
        /// The attempt that has ended.
        task: TaskId,
    },
    /// A task that waits for others has a worker that is needed for something that would not wait.
    Displaced {
        /// The attempt that is to stop.
        task: TaskId,
    },
    /// A worker is gone, with its tasks and its blocks.
    WorkerLost {
        /// The worker, which never comes back under this id.
        worker: WorkerId,
    },
    /// A worker has no room for what its tasks write.
    WorkerFull {
        /// The worker, which never comes back under this id.
        worker: WorkerId,
    },
    /// Nobody wants the result any more, or it cannot be had: who says so, and why.
    Canceled(#[serde(with = "kinds::error")] RemoteError),
}

/// One sealed block, as its writer describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockReport {
    /// Its number within the output of the unit.
    pub seq: u32,
    /// Size of its file in bytes.
    pub bytes: u64,
    /// Its rows, all of them.
    pub rows: u64,
    /// CRC-32 of its file.
    pub checksum: u64,
    /// What else there is to a block of a sorted run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunBlock>,
    /// What it has of each partition of a hash shuffle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<Segments>,
}

/// No block is larger. Keeps sums over reports, which come from outside, from overflowing.
const SIZE_MAX: u64 = 1 << 44;

impl BlockReport {
    pub(super) fn bounded(self) -> Self {
        Self { bytes: self.bytes.min(SIZE_MAX), rows: self.rows.min(SIZE_MAX), ..self }
    }
}

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What decides about a retry.
    pub kind: FailureKind,
    /// What people read. Nothing is decided by it.
    pub message: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// The kind of a failure, kept from the operator on a worker to here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Another attempt would fail as well: somebody must act.
    Final(#[serde(with = "kinds::kind")] ErrorKind),
    /// May pass, such as a broken connection to an object store.
    Passing,
    /// Nothing happened in the task for too long. May pass elsewhere, but each attempt takes long.
    NoProgress,
    /// The task did not fit into memory, beside what else ran there.
    OutOfMemory,
    /// The worker's disk, or what it may use of it, is full.
    DiskFull,
    /// The worker's disk fails: each attempt that writes there would fail as well.
    DiskBroken,
    /// The accelerator no longer works.
    DeviceBroken,
    /// The accelerator was lost to another task of its worker, before this one had anything of it.
    DeviceLost,
    /// The worker gave the task up, for example because it stops.
    WorkerLost,
    /// A block of the task's input cannot be fetched, or has the wrong checksum.
    BlockLost(BlockId),
    /// What the task reads of this stage cannot be fetched from this worker.
    OutputLost {
        /// The stage that wrote it.
        stage: StageId,
        /// The worker that holds it.
        worker: WorkerId,
    },
}

impl FailureKind {
    /// What a client hears if no attempt succeeds.
    pub fn error(&self) -> ErrorKind {
        match self {
            Self::Final(error) => *error,
            Self::OutOfMemory | Self::DiskFull => ErrorKind::ResourceExhausted,
            Self::Passing
            | Self::NoProgress
            | Self::DiskBroken
            | Self::DeviceBroken
            | Self::DeviceLost
            | Self::WorkerLost
            | Self::BlockLost(_)
            | Self::OutputLost { .. } => ErrorKind::Unavailable,
        }
    }
}
