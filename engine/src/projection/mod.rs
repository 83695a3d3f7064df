//! A projection whose batches stay within some bytes, whatever its functions make of a row.
//!
//! DataFusion's batches are counted in rows: a function that makes a megabyte of each row makes
//! gigabytes of a batch, before any operator above can hold it back. Here a batch is computed a few
//! rows at a time. How many follows from what the rows before took, and from nothing else: a task
//! that runs again makes the same batches.
//!
//! - `exec`: the operator
//! - `steps`: an expression as one function at a time, so that what lies between two is weighed too
//! - `pace`: how many rows come next
//! - `wire`: its message

mod exec;
mod pace;
mod steps;
pub mod wire;

pub use exec::BoundedProjectionExec;

#[cfg(test)]
mod tests;
