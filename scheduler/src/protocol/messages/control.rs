//! What a worker and the scheduler say to each other for as long as the worker lives.

use prost::Message;

use super::{PROTOCOL, VERSION, Worker};
use crate::protocol::location::{BlockLocation, FileId};

/// From a worker to the scheduler.
#[derive(Clone, PartialEq, Message)]
pub struct FromWorker {
    /// Nothing if it says what this version does not know.
    #[prost(oneof = "from_worker::Say", tags = "1, 2, 3, 4, 5, 6")]
    pub say: Option<from_worker::Say>,
}

/// What [`FromWorker`] says.
pub mod from_worker {
    /// One of these, in the order in which they were said.
    #[derive(Clone, PartialEq, prost::Oneof)]
    #[allow(clippy::large_enum_variant, reason = "the largest is said once")]
    pub enum Say {
        /// The first message, and only that: who it is.
        #[prost(message, tag = "1")]
        Hello(super::Hello),
        /// It takes no more tasks and will leave.
        #[prost(message, tag = "2")]
        Draining(super::Draining),
        /// A block is complete, though its task may go on.
        #[prost(message, tag = "3")]
        Sealed(super::Sealed),
        /// A task waits for room for its blocks.
        #[prost(message, tag = "4")]
        Full(super::Full),
        /// What its accelerators did since it said so before.
        #[prost(message, tag = "5")]
        Busy(super::Busy),
        /// A task that is to stop has not come. Should it come, it does not begin.
        #[prost(message, tag = "6")]
        Absent(super::TaskName),
    }
}

/// What the accelerators of a worker did.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Busy {
    /// How many of them computed, on average, in thousandths.
    #[prost(uint32, tag = "1")]
    pub milli: u32,
}

/// A task waits for room for its blocks.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Full {}

/// A block is complete.
#[derive(Clone, PartialEq, Message)]
pub struct Sealed {
    /// The job that it belongs to.
    #[prost(string, tag = "1")]
    pub job: String,
    /// Which of the job's blocks it is.
    #[prost(message, required, tag = "2")]
    pub id: FileId,
    /// Size of its file.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Its rows, as its writer counted them.
    #[prost(uint64, tag = "4")]
    pub rows: u64,
    /// CRC-32 of its file.
    #[prost(uint32, tag = "5")]
    pub checksum: u32,
}

/// The first message of a worker.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// The worker's [`PROTOCOL`](super::PROTOCOL).
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// Its version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Who it is, and what it has.
    #[prost(message, required, tag = "3")]
    pub worker: Worker,
    /// The [`Welcome::term`] of the scheduler that it worked for before; 0 if there was none.
    #[prost(uint64, tag = "4")]
    pub term: u64,
    /// What it has of that one's jobs.
    #[prost(message, required, tag = "5")]
    pub holds: Holds,
    /// The [`Welcome::state`] of that one.
    #[prost(string, tag = "6")]
    pub state: String,
}

impl Hello {
    /// Of this process, which works for nobody yet.
    pub fn new(worker: Worker) -> Self {
        let (protocol, version) = (PROTOCOL, VERSION.to_owned());
        let (term, holds, state) = (0, Holds::default(), String::new());
        Self { protocol, version, worker, term, holds, state }
    }
}

/// What a worker has of jobs when it finds another scheduler.
#[derive(Clone, PartialEq, Message)]
pub struct Holds {
    /// Tasks that run.
    #[prost(message, repeated, tag = "1")]
    pub running: Vec<TaskName>,
    /// Tasks that have ended, of which it will report how.
    #[prost(message, repeated, tag = "2")]
    pub ended: Vec<TaskName>,
    /// Jobs of which it has files.
    #[prost(string, repeated, tag = "3")]
    pub jobs: Vec<String>,
}

/// A task of any job.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
pub struct TaskName {
    /// The job that it belongs to.
    #[prost(string, tag = "1")]
    pub job: String,
    /// Its stage, by its place in the job.
    #[prost(uint32, tag = "2")]
    pub stage: u32,
    /// Its number among all attempts of the stage.
    #[prost(uint32, tag = "3")]
    pub task: u32,
}

/// A worker takes no more tasks.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Draining {}

/// From the scheduler to a worker.
#[derive(Clone, PartialEq, Message)]
pub struct ToWorker {
    /// Nothing if it says what this version does not know.
    #[prost(oneof = "to_worker::Say", tags = "1, 2, 3, 4, 5")]
    pub say: Option<to_worker::Say>,
}

/// What [`ToWorker`] says.
pub mod to_worker {
    /// One of these, in the order in which they were said.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Say {
        /// The worker is known.
        #[prost(message, tag = "1")]
        Welcome(super::Welcome),
        /// A task is to stop.
        #[prost(message, tag = "2")]
        Cancel(super::TaskName),
        /// A block is needed no more.
        #[prost(message, tag = "3")]
        Free(super::Free),
        /// All blocks of this job are needed no more.
        #[prost(string, tag = "4")]
        Forget(String),
        /// Nothing that a draining worker runs or holds is needed any more.
        #[prost(message, tag = "5")]
        Leave(super::Leave),
    }
}

/// A block is needed no more.
#[derive(Clone, PartialEq, Message)]
pub struct Free {
    /// The job that it belongs to.
    #[prost(string, tag = "1")]
    pub job: String,
    /// Which of the job's blocks it is.
    #[prost(message, required, tag = "2")]
    pub id: FileId,
}

/// A draining worker may go.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Leave {}

/// The answer to [`Hello`].
#[derive(Clone, PartialEq, Message)]
pub struct Welcome {
    /// The scheduler's version, for people.
    #[prost(string, tag = "1")]
    pub version: String,
    /// What one that takes over its journal has a greater one of; 0 if it has none.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// For how many milliseconds a successor is to be waited for, should it be gone.
    #[prost(uint64, tag = "3")]
    pub patience_ms: u64,
    /// The id of the state that a successor has, too; nothing if there can be none.
    #[prost(string, tag = "4")]
    pub state: String,
}

/// Asks for what has been dealt out to a partition since a task was told last, once there is something.
#[derive(Clone, PartialEq, Message)]
pub struct DealtRequest {
    /// The worker's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The worker's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The task that reads.
    #[prost(message, required, tag = "3")]
    pub task: TaskName,
    /// What it reads of what is dealt out.
    #[prost(uint32, tag = "4")]
    pub partition: u32,
    /// Of how many outputs it has been told.
    #[prost(uint32, tag = "5")]
    pub told: u32,
}

impl DealtRequest {
    /// A request of this process, with its versions.
    pub fn new(task: TaskName, partition: u32, told: u32) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned(), task, partition, told }
    }
}

/// What a task that began early reads next.
#[derive(Clone, PartialEq, Message)]
pub struct DealtAnswer {
    /// Its segments. None if there was nothing for a while.
    #[prost(message, repeated, tag = "1")]
    pub segments: Vec<BlockLocation>,
    /// Of how many outputs it has been told now.
    #[prost(uint32, tag = "2")]
    pub told: u32,
    /// There will be no more.
    #[prost(bool, tag = "3")]
    pub is_all: bool,
}
