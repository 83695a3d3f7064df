//! What the scheduler's process knows: all jobs and what happens to them, and the workers.
//!
//! - [`registry`]: all jobs (`known_jobs`), and the ways in which something happens to them; `wakes`: when
//! - `stops`: what tasks that are to stop were given, until nothing more is heard of them
//! - [`looks`]: which of them Ballista's event loop is to look at next
//! - [`job`]: one of them: its graph, its plans, and what both lead to
//! - [`book`]: what is written down of them in the journal, `written`: when; `restore`: how a successor goes on
//! - `dealt`: what tasks are told that began before all was there that they read
//! - [`fleet`]: the workers as placement sees them
//! - [`observe`]: the rows of the system tables, and how far a job is
//! - [`analysis`]: what was measured of a job, by [`stage_metrics`]
//! - [`metrics`]: what Prometheus reads, by [`totals`]
//!
//! Who decides is pure and elsewhere: [`graph`](crate::graph) and [`placement`](crate::placement).

pub(crate) mod analysis;
pub(crate) mod book;
mod dealt;
pub(crate) mod fleet;
pub(crate) mod job;
mod known_jobs;
pub(crate) mod looks;
pub(crate) mod metrics;
pub(crate) mod observe;
pub(crate) mod registry;
mod restore;
pub(crate) mod stage_metrics;
mod stops;
pub(crate) mod totals;
mod wakes;
mod written;
