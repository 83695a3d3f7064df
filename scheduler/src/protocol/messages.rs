//! What travels, as protobuf. Fields are never renumbered.

use forebay_engine::{ErrorKind, RemoteError};
use prost::Message;
use tonic::Status;

use crate::protocol::location::{BlockLocation, FileId};

/// Bumped when a worker and a scheduler could no longer understand each other.
pub const PROTOCOL: u32 = 4;

/// The version of this process, which travels for people beside [`PROTOCOL`].
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Refuses a caller of another protocol: `who`, which said so of itself, calls `callee`.
pub(crate) fn check_protocol(
    who: &str,
    protocol: u32,
    version: &str,
    callee: &str,
) -> Result<(), Status> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "{who} speaks protocol {protocol} (forebay {version}), {callee} {PROTOCOL} (forebay \
         {VERSION}); run the same version on all machines"
    )))
}

/// What a process has to run models on.
#[derive(Clone, PartialEq, Message)]
pub struct Inventory {
    /// CPU cores.
    #[prost(uint32, tag = "1")]
    pub cpus: u32,
    /// Host memory in bytes.
    #[prost(uint64, tag = "2")]
    pub memory: u64,
    /// Accelerators.
    #[prost(message, repeated, tag = "3")]
    pub accelerators: Vec<Accelerator>,
    /// `key=value`, for people and for models that ask for them.
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
}

/// One accelerator.
#[derive(Clone, PartialEq, Message)]
pub struct Accelerator {
    /// `cuda` or `emulated`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Its number within its kind and process.
    #[prost(uint32, tag = "2")]
    pub ordinal: u32,
    /// Its name, for people.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its memory in bytes.
    #[prost(uint64, tag = "4")]
    pub memory: u64,
}

/// Asks for a [`ClusterDescription`].
#[derive(Clone, PartialEq, Message)]
pub struct DescribeRequest {
    /// The client's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
}

impl DescribeRequest {
    /// This process's.
    pub fn new() -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned() }
    }
}

/// All workers.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterDescription {
    /// In the order of their ids.
    #[prost(message, repeated, tag = "1")]
    pub workers: Vec<Worker>,
}

/// One worker.
#[derive(Clone, PartialEq, Message)]
pub struct Worker {
    /// Unique per process start.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Where it serves blocks.
    #[prost(string, tag = "2")]
    pub address: String,
    /// What it has.
    #[prost(message, required, tag = "3")]
    pub inventory: Inventory,
    /// Whether it takes no more tasks.
    #[prost(bool, tag = "4")]
    pub draining: bool,
    /// How many of its accelerators computed, in thousandths, when it last said so.
    #[prost(uint32, tag = "5")]
    pub busy_milli: u32,
}

/// From a worker to the scheduler.
#[derive(Clone, PartialEq, Message)]
pub struct FromWorker {
    /// What it says.
    #[prost(oneof = "from_worker::Say", tags = "1, 2, 3, 4, 5")]
    pub say: Option<from_worker::Say>,
}

/// What [`FromWorker`] says.
pub mod from_worker {
    /// One of these.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Say {
        /// The first message.
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
    /// Its job.
    #[prost(string, tag = "1")]
    pub job: String,
    /// Which of the job's blocks it is.
    #[prost(message, required, tag = "2")]
    pub id: FileId,
    /// Size of its file.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Its rows.
    #[prost(uint64, tag = "4")]
    pub rows: u64,
    /// CRC-32 of its file.
    #[prost(uint32, tag = "5")]
    pub checksum: u32,
}

/// The first message of a worker.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// The worker's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// Its version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Who it is.
    #[prost(message, required, tag = "3")]
    pub worker: Worker,
}

/// A worker takes no more tasks.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Draining {}

/// From the scheduler to a worker.
#[derive(Clone, PartialEq, Message)]
pub struct ToWorker {
    /// What it says.
    #[prost(oneof = "to_worker::Say", tags = "1, 2, 3, 4, 5")]
    pub say: Option<to_worker::Say>,
}

/// What [`ToWorker`] says.
pub mod to_worker {
    /// One of these.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Say {
        /// The worker is known.
        #[prost(message, tag = "1")]
        Welcome(super::Welcome),
        /// A task is to stop.
        #[prost(message, tag = "2")]
        Cancel(super::Cancel),
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

/// A task is to stop.
#[derive(Clone, PartialEq, Message)]
pub struct Cancel {
    /// Its job.
    #[prost(string, tag = "1")]
    pub job: String,
    /// Its stage.
    #[prost(uint32, tag = "2")]
    pub stage: u32,
    /// The task.
    #[prost(uint32, tag = "3")]
    pub task: u32,
}

/// A block is needed no more.
#[derive(Clone, PartialEq, Message)]
pub struct Free {
    /// Its job.
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
}

/// Runs a plan.
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
    /// The session's id.
    #[prost(string, tag = "5")]
    pub session: String,
    /// What `SHOW JOBS` shows of it.
    #[prost(string, tag = "6")]
    pub name: String,
    /// The user on whose behalf it runs, if its session knows.
    #[prost(string, tag = "7")]
    pub owner: String,
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
    /// What is new.
    #[prost(oneof = "run_update::News", tags = "1, 2, 3, 4")]
    pub news: Option<run_update::News>,
}

/// What a [`RunUpdate`] says.
pub mod run_update {
    /// One of these.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum News {
        /// The plan is a job of this id.
        #[prost(string, tag = "1")]
        Accepted(String),
        /// All rows have been read.
        #[prost(message, tag = "2")]
        Finished(super::Finished),
        /// There will be no rows, and why.
        #[prost(message, tag = "3")]
        Failed(super::Failed),
        /// How far it is.
        #[prost(message, tag = "4")]
        Progress(super::Progress),
    }
}

/// How far a job is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Progress {
    /// Its stages.
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
    /// Tasks that run.
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
    /// What people read.
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
    /// Its job.
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
    /// This process's.
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
    /// Why.
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

/// Asks for the rows of a system table.
#[derive(Clone, PartialEq, Message)]
pub struct TableRequest {
    /// The client's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The table's name.
    #[prost(string, tag = "3")]
    pub table: String,
    /// Rows of this user's jobs only; of all jobs if empty.
    #[prost(string, tag = "5")]
    pub owner: String,
}

/// The rows of a system table.
#[derive(Clone, PartialEq, Message)]
pub struct TableRows {
    /// An Arrow IPC stream.
    #[prost(bytes = "vec", tag = "1")]
    pub stream: Vec<u8>,
}

/// Asks for what was measured of a job.
#[derive(Clone, PartialEq, Message)]
pub struct AnalyzeRequest {
    /// The client's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The job.
    #[prost(string, tag = "3")]
    pub job: String,
}

/// What was measured of a job, for people.
#[derive(Clone, PartialEq, Message)]
pub struct Analysis {
    /// Its stages, with their plans.
    #[prost(string, tag = "1")]
    pub stages: String,
    /// The bottleneck, and what to do about it; empty if nothing was measured.
    #[prost(string, tag = "2")]
    pub verdict: String,
}

/// Asks a worker for the file of a block.
#[derive(Clone, PartialEq, Message)]
pub struct FetchRequest {
    /// The reader's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The reader's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The block.
    #[prost(message, required, tag = "3")]
    pub block: BlockLocation,
}

impl FetchRequest {
    /// This process's.
    pub fn new(block: BlockLocation) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned(), block }
    }
}

/// A part of a file.
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    /// Its bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: bytes::Bytes,
}
