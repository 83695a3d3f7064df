//! Stages, units, blocks and attempts of one job: a pure state machine.

mod action;
mod bind;
mod block;
mod event;
mod history;
mod ids;
mod invariants;
mod job;
mod keep;
mod learned;
mod lineage;
mod output;
mod ready;
mod retry;
mod spec;
mod stage;
mod transition;
mod unit;

pub use action::{Action, JobFailure, UnitFailure, Why};
pub use bind::{BindError, Bound, Input, Work};
pub use block::BlockState;
pub use event::{BlockReport, Event, Failure, FailureKind};
pub use history::{BlockRow, Recomputed, StageRow, TaskRow};
pub use ids::{BlockId, EdgeId, Millis, StageId, TaskId, UnitId, WorkerId};
pub use invariants::{Broken, INVARIANTS, check};
pub use job::{EdgeFill, JobGraph, JobStatus};
pub use learned::Learned;
pub use ready::{Ready, ReadyItem};
pub use spec::{EdgeKind, EdgeSpec, Granularity, GraphError, JobSpec, Limits, StageSpec};
pub use stage::StageState;
pub use unit::{TaskState, UnitInput, UnitState};
