//! Tables of Delta Lake: a folder of Parquet files, and a log that says which of them count.
//!
//! The log is `deltalake`'s to read and to write: protocol, checkpoints, conflicts of writers. Files are
//! read and written by DataFusion's operators like any others, so that a scan or a write is a plan that
//! every process can run. What a table may have that these would not see (deletion vectors, mapped columns)
//! is refused by name.
//!
//! - `log`: the log of a table; `snapshot`: what it says at one version
//! - `inside`: what keeps its reader in the table's folder; `entries`: how it is written to
//! - `files`: the files of a version, with the values of partition columns and statistics
//! - `types`: which types of Arrow the columns of a table can have
//! - `stats`: what a commit says of a new file; `transaction`: the commit

mod entries;
mod error;
mod files;
mod inside;
mod log;
mod snapshot;
mod stats;
mod transaction;
mod types;

pub use error::DeltaError;
pub use files::TableFile;
pub use log::Log;
pub use snapshot::Snapshot;
pub(crate) use stats::stats_of;
pub(crate) use transaction::{CommitError, NewFile, Transaction};
pub(crate) use types::NULL_FOLDER;
pub use types::stored_as;

#[cfg(test)]
mod tests;
