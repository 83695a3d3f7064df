//! A session's end of a cluster.
//!
//! - [`cluster`]: its connection
//! - [`distribute`]: which part of a plan leaves the session, and as what, of writes in `direct_writes`;
//!   [`cluster_exec`]: stands for it there; `rows`: its rows, while it runs
//! - [`explain`]: what `EXPLAIN` says of that
//! - [`system_schema`]: what the scheduler knows, as tables; [`detached_jobs`]: and what a server runs for
//!   clients that are gone

pub mod cluster;
pub mod cluster_exec;
pub mod detached_jobs;
mod direct_writes;
pub mod distribute;
pub mod explain;
mod rows;
pub mod system_schema;
