//! Stages, units, blocks and attempts of one job: a pure state machine.
//!
//! [`Event`]s come in (reports of workers, workers lost), [`Action`]s go out (tasks to cancel,
//! blocks to delete, the end of the job), and [`JobGraph::bind`] makes tasks of what is ready. Time
//! is a value, and nothing here names a runtime, a network or a plan: whoever drives it does.
//!
//! # What there is
//!
//! A **stage** is a plan fragment of one resource class. Its **units** are the portions of its
//! input: what is run, and what is run again. A **task** is one attempt at one unit on one worker;
//! attempts are appended, never overwritten. A unit's output is a list of **blocks**.
//!
//! ```text
//!  edge into a stage        its units                       a unit is ready when
//!  ───────────────────────  ──────────────────────────────  ─────────────────────────────────────
//!  none: a scan             one per partition               at once
//!  Streaming(Block)         a group of sealed blocks,       its blocks are there; the group is
//!                           made when it is bound           frozen: a retry takes the same
//!  Streaming(Unit)          one per unit of the producer    that unit's whole output is there
//!  Streaming(Units)         a group of the producer's       their whole outputs are there; the group
//!                           units, made when it is bound    is frozen
//!  Blocking, Broadcast,     one per partition               the producer stage is complete
//!  Hash                                                     (pipelined: `early.rs`)
//!  Ranges                   one per range of the keys of    the producer stage is complete
//!                           sorted runs, made when all are
//!                           there (`ranges.rs`)
//! ```
//! A stage may have several edges of each kind. What is blocking holds back all of its units.
//!
//! Blocks are consumed one by one, while the task that writes them still runs, only over edges of
//! granularity *block*, and only from a producer that is *replayable*: a re-run of a unit seals the
//! same rows under the same numbers, which rows and checksums prove. All other outputs are all or
//! none, and count when their task has ended well.
//!
//! # States
//!
//! ```text
//!           bind                 finished
//!  Pending ─────▶ Running(task) ─────────▶ Done(task)
//!     ▲              │                         │
//!     ├── failed, canceled, worker lost ◀──────┘ a part of its output is needed and gone
//!     │              │
//!     │              └─▶ back to Done, if it was a re-run that nobody needs any more
//!     │
//!     └── the same rule decides both ways: `JobGraph::must_run`
//!
//!  block   Sealed ──▶ Assigned ──▶ Consumed ──▶ Freed       Lost from any of the first three
//!            ▲           ▲             │
//!            └───────────┴─────────────┘ a reader must run again, and its input is still there
//!
//!  stage   Waiting ──first bind──▶ Running ──closed, all units done──▶ Done
//!                                     ▲                                  │
//!                                     └──── a lost output is needed ─────┘
//! ```
//! A block's state is over all edges of its producer: it is `Consumed` when all of them are done
//! with it. A stage is *closed* when there will be no more units: all producers are closed, each of
//! their units has ended well once, and every block has been taken as input. That is never taken
//! back, since a re-run gives no new blocks.
//!
//! # The release rule
//!
//! *A unit is ready exactly when it is pending, its own inputs are sealed and there, and it does
//! not wait after a failure.* Retries, losses, late and doubled reports need no other rule. It is
//! kept up to date by each transition (`transition.rs`), in lists per stage; nobody looks through
//! all units. Whether the stages that a stage must wait for are complete is asked when it is bound.
//!
//! # The lineage rule
//!
//! *A block is needed while the job runs and a unit that reads it is not done; the result always
//! is. A unit must run when it is not known what it gives, or a block of it is needed and gone.*
//!
//! When something is lost, all of it is marked first, and tasks that read it are stopped. Then the
//! stages are walked once, **consumers first**, and the rule is asked of each unit that the loss
//! has touched. A unit that was done and must run asks in turn for what it reads: units of earlier
//! stages whose output is gone, whether it was lost or deleted. So
//!
//! - a consumed block whose readers are done and have their output is not recomputed;
//! - a lost output reaches back as far as inputs are gone, and no farther;
//! - finished work elsewhere is never touched.
//!
//! An attempt is told which blocks to `skip`: those that are there, and those that nobody needs. If
//! such a block is lost while the attempt runs, the rule sends the unit back when the attempt ends.
//!
//! Consumed inputs are kept while [`Limits::kept_bytes_max`] allows, and the block that was
//! consumed first is deleted first. A needed block is never deleted.
//!
//! # Reports
//!
//! Only a running attempt is listened to: whatever else arrives is late, counted and ignored. So the
//! first success wins, a lost worker may come back with all its reports, and announcements are
//! idempotent by (unit, sequence number, attempt). A canceled task keeps its lease until it is told
//! to have ended.
//!
//! # Failures
//!
//! | kind | what follows | counted against |
//! |---|---|---|
//! | `User`, `Data` | the job fails | |
//! | `Passing`, `OutOfMemory`, `DeviceBroken` | another attempt after a back-off, elsewhere if possible | the unit (4), the stage |
//! | `DeviceLost` | the same | the unit, as a loss (16) |
//! | `DiskBroken` | as `Passing`; no task of the job goes to that worker as long as another can run it | the unit (4), the stage |
//! | `DiskFull` | as `Passing`; what is kept on that worker after its consumption is deleted | the unit and the stage, unless a task has ended well since the last time |
//! | `WorkerLost`, and a lost worker | another attempt | the unit, apart (16) |
//! | `BlockLost`, `OutputLost` | the lineage rule; the reader waits for its input | the block (8) |
//!
//! What an error says is never looked at.
//!
//! # Steps
//!
//! Events, bindings and waits that are over alone change a graph, so it is what these [`Step`]s make of its job's
//! spec: whoever keeps them can make it again ([`JobGraph::replay`]). The last ones may be lost with who kept them,
//! though workers were given tasks by then. So whoever goes on [passes over](JobGraph::pass_over) the numbers that these
//! may have: what is done and told under one of those is of no task, and counts for nothing.
//!
//! Steps become more for as long as a job runs. So a [`Snapshot`] can take the place of the first ones: it is made of them, by
//! doing them again, and is the graph that they make. What it cannot forget is what people and later losses ask for: each
//! attempt, each unit and each block.

