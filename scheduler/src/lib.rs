//! The same road across machines: a scheduler and workers on Ballista.
//!
//! - [`gate`]: what a process that ends waits for
//! - [`graph`]: one job as a state machine: stages, units, blocks, and what is lost and made again
//! - [`placement`]: which ready work goes to which worker
//! - [`ballista`]: the only folder that imports `ballista_*`: the scheduler's process, a worker's
//!   process, and the plan node by which a session runs a query on them
//! - [`block`]: what a task hands to the next stage, as files with an address and a checksum
//! - [`inventory`]: what workers have, as a session plans for it
//! - [`metrics`]: figures for Prometheus
//! - [`owner`]: on whose behalf a session runs
//! - [`rpc`]: what Ballista's messages have no room for: inventories, and whether a worker lives
//! - [`tls`]: connections that are encrypted, between processes that know each other
//! - [`tables`]: what jobs and workers do, as tables that SQL reads
//!
//! A query is planned where its session is, with the inventory of the whole cluster, and travels
//! as a physical plan. What runs in one process therefore runs here unchanged: workers take all
//! they need from the plan, and a model declaration in it carries the URL and the hash by which
//! they fetch the package.

pub mod ballista;
pub mod block;
pub mod gate;
pub mod graph;
pub mod inventory;
pub mod metrics;
pub mod owner;
pub mod placement;
pub mod rpc;
#[cfg(test)]
mod simulation;
pub mod tables;
pub mod tls;

pub use ballista::client::Cluster;
pub use ballista::functions::Functions;
pub use ballista::scheduler::{RunningScheduler, Scheduler};
pub use ballista::standalone::Standalone;
pub use ballista::worker::{Ports, RunningWorker, Worker};
pub use gate::{Gate, Inside};
pub use owner::Owner;
pub use tls::Tls;
