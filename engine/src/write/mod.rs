//! Writes that are there as a whole or not at all.
//!
//! ```text
//!  CommitExec            one: opens a staging folder, and makes what was written there visible at the end
//!    WriteExec           N partitions, on a cluster N tasks: rows → files in the staging folder
//!      <rows>
//! ```
//!
//! Until the commit nothing of a write can be seen: what it writes lies in a *staging folder*,
//! `_forebay-<id>`, under names without the extension of the format. Each attempt at a partition has a
//! folder of its own in there, so that two attempts cannot meet; which files count is told by the rows
//! that come up to the commit, and only attempts that count have rows there.
//!
//! ```text
//!  data/_forebay-7c0e…/lease               written anew every minute while the write is at work
//!                     /empty               a file without rows: the format can hold the columns
//!                     /1f…/0, 1, …         the files of an attempt
//!                     /decided             what is moved where, once that has been decided
//!                     /taken_back          the same, once that has been taken back
//! ```
//!
//! - `format`: DataFusion's sinks for files of a format, and two of our own, `arrow` and `parquet`, which write `one_file`; [`Target`]: what is written where
//! - `delta`, `delta_commit`: the same for the files of a Delta table, which count when its log names them
//! - `staging`: the folder, its lease, its removal; `publish`: the commit, `noted`: what it notes
//!   there; [`clean`]: what crashes left
//! - `partitions`: rows by the values of partition columns; `attempt`: rows into files
//! - `begun`: a write from its staging folder to its commit; [`Fence`]: what may keep it from that
//! - `exec`, `commit`: the two operators
//! - `in_parts`: a third, in place of the commit, of writes of which what is complete is kept; `resume`: how

mod arrow;
mod attempt;
mod begun;
pub mod clean;
mod commit;
mod delta;
mod delta_commit;
mod exec;
mod fence;
mod format;
mod in_parts;
mod noted;
mod one_file;
mod parquet;
mod partitions;
mod publish;
pub mod resume;
mod staging;
mod target;
mod views;
pub mod wire;

#[cfg(test)]
mod tests;

pub use arrow::ArrowSink;
pub use commit::CommitExec;
pub use delta::{DeltaSink, DeltaWrite, WriteId};
pub use exec::WriteExec;
pub use fence::{CommitFence, Fence};
pub use format::Format;
pub use in_parts::{InPartsExec, PartPlans, Parts, Rest, RestPlan, StagedFile};
pub use staging::is_staged;
pub use target::Target;
