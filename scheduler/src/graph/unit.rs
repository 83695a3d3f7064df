//! Units, and the attempts at them.

use serde::{Deserialize, Serialize};

use super::block::Blocks;
use super::event::FailureKind;
use super::ids::{BlockId, EdgeId, Millis, UnitId, WorkerId};
use crate::resources::Lease;

/// What a unit reads on its streaming edge, or which portion of its stage's own input it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnitInput {
    /// A scan partition, or a partition of a stage that shuffles feed.
    Partition(u32),
    /// Sealed blocks of one edge. The group is frozen: a retry takes the same. None if nothing
    /// streams into a stage that gives rows for that.
    Blocks(Vec<BlockId>),
    /// The whole output of one unit.
    Output(UnitId),
    /// The whole outputs of some units of one edge. Frozen like a group of blocks.
    Outputs(Vec<UnitId>),
    /// A range of the runs of a stage, by its place among all of them.
    Range(u32),
}

/// Where a unit stands. The number is that of the attempt that runs, or that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnitState {
    /// To be run, now or when its inputs are there.
    Pending,
    /// An attempt runs: its place among all attempts of the stage.
    Running(u32),
    /// An attempt has ended well, and all of its output that is needed is there or will be.
    Done(u32),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unit {
    pub(super) input: UnitInput,
    /// The streaming edge that it reads.
    pub(super) edge: Option<EdgeId>,
    /// The partition of the stage's plan that its tasks execute.
    pub(super) partition: u32,
    pub(super) state: UnitState,
    pub(super) attempts: u32,
    pub(super) failures: u32,
    /// How many tasks of the job had ended well when it last met a full disk.
    pub(super) full_at: Option<u64>,
    pub(super) losses: u32,
    pub(super) failed_on: Vec<WorkerId>,
    /// Those of them from where readers could not read what it had written.
    pub(super) lost_on: Vec<WorkerId>,
    pub(super) not_before: Millis,
    /// The attempt that ended well first. From then on the number of blocks is known.
    pub(super) finished: Option<u32>,
    /// Per outgoing edge of the stage that streams units: the consumer's unit.
    pub(super) readers: Box<[Option<u32>]>,
    pub(super) blocks: Blocks,
    /// How many of the blocks are not there.
    pub(super) absent: u32,
}

impl Unit {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, UnitState::Done(_))
    }

    /// Whether all of its output is known and there.
    pub(super) fn is_sealed(&self) -> bool {
        self.finished.is_some() && self.absent == 0
    }
}

/// Where an attempt stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskState {
    /// It was bound, and its end has not been heard of.
    Running,
    /// It has ended well.
    Finished,
    /// It has ended without a result.
    Failed(FailureKind),
    /// Nobody wants its result any more.
    Canceled,
    /// Its worker is gone.
    Lost,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) unit: u32,
    pub(super) attempt: u32,
    pub(super) worker: WorkerId,
    pub(super) lease: Lease,
    pub(super) state: TaskState,
    /// Whether it still holds what it was given: it runs, or was canceled and has not ended.
    pub(super) holds_lease: bool,
    pub(super) started: Millis,
    pub(super) ended: Option<Millis>,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    /// What of its expected output it has not sealed yet.
    pub(super) expected_left: u64,
    /// The same, of what was expected of it on its worker.
    pub(super) expected_here: u64,
    /// How much of that lies there unread at a time, as it was expected when the task began.
    pub(super) unread_milli: u64,
    pub(super) skip: Vec<u32>,
    pub(super) reason: String,
}

impl Task {
    /// What it is expected to add at a time to what lies unread on its worker.
    pub(super) fn adds_bytes(&self) -> u64 {
        self.expected_here.saturating_mul(self.unread_milli).div_ceil(1000)
    }
}
