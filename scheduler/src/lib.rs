//! The same road across machines: a scheduler and workers on Ballista.
//!
//! From what a session sees to what decides:
//!
//! - [`client`]: a session's end: which part of a plan leaves it, and its rows
//! - [`process`]: the scheduler's process, a worker's, and both in one
//! - `worker`: what a worker does with a task
//! - `ballista`: what Ballista needs to run our jobs; nothing else knows how it works inside
//! - `coordinator`: what the scheduler's process knows: jobs, workers, and what is told of them
//! - `stages`: a physical plan becomes stages
//! - [`block`]: what a task hands to the next stage, as files with an address and a checksum
//! - [`tables`]: what jobs and workers do, as rows
//! - [`protocol`]: what processes say to each other beside Ballista's messages, and TLS
//! - [`placement`]: which ready work goes to which worker
//! - [`journal`]: what a scheduler must not forget, and which one has that
//! - [`graph`]: one job as a state machine: stages, units, blocks, and what is lost and made again
//! - [`resources`]: what a task takes of its worker
//! - [`functions`], [`gate`], [`inventory`], [`job_id`], [`metrics`], [`owner`]: what several of these have in
//!   common
//!
//! A query is planned where its session is, with the inventory of the whole cluster, and travels
//! as a physical plan. What runs in one process therefore runs here unchanged: workers take all
//! they need from the plan, and a model declaration in it carries the URL and the hash by which
//! they fetch the package.

mod ballista;
pub mod block;
pub mod client;
mod coordinator;
pub mod functions;
pub mod gate;
pub mod graph;
pub mod inventory;
pub mod job_id;
pub mod journal;
pub mod metrics;
mod no_panic;
pub mod owner;
pub mod placement;
pub mod process;
pub mod protocol;
pub mod resources;
#[cfg(test)]
mod simulation;
mod stages;
pub mod tables;
mod worker;

pub use client::cluster::Cluster;
pub use functions::Functions;
pub use gate::{Gate, Inside};
pub use job_id::{GivenId, next_job_id};
pub use owner::Owner;
pub use process::scheduler::{RunningScheduler, Scheduler};
pub use process::standalone::Standalone;
pub use process::worker::{Ports, RunningWorker, Worker};
pub use protocol::tls::Tls;
