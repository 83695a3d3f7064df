//! Names of things, each a type of its own, so that a unit is never taken for a task.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Milliseconds since a moment that the caller chose. The only time that the graph knows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Millis(pub u64);

impl Millis {
    /// The time `ms` later.
    pub fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`, 0 if that is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A stage of one job: its place in [`JobSpec::stages`](super::JobSpec::stages).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StageId(pub u32);

/// An edge between two stages: its place in [`JobSpec::edges`](super::JobSpec::edges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EdgeId(pub u32);

/// One input portion of one stage: what is run, and what is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnitId {
    /// The stage that it is a part of.
    pub stage: StageId,
    /// Its place among the units of the stage.
    pub index: u32,
}

/// One attempt at one unit. Every attempt has a new number within its stage, also under another scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The stage that it is a part of.
    pub stage: StageId,
    /// Its number among all attempts of the stage, in the order in which they were bound.
    pub index: u32,
}

/// One sealed piece of a unit's output. Of a replayable unit, every attempt gives the same rows
/// under the same sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockId {
    /// The unit whose output it is a part of.
    pub unit: UnitId,
    /// Its number within that output.
    pub seq: u32,
}

/// A worker process. Unique per start of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// The worker of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The id that the worker gave itself when it started.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for WorkerId {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<WorkerId> for String {
    fn from(worker: WorkerId) -> Self {
        worker.as_str().to_owned()
    }
}

impl StageId {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }

    /// The unit of this stage with this number.
    pub fn unit(self, index: u32) -> UnitId {
        UnitId { stage: self, index }
    }

    /// The attempt of this stage with this number.
    pub fn task(self, index: u32) -> TaskId {
        TaskId { stage: self, index }
    }
}

impl EdgeId {
    pub(crate) fn at(self) -> usize {
        self.0 as usize
    }
}

impl UnitId {
    /// The block of this unit's output with this number.
    pub fn block(self, seq: u32) -> BlockId {
        BlockId { unit: self, seq }
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for EdgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stage, self.index)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.stage, self.index)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.unit, self.seq)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
