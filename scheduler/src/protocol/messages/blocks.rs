//! What a reader and a worker say to each other about a block.

use prost::Message;

use super::{PROTOCOL, VERSION};
use crate::protocol::location::BlockLocation;

/// Asks a worker for the file of a block.
#[derive(Clone, PartialEq, Message)]
pub struct FetchRequest {
    /// The reader's [`PROTOCOL`].
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    /// The reader's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The block: its size and checksum are compared with the file's.
    #[prost(message, required, tag = "3")]
    pub block: BlockLocation,
}

impl FetchRequest {
    /// A request of this process, with its versions.
    pub fn new(block: BlockLocation) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned(), block }
    }
}

/// A part of a file.
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    /// Its bytes, one mebibyte at most.
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: bytes::Bytes,
}
