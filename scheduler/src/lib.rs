//! The same road across machines: streaming stages with block lineage on Ballista.
//!
//! This crate has no behaviour yet. It marks where distribution goes, so that the crates below
//! keep its fences from the start:
//!
//! - `graph`: stages, blocks and attempts as a pure state machine: events in, actions out
//! - `placement`: (tasks, workers) → bindings: pure
//! - `ballista`: the only folder that will import `ballista_*`
//! - `worker`: the process that runs tasks: devices, model cache, block store
//!
//! What it builds on is in place: a plan's operators take all they need through their
//! constructors, exchanges stand exactly where stages will be cut, and a model declaration carries
//! the URL and the hash by which a worker fetches the package.

pub use forebay_planner as planner;
