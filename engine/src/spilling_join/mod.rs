//! A hash join whose build side may be larger than the memory: a Grace hash join made of DataFusion's.
//!
//! DataFusion's join holds its build side in memory, or ends the query. This one gathers the build side first, in
//! memory that it has asked for. What fits is joined as ever. When the pool refuses, both sides go to disk in parts
//! by a hash of their keys, and each part is a join of its own:
//!
//! ```text
//!  build side ──► gathered ──► fits ──────────────────────► DataFusion's join ──► rows
//!                    │                                              ▲
//!                    └─► refused: 16 parts of each side on disk ────┤ part by part, each gathered,
//!                                    ▲        │                     │ and parted again if refused
//!                                    └────────┘                     │
//!                 a part that stays large (one key has most of it) ─┘ in pieces that fit
//! ```
//!
//! **Pieces.** Rows of one key cannot be parted by it. They are joined a piece at a time, and each piece meets all
//! rows of the other side, so what a row of the *pieces'* side has met is known at the end of its piece. That side
//! is the build side, but for joins that give rows of the probe side by whether anything has met them: these are
//! turned around, and the probe side is taken in pieces. A full join is both: a left join, and then those rows of
//! the probe side that nothing has met.
//!
//! **NULLs** meet nothing, unless they are equal to each other, and are dealt out to all parts. For `NOT IN` they
//! are a part of their own: one on the probe side is the end of the join.
//!
//! **Memory.** The pool never makes a join wait: what it waits for could wait for what the join reads. A join
//! that is refused can always go on with a little memory (`memory`). An eighth of the limit is left to operators
//! that cannot do with less.
//!
//! **Order.** A join that claims its probe side's order has it after parting, too: then the rows are sorted.
//!
//! **Plans.** To everybody who looks at a plan the operator is the `HashJoinExec` that it holds, and it is one when
//! the plan is sent to another process.
//!
//! - `exec`: the operator, and `joining`: the rows of a partition of it
//! - `sides`: what DataFusion's join takes its inputs from, and `run`: what both share while it runs
//! - `parts`: rows on disk, and `pieces`: the build side a piece at a time
//! - `shape`: what the join and those of its parts have in common

mod exec;
mod joining;
mod memory;
mod parts;
mod pieces;
mod run;
mod shape;
mod sides;

pub use exec::SpillingJoinExec;

#[cfg(test)]
mod tests;
