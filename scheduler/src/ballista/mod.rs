//! Ballista, extended through its public traits. No other folder imports `ballista_*`.
//!
//! - [`session`]: functions, options and codec that the scheduler and every worker share
//! - [`scheduler`]: the scheduler's process; [`jobs`]: plans that clients send
//! - [`worker`]: a worker's process; [`engine`]: how it runs a task
//! - [`distribute`]: which part of a plan leaves the client; [`cluster_exec`] and [`client`]: run it there

pub mod client;
pub mod cluster_exec;
pub mod distribute;
mod engine;
mod jobs;
pub mod scheduler;
mod session;
mod stage_traits;
mod stages;
pub mod worker;
