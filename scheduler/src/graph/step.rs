//! What has changed a graph, to be done again: a graph is what its steps make of its spec.

use serde::{Deserialize, Serialize};

use super::event::Event;
use super::ids::{Millis, StageId, WorkerId};
use super::row_key::RowKey;
use super::work::Work;
use crate::resources::Lease;

/// One change of a graph from outside. What follows from it inside follows again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// [`apply`](super::JobGraph::apply).
    Event {
        /// What happened.
        event: Event,
        /// When it was heard of.
        now: Millis,
    },
    /// [`bind`](super::JobGraph::bind), not refused.
    Bind {
        /// What was bound.
        work: Work,
        /// To whom.
        worker: WorkerId,
        /// What the task was given there.
        lease: Lease,
        /// When.
        now: Millis,
    },
    /// [`advance`](super::JobGraph::advance), of a stage with units whose waits were over.
    Advance {
        /// The stage.
        stage: StageId,
        /// When.
        now: Millis,
    },
    /// [`pass_over`](super::JobGraph::pass_over).
    PassedOver {
        /// How many numbers of each stage.
        numbers: u32,
        /// When.
        now: Millis,
    },
    /// What followed from the step before: runs were cut into ranges. It follows again, and is written down as
    /// another build may choose otherwise.
    Ranges {
        /// The stage that reads them.
        stage: StageId,
        /// Where ranges begin, but for the first.
        borders: Vec<RowKey>,
        /// When.
        now: Millis,
    },
}

impl Step {
    pub(super) fn event(event: &Event, now: Millis) -> Self {
        Self::Event { event: event.clone(), now }
    }

    pub(super) fn bind(work: &Work, worker: &WorkerId, lease: &Lease, now: Millis) -> Self {
        Self::Bind { work: work.clone(), worker: worker.clone(), lease: lease.clone(), now }
    }

    /// When it was.
    pub fn time(&self) -> Millis {
        match self {
            Self::Event { now, .. }
            | Self::Bind { now, .. }
            | Self::Advance { now, .. }
            | Self::PassedOver { now, .. }
            | Self::Ranges { now, .. } => *now,
        }
    }
}
