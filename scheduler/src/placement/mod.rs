//! Which ready work goes to which worker: pure.
//!
//! [`place`] is called after every event. It takes the jobs, the workers and the time, and binds
//! until nothing more fits. What is taken of a worker is derived from the tasks that run there, or were
//! canceled and have not ended, whenever these have changed, so that it cannot leak ([`Fleet`]).
//!
//! # The rules
//!
//! 1. **Which job**: the one whose largest part of the cores, the memory or the accelerators,
//!    divided by its weight, is least. One task, and then again.
//! 2. **Which stage**: those that need accelerators first, then consumers before producers, so that
//!    what is there is used up before more is made.
//! 3. **Whether**: a stage that streams to others must fit into the budgets of its edges
//!    ([`Admission`]). Edges on which nothing is in flight always admit one task.
//! 4. **Which worker**: one that holds the input, or most of what was merged of it, else the next that fits. A task without an
//!    accelerator goes to workers without any first, then to those whose accelerators could run
//!    what reads it. A worker where the unit has failed comes last, and one that stops never. Nor one
//!    that says how much it may keep and has no room for what the task writes (`room.rs`): the task
//!    waits if room will be made, and goes there all the same if no other has room either. What reads more
//!    than it writes goes where it likes.
//! 5. **What**: small blocks of one edge together, up to the stage's `group_bytes_max` and
//!    `group_rows_max`, or a multiple of these rows where many blocks wait: those on the worker, or,
//!    if it holds none, the oldest from anywhere.
//! 6. **What would wait**: tasks that [begin early](crate::graph::JobGraph::begins_early) are placed when all else is, and
//!    nothing wants a worker or a budget. When something does later, they go ([`in_the_way`]).
//!
//! Within a round nothing becomes free, so a worker that was full for a stage is not looked at again
//! for it, and one whose cores are all taken is not looked at for a stage that needs some: a round costs
//! O(workers with free cores + bindings) per stage, whatever the number of blocks.
//!
//! # Why it cannot deadlock
//!
//! Suppose that nothing runs, that the job has work, and that a worker is there for each of its
//! stages. Among the units that must run, take one of the earliest stage. Its inputs are there: what
//! is not there belongs to a unit that must run, of an earlier stage. So it is ready, or a block is
//! ready to become a unit, and nothing takes the workers that it needs. Only a budget or a worker's room
//! can hold it back, and a job of which nothing runs has one task admitted whatever they say (`Queue`).
//! It needs no slot of any other task: consumers are bound to sealed blocks only and never wait for
//! a producer while they hold a worker, so that a cluster of one slot ends a job of any depth. Those that
//! begin early do wait, and count as if they did not run: what they wait for takes their place.
//!
//! Budgets alone could come to that point: two joins, each of which waits for a stage behind the
//! other's held back producer. Where it is plain from the graph that a budget could only delay, the
//! edge has none: a consumer that waits for the whole of what its own producer feeds.

mod budget;
mod early;
mod fleet;
mod job;
mod policy;
mod room;
mod round;
mod workers;

#[cfg(test)]
mod tests;

pub use budget::{Operator, PaperBudget, seconds_per_partition};
pub use early::in_the_way;
pub use fleet::Fleet;
pub use forebay_planner::Admission;
pub use job::Job;
pub use policy::{Binding, place};
pub use workers::{Device, MissingResource, WorkerState, could_ever_fit, waiting_for};
