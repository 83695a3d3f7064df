//! Ballista, extended through its public traits. No other folder imports `ballista_*`.
//!
//! - `session`: functions, options and codec that the scheduler and every worker share;
//!   [`functions`]: those that a program adds
//! - [`scheduler`]: the scheduler's process; `jobs`: plans that clients send
//! - `cluster_state`: binds tasks to workers; `stages`: cuts a job's plan into stages, by
//!   `stage_traits`; `task_plan`: fills a stage's plan in for one task
//! - `registry`: all jobs; `running`: one of them; `execution_graph`: what Ballista sees of it
//! - `fleet`: the workers as placement sees them
//! - `observe`: the rows of the system tables; `analysis`: what was measured of a job;
//!   `figures`: what Prometheus reads
//! - [`worker`]: a worker's process; `executor`: takes tasks and says how they ended; `engine`: how
//!   one is run
//! - `calls`: how connections are made when they are encrypted
//! - [`standalone`]: both in one process
//! - `status`: how a task ended, from the worker to the graph
//! - [`distribute`]: which part of a plan leaves the client; [`cluster_exec`] and [`client`]: run it
//!   there; `result`: its rows, while it runs; [`explain`]: what `EXPLAIN` says of that

mod analysis;
mod asked_order;
mod calls;
pub mod client;
pub mod cluster_exec;
mod cluster_state;
pub mod distribute;
mod engine;
mod execution_graph;
mod executor;
pub mod explain;
mod figures;
mod fleet;
pub mod functions;
mod input_wants;
mod jobs;
mod observe;
mod plan_parts;
mod registry;
mod result;
mod running;
pub mod scheduler;
mod session;
mod stage_traits;
mod stages;
pub mod standalone;
mod status;
mod task_plan;
mod wakes;
pub mod worker;
