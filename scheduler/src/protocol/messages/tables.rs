//! What people see of a cluster: rows of system tables, and what was measured of a job.

use prost::Message;

/// Asks for the rows of a system table.
#[derive(Clone, PartialEq, Message)]
pub struct TableRequest {
    /// The client's [`PROTOCOL`](super::PROTOCOL).
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The table's name, without `forebay.`.
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
    /// The client's [`PROTOCOL`](super::PROTOCOL).
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The client's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The job, which may be over.
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
