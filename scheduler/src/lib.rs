//! The same road across machines: streaming stages with block lineage on Ballista.
//!
//! - [`graph`]: stages, units, blocks and attempts as a pure state machine: events in, actions out
//! - [`placement`]: (jobs, workers) → bindings: pure
//!
//! Neither names a runtime, a clock or a network: time comes in as a value, and what must happen
//! outside goes out as a value. That is what lets a test drive both through a hundred thousand
//! random histories (`simulation`).

pub mod graph;
pub mod placement;
#[cfg(test)]
mod simulation;
