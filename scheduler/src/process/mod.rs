//! The processes of a cluster: what each starts, and how it ends.
//!
//! - [`scheduler`]: one: has the jobs
//! - [`worker`]: as many as there are machines: run their tasks
//! - [`standalone`]: both in one, for trying and testing

pub mod scheduler;
pub mod standalone;
pub mod worker;
