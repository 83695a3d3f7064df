//! What a worker does with a task.
//!
//! - [`tasks`]: takes tasks, runs them, says how they ended
//! - [`account`]: what another scheduler must be told of them
//! - [`engine`]: how one is run: on the worker's own devices
//! - [`joins`]: hash joins: which side is built, and once for all tasks
//! - [`metrics`]: what Prometheus reads

pub(crate) mod account;
pub(crate) mod engine;
pub(crate) mod joins;
pub(crate) mod metrics;
pub(crate) mod tasks;
