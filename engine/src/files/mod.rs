//! Files as rows: `read_files('photos/*.jpg')`.
//!
//! ```text
//!  files of a partition ──> read ahead by a few ──> batches of some megabytes
//! ```
//!
//! Which files there are is found out once, by whoever plans the query; their bytes are read where
//! the operator runs, a few at a time, and only if somebody needs them.

mod exec;
mod file;
mod reader;
mod rows;
pub mod wire;

#[cfg(test)]
mod tests;

pub use exec::ReadFilesExec;
pub use file::{File, OnUnreadable};