mod action;
mod bind;
mod block;
mod client;
mod dealt;
mod early;
mod ending;
mod event;
mod fill;
mod group;
mod history;
mod homes;
mod ids;
mod invariants;
mod job;
mod keep;
mod kinds;
mod learned;
mod lineage;
mod output;
mod ranges;
mod ready;
mod replay;
mod retry;
mod row_key;
mod rows;
mod segments;
mod snapshot;
mod spec;
mod stage;
mod step;
mod tasks;
mod together;
mod transition;
mod unit;
mod work;

#[cfg(test)]
mod tests;

pub use action::{Action, Cause, JobFailure, UnitFailure};
pub use bind::{BindError, Bound, Input};
pub use block::BlockState;
pub use early::Dealt;
pub use event::{BlockReport, Event, Failure, FailureKind};
pub use fill::EdgeFill;
pub use history::Recomputed;
pub use ids::{BlockId, EdgeId, Millis, StageId, TaskId, UnitId, WorkerId};
pub use invariants::{Broken, INVARIANTS, check};
pub use job::{JobGraph, JobStatus};
pub use learned::Learned;
pub(crate) use ranges::reads_ahead;
pub use ready::{Ready, ReadyItem};
pub use row_key::{KeyRange, RowKey, RunBlock};
pub use rows::{BlockRow, StageRow, TaskRow};
pub use segments::{Segment, Segments};
pub use snapshot::{Snapshot, SnapshotError};
pub use spec::{EdgeKind, EdgeSpec, Granularity, GraphError, JobSpec, Limits, StageSpec};
pub use stage::StageState;
pub use step::Step;
pub use unit::{TaskState, UnitInput, UnitState};
pub use work::Work;
