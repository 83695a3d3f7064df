//! From text to rows, in a session.
//!
//! - `session`: in what statements run
//! - `statement`: for one or many executions; `plan`: parsed, checked and planned; `planning`: on which
//!   threads; `parameters`: their numbers, types and values
//! - `query`: runs, and is read; `progress`: how far it is
//! - `on_jobs`: statements on detached jobs, and `job_rows`, what they give; `detached`: what a job does;
//!   `resumed`: how it goes on if it did not finish

mod detached;
mod job_rows;
mod on_jobs;
mod parameters;
pub(super) mod plan;
mod planning;
mod progress;
pub(super) mod query;
mod resumed;
pub(super) mod session;
pub(super) mod statement;
