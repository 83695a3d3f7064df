//! What a reader and a worker say to each other about a block.

use prost::Message;

use super::{PROTOCOL, VERSION};
use crate::protocol::location::BlockLocation;

/// Asks a worker for the files of blocks, or segments of them, one after the other.
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
    /// Those that come behind it, in their order.
    #[prost(message, repeated, tag = "4")]
    pub more: Vec<BlockLocation>,
}

impl FetchRequest {
    /// A request of this process, with its versions.
    pub fn new(block: BlockLocation, more: Vec<BlockLocation>) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.to_owned(), block, more }
    }
}

/// A part of a file: of one block, never of two.
#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    /// Its bytes, one mebibyte at most.
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: bytes::Bytes,
}

/// Where blocks lie on the machine of their worker, for whoever may be there, too.
#[derive(Clone, PartialEq, Message)]
pub struct BlockFiles {
    /// As many as were asked for, in their order.
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<BlockFilePart>,
}

/// A file, and the block in it.
#[derive(Clone, PartialEq, Message)]
pub struct BlockFilePart {
    /// The file's path, as the worker sees it.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Where the block begins, if the file has others, too.
    #[prost(uint64, optional, tag = "2")]
    pub at: Option<u64>,
    /// Whether the file was written past the page cache, and is read so.
    #[prost(bool, tag = "3")]
    pub is_direct: bool,
}
