//! A physical plan becomes stages: pieces that tasks run apart, and what each reads of others.
//!
//! - `rewrites`: what a plan must not look like when it is cut
//! - `cut`: where a plan is cut
//! - `assembly`: what was cut off becomes a stage
//! - `staged`: what comes of it
//! - [`dealt`]: stages whose rows are dealt out by hash; `merges`: those that merge what others have dealt out
//! - `traits`: what the operators of a stage say of it: what it needs, whether it can be run again
//! - `input_wants`: what an operator wants of each of its inputs, so that it is right task by task
//! - `kept_joins`: the joins that Ballista's planner does not choose anew
//! - `joined_stages`: which of its stages are one
//! - `short_runs`: sorts of files, whose tasks sort little at a time
//! - `finer_shuffles`: hash shuffles of many rows, whose tasks hold little at a time; `scan_bytes`: by which both go
//! - `ranges`: the order of a query, made by several tasks; `range_windows`: window functions above it
//! - `window_functions`: what these say of themselves
//! - [`asked_order`]: the order in which a query asks for its rows
//!
//! Ballista's planner cuts at shuffles; everything else here is ours.

pub(crate) mod asked_order;
mod assembly;
mod cut;
pub(crate) mod dealt;
mod finer_shuffles;
mod input_wants;
mod joined_stages;
mod kept_joins;
mod merges;
mod range_windows;
mod ranges;
mod rewrites;
mod scan_bytes;
mod short_runs;
mod staged;
mod traits;
mod window_functions;

#[cfg(test)]
mod tests;

pub(crate) use cut::cut;
pub(crate) use staged::{PlannedStage, Reads, StagedPlan};
pub(crate) use traits::holds_model;
pub(crate) use window_functions::can_be_sent;
