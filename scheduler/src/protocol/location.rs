//! Where a block is, and what it must hold.

use std::fmt;

use prost::Message;

/// A block on the worker that wrote it, which is in a file of this name, or behind others in that of one of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
pub struct FileId {
    /// The stage that wrote it.
    #[prost(uint32, tag = "1")]
    pub stage: u32,
    /// The task, an attempt at one unit of the stage.
    #[prost(uint32, tag = "2")]
    pub task: u32,
    /// Its place among the blocks of the task.
    #[prost(uint32, tag = "3")]
    pub seq: u32,
}

impl fmt::Display for FileId {
    /// `2/7/0`: stage, task, place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.stage, self.task, self.seq)
    }
}

/// A sealed block: who has it, and what a reader must find there.
#[derive(Clone, PartialEq, Message)]
pub struct BlockLocation {
    /// The job it belongs to.
    #[prost(string, tag = "1")]
    pub job: String,
    /// Which of the job's blocks it is.
    #[prost(message, required, tag = "2")]
    pub id: FileId,
    /// The worker that holds it.
    #[prost(string, tag = "3")]
    pub worker: String,
    /// `host:port` where that worker serves it.
    #[prost(string, tag = "4")]
    pub address: String,
    /// Size of its file: what a reader needs of memory, beside what it decodes.
    #[prost(uint64, tag = "5")]
    pub bytes: u64,
    /// Its rows. A reader that finds another number fails.
    #[prost(uint64, tag = "6")]
    pub rows: u64,
    /// CRC-32 of its file.
    #[prost(uint32, tag = "7")]
    pub checksum: u32,
    /// Of a hash shuffle, where the segment of a partition begins in the file: bytes, rows and checksum are those
    /// of the segment then. None if they are those of the whole file.
    #[prost(uint64, optional, tag = "8")]
    pub segment_at: Option<u64>,
}
