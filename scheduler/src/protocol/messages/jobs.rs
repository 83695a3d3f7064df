//! What a client and the scheduler say to each other about a plan that runs.

use forebay_engine::{ErrorKind, RemoteError};
use prost::Message;

use super::{PROTOCOL, VERSION};
use crate::protocol::location::{BlockLocation, FileId};

/// Runs a plan, for as long as the answer is read.
#[derive(Clone, PartialEq, Message)]
pub struct RunRequest {
    /// The client's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The parts of the physical plan, as the codec writes them; the last one is the whole.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub plan: Vec<Vec<u8>>,
    /// All options of the session.
    #[prost(message, repeated, tag = "4")]
    pub options: Vec<SessionOption>,
    /// The id of the session that planned it.
    #[prost(string, tag = "5")]
    pub session: String,
    /// What `SHOW JOBS` shows of it.
    #[prost(string, tag = "6")]
    pub name: String,
    /// The user on whose behalf it runs, if its session knows.
    #[prost(string, tag = "7")]
    pub owner: String,
    /// The id that the job has already, if its client was told one before.
    #[prost(string, tag = "8")]
    pub job: String,
    /// It runs already, and its client has lost the line: nothing but `job`, `owner` and `state` is said.
    #[prost(bool, tag = "9")]
    pub is_known: bool,
    /// With that, the [`Accepted::state`] of the scheduler that had it.
    #[prost(string, tag = "10")]
    pub state: String,
    /// Its client is in the scheduler's own process: a successor need not know of it.
    #[prost(bool, tag = "11")]
    pub ends_with_scheduler: bool,
}

/// A session option that is not at its default.
#[derive(Clone, PartialEq, Message)]
pub struct SessionOption {
    /// As in `SET`.
    #[prost(string, tag = "1")]
    pub key: String,
    /// As in `SHOW`.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What became of a plan so far.
#[derive(Clone, PartialEq, Message)]
pub struct RunUpdate {
    /// Nothing if it is something that this version does not know.
    #[prost(oneof = "run_update::News", tags = "2, 3, 4, 5")]
    pub news: Option<run_update::News>,
}

/// What a [`RunUpdate`] says.
pub mod run_update {
    /// One of these: first that it is accepted, at last how it ended.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum News {
        /// All rows have been read.
        #[prost(message, tag = "2")]
        Finished(super::Finished),
        /// There will be no rows, and why.
        #[prost(message, tag = "3")]
        Failed(super::Failed),
        /// How far it is.
        #[prost(message, tag = "4")]
        Progress(super::Progress),
        /// The plan is a job.
        #[prost(message, tag = "5")]
        Accepted(super::Accepted),
    }
}

/// A plan is a job.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Accepted {
    /// Its id.
    #[prost(string, tag = "1")]
    pub job: String,
    /// For how many milliseconds a successor of the scheduler is to be waited for, should that be gone; with 0
    /// the job is gone with it.
    #[prost(uint64, tag = "2")]
    pub patience_ms: u64,
    /// The id of the state that a successor has, too; nothing if there can be none.
    #[prost(string, tag = "3")]
    pub state: String,
}

/// How far a job is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Progress {
    /// Its stages, without the client's.
    #[prost(uint32, tag = "1")]
    pub stages: u32,
    /// Those of which nothing is left to do.
    #[prost(uint32, tag = "2")]
    pub stages_done: u32,
    /// Units so far: stages that stream get more.
    #[prost(uint64, tag = "3")]
    pub units: u64,
    /// Those that are done.
    #[prost(uint64, tag = "4")]
    pub units_done: u64,
    /// Tasks that run now, on all workers.
    #[prost(uint64, tag = "5")]
    pub tasks_running: u64,
    /// Tasks that have failed or were lost, and units that had to run again.
    #[prost(uint64, tag = "6")]
    pub repeated: u64,
    /// Rows that the last stage with a model has written, if there is one.
    #[prost(uint64, optional, tag = "7")]
    pub rows_inferred: Option<u64>,
    /// What a stage waits for that has work and no worker, if there is one.
    #[prost(string, tag = "8")]
    pub waits_for: String,
}

/// Why there will be no rows.
#[derive(Clone, PartialEq, Message)]
pub struct Failed {
    /// The [`ErrorKind`]'s name.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// What people read; nothing is decided by it.
    #[prost(string, tag = "2")]
    pub message: String,
}

impl From<RemoteError> for Failed {
    fn from(error: RemoteError) -> Self {
        Self { kind: error.kind.name().to_owned(), message: error.message }
    }
}

impl From<Failed> for RemoteError {
    fn from(failed: Failed) -> Self {
        Self::new(ErrorKind::named(&failed.kind), failed.message)
    }
}

/// All rows of a job have been read.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Finished {}

/// Asks for what a client is to read next, once there is something.
#[derive(Clone, PartialEq, Message)]
pub struct ReadRequest {
    /// The job whose rows it reads.
    #[prost(string, tag = "1")]
    pub job: String,
    /// What became of what it was last told to read.
    #[prost(message, optional, tag = "2")]
    pub done: Option<ReadDone>,
    /// The client's [`PROTOCOL`].
    #[prost(uint32, tag = "3")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "4")]
    pub version: String,
}

impl ReadRequest {
    /// A request of this process, with its versions.
    pub fn new(job: String, done: Option<ReadDone>) -> Self {
        Self { job, done, protocol: PROTOCOL, version: VERSION.to_owned() }
    }
}

/// How a client's reading ended.
#[derive(Clone, PartialEq, Message)]
pub struct ReadDone {
    /// The [`ReadAnswer::task`].
    #[prost(uint32, tag = "1")]
    pub task: u32,
    /// The first block that could not be had, if there was one.
    #[prost(message, optional, tag = "2")]
    pub lost: Option<LostBlock>,
}

/// A block that could not be had.
#[derive(Clone, PartialEq, Message)]
pub struct LostBlock {
    /// Which of the job's blocks it is.
    #[prost(message, required, tag = "1")]
    pub id: FileId,
    /// What its reader found, for people.
    #[prost(string, tag = "2")]
    pub problem: String,
}

/// What a client is to read.
#[derive(Clone, PartialEq, Message)]
pub struct ReadAnswer {
    /// The attempt to read it.
    #[prost(uint32, tag = "1")]
    pub task: u32,
    /// The same in all attempts to read the same rows.
    #[prost(uint32, tag = "2")]
    pub unit: u32,
    /// In the order of the rows.
    #[prost(message, repeated, tag = "3")]
    pub blocks: Vec<BlockLocation>,
    /// The job runs no more, and there is nothing to read.
    #[prost(bool, tag = "4")]
    pub is_over: bool,
    /// Whether what the client had read before counts. If not, a part of it was lost meanwhile, and
    /// it will be told to read the same unit again.
    #[prost(bool, tag = "5")]
    pub counts: bool,
}
