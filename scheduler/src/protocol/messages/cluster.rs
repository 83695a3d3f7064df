//! What a cluster has.

use prost::Message;

use super::{PROTOCOL, VERSION};

/// What a process has to run models on.
#[derive(Clone, PartialEq, Message)]
pub struct Inventory {
    /// CPU cores that it uses, which may be fewer than its machine has.
    #[prost(uint32, tag = "1")]
    pub cpus: u32,
    /// Host memory in bytes.
    #[prost(uint64, tag = "2")]
    pub memory: u64,
    /// Accelerators that it uses.
    #[prost(message, repeated, tag = "3")]
    pub accelerators: Vec<Accelerator>,
    /// `key=value`, for people and for models that ask for them.
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
    /// Bytes that tasks may leave on its disk; nothing if all that fits there.
    #[prost(uint64, optional, tag = "5")]
    pub work_limit: Option<u64>,
}

/// An accelerator of a process: a device for models.
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
    /// A request of this process, with its versions.
    pub fn new() -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned() }
    }
}

/// All workers that attend, those that drain included.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterDescription {
    /// In the order of their ids.
    #[prost(message, repeated, tag = "1")]
    pub workers: Vec<Worker>,
}

/// A worker, as it describes itself and as the scheduler knows it.
#[derive(Clone, PartialEq, Message)]
pub struct Worker {
    /// Unique per process start.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Where it serves blocks.
    #[prost(string, tag = "2")]
    pub address: String,
    /// What it has; it does not change while it lives.
    #[prost(message, required, tag = "3")]
    pub inventory: Inventory,
    /// Whether it takes no more tasks.
    #[prost(bool, tag = "4")]
    pub draining: bool,
    /// How many of its accelerators computed, in thousandths, when it last said so.
    #[prost(uint32, tag = "5")]
    pub busy_milli: u32,
}
