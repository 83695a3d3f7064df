//! What goes out: things to do, and things to tell.

use std::borrow::Cow;
use std::fmt;

use forebay_engine::{ErrorKind, RemoteError};
use serde::{Deserialize, Serialize};

use super::ids::{BlockId, StageId, TaskId, UnitId, WorkerId};
use super::kinds;

/// Something to do outside of the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Stop a task. It counts as draining until it is told to have ended.
    CancelTask {
        /// The attempt to stop, canceled already as the graph sees it.
        task: TaskId,
        /// The worker to be told.
        worker: WorkerId,
    },
    /// Delete a block. `task` says which copy: a re-run may have written another one.
    FreeBlock {
        /// The block, which nobody needs any more.
        block: BlockId,
        /// The attempt that wrote this copy.
        task: TaskId,
        /// The worker that holds this copy and is to delete it.
        worker: WorkerId,
    },
    /// A unit that was done runs again.
    Recomputing {
        /// The unit, whose output is needed again.
        unit: UnitId,
        /// What was lost that somebody needs.
        why: Cause,
    },
    /// The result is complete. The blocks of stages without a consumer are the result, and stay.
    JobFinished,
    /// The job has failed.
    JobFailed {
        /// What ended it; later failures are not told.
        reason: JobFailure,
    },
}

/// Why a unit that was done runs again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Its output lay on a worker that is gone.
    WorkerLost(WorkerId),
    /// A reader found this block of its output missing or corrupt.
    BlockLost(BlockId),
    /// A unit that must run again reads its output, which is gone.
    InputOf(UnitId),
    /// Blocks that it was told to skip were lost while it ran.
    SkippedAndLost,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerLost(worker) => write!(f, "worker {worker} was lost"),
            Self::BlockLost(block) => write!(f, "block {block} was missing or corrupt"),
            Self::InputOf(unit) => write!(f, "unit {unit} runs again and reads it"),
            Self::SkippedAndLost => f.write_str("skipped blocks were lost meanwhile"),
        }
    }
}

/// Why a job failed, and what was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobFailure {
    /// One unit ended the job.
    Unit(Box<UnitFailure>),
    /// A re-run gave another output than the first run.
    NotDeterministic {
        /// The stage whose unit ran again.
        stage: StageId,
        /// Its operators, for people.
        name: String,
        /// What differs between the two runs, for people.
        difference: String,
        /// What people can do about it.
        remedy: Cow<'static, str>,
    },
    /// Nobody wants the result any more, or it cannot be had.
    Canceled(#[serde(with = "kinds::error")] RemoteError),
}

impl JobFailure {
    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unit(failed) => failed.error.kind,
            Self::NotDeterministic { .. } => ErrorKind::FailedPrecondition,
            Self::Canceled(error) => error.kind,
        }
    }
}

/// A unit that ended the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFailure {
    /// The unit whose last attempt failed.
    pub unit: UnitId,
    /// The name of its stage.
    pub stage: String,
    /// Which limit it reached; empty if the failure is one that is never retried.
    pub limit: String,
    /// How often it was tried.
    pub attempts: u32,
    /// The worker of each attempt, in the order of the attempts.
    pub workers: Vec<WorkerId>,
    /// The failure of the last attempt; those before it are not kept.
    #[serde(with = "kinds::error")]
    pub error: RemoteError,
}

impl fmt::Display for JobFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(failed) => failed.fmt(f),
            Self::NotDeterministic { stage, name, difference, remedy } => {
                write!(f, "stage {stage} '{name}' is not deterministic: {difference}; {remedy}")
            }
            Self::Canceled(reason) => write!(f, "canceled: {reason}"),
        }
    }
}

impl fmt::Display for UnitFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unit {} of stage '{}': {}", self.unit, self.stage, self.error)?;
        if !self.limit.is_empty() {
            let workers: Vec<_> = self.workers.iter().map(WorkerId::as_str).collect();
            let (attempts, workers) = (self.attempts, workers.join(", "));
            write!(f, " (gave up: {}; {attempts} attempts, on {workers})", self.limit)?;
        }
        Ok(())
    }
}
