//! Operators that run models inside a query, and the devices that they run on.
//!
//! - [`claims`]: what messages of Arrow say of themselves
//! - [`delta`]: tables whose log says which files count
//! - [`device`]: what this process has, who holds which share of it, which models are loaded
//! - [`exchange`]: M producer partitions → N replicas, bounded by bytes, re-batching
//! - [`files`]: files as rows
//! - [`inference`]: a model's transform and its forward pass as two operators
//! - [`projection`]: a projection whose batches stay within some bytes
//! - [`SpillingJoinExec`]: a hash join that goes to disk when memory is short
//! - [`RunMergeExec`]: a merge of many sorted runs
//! - [`RunReport`]: what a plan has done so far, and its bottleneck
//! - [`weight`]: what the rows of a batch weigh
//! - [`write`](mod@write): rows into files that are there as a whole or not at all
//! - [`wire`]: what the bytes of these operators share when a plan is sent to another process
//!
//! ```text
//! [RestoreOrderExec]            only when the plan needs the input's order: N → 1 partition
//!   InferenceExec               N partitions, one per replica
//!     StreamingExchangeExec     M → N
//!       TransformExec           M partitions, appends the prepared columns
//!         <input>
//! ```
//!
//! Operators receive all they need through their constructors; only [`device::Devices`], the state
//! of this process, comes with the task context. Models and runtimes are `forebay-udf`'s: nothing
//! here knows a tensor, and nothing here knows SQL.

pub mod arrow_files;
mod carry;
mod checker;
mod claimed_order;
pub mod claims;
pub mod delta;
pub mod device;
pub mod error;
mod error_kind;
pub mod exchange;
mod file_bytes;
pub mod files;
pub mod inference;
mod limited_sort;
mod loop_join;
mod outside;
mod per_execution;
pub mod projection;
mod read_ahead;
mod report;
mod run_merge;
pub mod sort_at_once;
mod sorted_rows;
mod spilling_join;
pub mod unreserved;
pub mod weight;
pub mod wire;
pub mod write;

#[cfg(test)]
mod testing;

pub use claimed_order::{in_claimed_order, in_order};
pub use device::{Accelerator, Devices, Inventory, Lease, Placement};
pub use error::EngineError;
pub use error_kind::{ErrorKind, RemoteError, chain};
pub use exchange::{ExchangeOptions, RestoreOrderExec, Sharing, StreamingExchangeExec};
pub use file_bytes::read_at;
pub use files::ReadFilesExec;
pub use inference::{InferenceExec, TransformExec};
pub use limited_sort::LimitedSortExec;
pub use loop_join::LoopJoinExec;
pub use projection::BoundedProjectionExec;
pub use read_ahead::read_ahead;
pub use report::{InferenceReport, RunReport};
pub use run_merge::RunMergeExec;
pub use spilling_join::SpillingJoinExec;
pub use write::{CommitExec, InPartsExec, WriteExec};

/// The column that holds a row's length in tokens, as the length of its list.
pub const TOKENS_COLUMN: &str = "__forebay_tokens";
/// The column that holds a row's position in the exchange's input.
pub const SEQUENCE_COLUMN: &str = "__forebay_seq";
/// The column that numbers the inputs of a batch: neighbors with one number have equal inputs.
pub const SHARE_COLUMN: &str = "__forebay_share";
/// The column that holds why a row's transform failed.
pub const ROW_ERROR_COLUMN: &str = "__forebay_error";
