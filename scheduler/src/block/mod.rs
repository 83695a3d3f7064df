//! Blocks: what a task hands to the next stage, as files with an address and a checksum.
//!
//! ```text
//!  task ── BlockWriterExec ──▶ <work dir>/<job>/<stage>/blocks/<task>-<seq>.arrow     worker A
//!                                   │ sealed: bytes, rows, checksum
//!                                   ▼
//!  task ◀── BlockReaderExec ◀── own file, that of a neighbour, or Blocks.Fetch over gRPC    worker B
//! ```
//!
//! The blocks of a sorted run, which are small and many, share files.
//!
//! - [`store`]: the files of one worker; `job_blocks`: which blocks lie in which; [`open_block`]: one that is being written, `counted_file` its file;
//!   [`room`]: how many bytes they may take; [`cut`]: rows → blocks, by a rule that depends on them alone
//! - [`hash_writer`]: the root of a stage that deals its rows out by hash; `round`: the rows of a block of it; [`groups`]:
//!   partitions that have a segment together;
//!   `open_round`: that block, which has a segment for each partition; `small_rounds`: several become one
//! - [`run_order`]: the order of a sorted run; [`row_keys`]: the keys of its rows as bytes; `range`: the rows
//!   between two of them; `row_digest`: whether it has the same keys when it is made again; [`range_window`]: window
//!   functions of those rows
//! - [`writer`]: the root of a stage; [`reader`]: a leaf of the next; `rest`: what comes after that has begun
//! - [`service`]: serves blocks to other workers; [`neighbours`]: reads the files of those on the same machine; `block_file`: a
//!   block's file as it is read, `on_disk`: the threads that read; `past_cache`: files of which the page cache has nothing
//! - [`failure`]: what a reader says of a block that it cannot have
//! - [`wire`]: protobuf forms
//!
//! A reader holds at most two blocks in memory, both reserved, and yields a row only after the
//! checksum of its block was right. Names no `ballista_*`.

mod block_file;
mod compression;
mod counted_file;
pub mod cut;
mod decoded;
pub mod failure;
pub mod groups;
pub mod hash_writer;
mod job_blocks;
pub mod neighbours;
mod on_disk;
pub mod open_block;
mod open_round;
mod past_cache;
mod range;
pub mod range_window;
pub mod reader;
mod rest;
pub mod room;
mod round;
mod row_digest;
pub mod row_keys;
pub mod run_order;
pub mod service;
mod serving;
mod small_rounds;
pub mod store;
pub mod wire;
pub mod writer;

pub use compression::ByteCost;
pub use cut::BlockSize;
pub use failure::{BlockError, DiskError, says_full};
pub use groups::Groups;
pub use hash_writer::HashWriterExec;
pub use neighbours::Neighbours;
pub use range_window::RangeWindowExec;
pub use reader::BlockReaderExec;
pub use rest::Rest;
pub use store::BlockStore;
pub use writer::BlockWriterExec;
