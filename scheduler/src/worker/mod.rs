//! What a worker does with a task.
//!
//! - [`tasks`]: takes tasks, runs them, says how they ended
//! - [`engine`]: how one is run: on the worker's own devices
//! - [`metrics`]: what Prometheus reads

pub(crate) mod engine;
pub(crate) mod metrics;
pub(crate) mod tasks;
