//! What a job is made of, as the planner cuts it, and what is refused.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ids::{EdgeId, StageId};
use crate::resources::Need;

/// A job: stages, the edges between them, and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The stages; a [`StageId`] is a place in this list.
    pub stages: Vec<StageSpec>,
    /// The edges; an [`EdgeId`] is a place in this list.
    pub edges: Vec<EdgeSpec>,
    /// Every maximum that the job keeps.
    pub limits: Limits,
}

/// A plan fragment of one resource class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpec {
    /// What messages and tables call it.
    pub name: String,
    /// What one of its tasks takes of a worker.
    pub need: Need,
    /// Input portions of its own: scan partitions, or the partitions of what shuffles feed it.
    pub partitions: u32,
    /// Whether a re-run of a unit gives the same blocks: the planner has proven it.
    pub replayable: bool,
    /// Small sealed blocks of one edge form one unit up to this size.
    pub group_bytes_max: u64,
    /// And wait for each other up to this size, as long as more may come and there is room for it.
    pub group_bytes_min: u64,
    /// And up to this many rows.
    pub group_rows_max: u64,
    /// Sorted runs are read in ranges of about so many bytes, as one if there are fewer.
    pub range_bytes: u64,
    /// Expected output of one unit, until some have been seen.
    pub output_bytes_guess: u64,
    /// So many units that follow each other give rows of the same partitions, and had best run on one worker.
    pub units_together: u32,
    /// Whether it runs once if nothing streams in, as it gives rows for no input: a grand total.
    pub runs_on_nothing: bool,
    /// Whether the job's client runs it, by reading: see [`Self::client`].
    pub is_client: bool,
}

impl StageSpec {
    /// A stage that takes `need` per task, with `partitions` input portions of its own.
    pub fn new(name: impl Into<String>, need: Need, partitions: u32) -> Self {
        Self {
            name: name.into(),
            need,
            partitions,
            replayable: false,
            group_bytes_max: 128 << 20,
            group_bytes_min: 0,
            group_rows_max: u64::MAX,
            range_bytes: u64::MAX,
            output_bytes_guess: 128 << 20,
            units_together: 1,
            runs_on_nothing: false,
            is_client: false,
        }
    }

    /// The client, which reads the result while it is made. It takes nothing of a worker, and is
    /// bound by [`JobGraph::bind_client`](super::JobGraph::bind_client).
    pub fn client() -> Self {
        let need = Need::cpus(0);
        Self { is_client: true, ..Self::new("Client", need, 0).with_output_bytes_guess(0) }
    }

    /// The same stage, proven to be replayable.
    pub fn with_replayable(mut self) -> Self {
        self.replayable = true;
        self
    }

    /// The same stage with another size of groups.
    pub fn with_group_bytes_max(mut self, bytes: u64) -> Self {
        self.group_bytes_max = bytes;
        self
    }

    /// The same stage, whose groups wait until they have a size.
    pub fn with_group_bytes_min(mut self, bytes: u64) -> Self {
        self.group_bytes_min = bytes;
        self
    }

    /// The same stage with another number of rows in a group.
    pub fn with_group_rows_max(mut self, rows: u64) -> Self {
        self.group_rows_max = rows;
        self
    }

    /// The same stage, which reads runs in ranges of this size.
    pub fn with_range_bytes(mut self, bytes: u64) -> Self {
        self.range_bytes = bytes;
        self
    }

    /// The same stage, of whose units so many belong together.
    pub fn with_units_together(mut self, units: u32) -> Self {
        self.units_together = units;
        self
    }

    /// The same stage with another first guess of what one unit gives.
    pub fn with_output_bytes_guess(mut self, bytes: u64) -> Self {
        self.output_bytes_guess = bytes;
        self
    }
}

/// How one stage reads another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeSpec {
    /// The stage that writes.
    pub from: StageId,
    /// The stage that reads.
    pub to: StageId,
    /// When the reader may begin, and what a task of it reads.
    pub kind: EdgeKind,
    /// Where the consumer's plan partitions for this edge begin: several streaming edges into one
    /// stage are the children of a UNION.
    pub partition_offset: u32,
    /// Most bytes sealed and not consumed on a streaming edge, together with what its running
    /// producers are expected to add.
    pub budget_bytes: u64,
    /// Whether the consumer gets on with what is there of a [`EdgeKind::Hash`] while the rest is made. It is taken
    /// at its word if it reads nothing else.
    pub is_pipelined: bool,
    /// Whether few units of the producer have all rows of a partition of a [`EdgeKind::Hash`]: whoever reads it had best
    /// run where they lie.
    pub lies_together: bool,
}

impl EdgeSpec {
    /// An edge without an offset, and with no other budget than the job's.
    pub fn new(from: StageId, to: StageId, kind: EdgeKind) -> Self {
        Self {
            from,
            to,
            kind,
            partition_offset: 0,
            budget_bytes: u64::MAX,
            is_pipelined: false,
            lies_together: false,
        }
    }

    /// The same edge, whose consumer may begin before all is there.
    pub fn pipelined(mut self) -> Self {
        self.is_pipelined = true;
        self
    }

    /// The same edge, whose partitions have been merged.
    pub fn lying_together(mut self) -> Self {
        self.lies_together = true;
        self
    }

    /// The same edge with a budget.
    pub fn with_budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// The same edge, feeding the plan partitions from `offset` on.
    pub fn with_partition_offset(mut self, offset: u32) -> Self {
        self.partition_offset = offset;
        self
    }
}

/// How a consumer reads its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EdgeKind {
    /// The consumer runs while the producer runs.
    Streaming(Granularity),
    /// Each consumer unit reads a part of the output of all producer units.
    Blocking,
    /// Each consumer unit reads the whole output of all producer units.
    Broadcast,
    /// Each block of the producer has a segment for each partition, by a hash of keys, and each consumer unit
    /// reads the segments of its own. See [`EdgeSpec::is_pipelined`].
    Hash,
    /// Each producer unit gives a sorted run, and each consumer unit reads the rows of all runs whose keys
    /// are in one range. The client of such a consumer reads its units in the order of their ranges.
    Ranges,
}

impl EdgeKind {
    /// Whether the consumer waits for the whole producer stage.
    pub fn is_blocking(self) -> bool {
        matches!(self, Self::Blocking | Self::Broadcast | Self::Hash | Self::Ranges)
    }
}

/// What of a producer one unit of a streaming consumer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Granularity {
    /// Any sealed blocks, while their task still runs. The producer must be replayable.
    Block,
    /// The whole output of one producer unit, when that unit is done.
    Unit,
    /// The whole outputs of some producer units that are done.
    Units,
}

/// Every maximum of a job, and the two times of its back-off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Failures of one unit before the job fails.
    pub unit_failures_max: u32,
    /// Attempts at one unit that made no progress before the job fails.
    pub no_progress_max: u32,
    /// Failures in one stage before the job fails. A quarter of its units if that is more.
    pub stage_failures_max: u32,
    /// How often the work of one unit may be lost with a worker before the job fails.
    pub unit_losses_max: u32,
    /// How often readers may find one block missing or corrupt before the job fails.
    pub block_losses_max: u32,
    /// Wait after the first failure of a unit; it doubles with each further one.
    pub backoff_ms: u64,
    /// Longest wait after a failure.
    pub backoff_ms_max: u64,
    /// Most bytes kept after all readers are done with them.
    pub kept_bytes_max: u64,
    /// Most bytes sealed and not consumed on all streaming edges of the job together.
    pub buffered_bytes_max: u64,
    /// Most blocks in one unit.
    pub group_blocks_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unit_failures_max: 4,
            no_progress_max: 2,
            stage_failures_max: 64,
            unit_losses_max: 16,
            block_losses_max: 8,
            backoff_ms: 200,
            backoff_ms_max: 30_000,
            kept_bytes_max: 16 << 30,
            buffered_bytes_max: 16 << 30,
            group_blocks_max: 1024,
        }
    }
}

/// Why a job is refused before anything runs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GraphError {
    /// There is nothing to run.
    #[error("a job needs at least one stage, found none")]
    NoStages,
    /// An edge names a stage that the job does not have.
    #[error("edge {edge} joins stages {from} and {to}, and the job has {stages}")]
    UnknownStage {
        /// Its place among the job's edges.
        edge: EdgeId,
        /// The stage that would write.
        from: StageId,
        /// The stage that would read.
        to: StageId,
        /// How many stages there are.
        stages: usize,
    },
    /// The stages read each other in a circle.
    #[error("the edges of the job form a circle through stage {stage} '{name}'")]
    Circle {
        /// A stage of the circle, or behind it.
        stage: StageId,
        /// Its operators, for people.
        name: String,
    },
    /// A unit cannot be a range of two orders.
    #[error("stage {stage} '{name}' reads the runs of several stages in ranges, expected one")]
    SeveralOrders {
        /// The stage that would read.
        stage: StageId,
        /// Its operators, for people.
        name: String,
    },
    /// Blocks would be consumed that a re-run may not give again.
    #[error(
        "edge {edge} streams blocks of stage {stage} '{name}', which is not replayable; stream \
         whole units instead"
    )]
    NotReplayable {
        /// Its place among the job's edges.
        edge: EdgeId,
        /// The stage that would write.
        stage: StageId,
        /// Its operators, for people.
        name: String,
    },
}

impl JobSpec {
    /// The stages, producers before consumers.
    pub(super) fn check(&self) -> Result<Vec<StageId>, GraphError> {
        if self.stages.is_empty() {
            return Err(GraphError::NoStages);
        }
        for (edge, spec) in (0..).map(EdgeId).zip(&self.edges) {
            let (from, to, stages) = (spec.from, spec.to, self.stages.len());
            if from.at() >= stages || to.at() >= stages {
                return Err(GraphError::UnknownStage { edge, from, to, stages });
            }
            let streams_blocks = spec.kind == EdgeKind::Streaming(Granularity::Block);
            let stage = &self.stages[from.at()];
            if streams_blocks && !stage.replayable {
                let name = stage.name.clone();
                return Err(GraphError::NotReplayable { edge, stage: from, name });
            }
            let ranges = |other: &&EdgeSpec| other.to == to && other.kind == EdgeKind::Ranges;
            if self.edges.iter().filter(ranges).count() > 1 {
                let name = self.stages[to.at()].name.clone();
                return Err(GraphError::SeveralOrders { stage: to, name });
            }
        }
        self.order()
    }

    /// Kahn's algorithm; what is left over lies on a circle or behind one.
    fn order(&self) -> Result<Vec<StageId>, GraphError> {
        let mut waits_for = vec![0; self.stages.len()];
        self.edges.iter().for_each(|edge| waits_for[edge.to.at()] += 1);
        let ids = (0..self.stages.len() as u32).map(StageId);
        let mut order: Vec<_> = ids.clone().filter(|stage| waits_for[stage.at()] == 0).collect();
        let mut next = 0;
        while let Some(stage) = order.get(next).copied() {
            next += 1;
            for edge in self.edges.iter().filter(|edge| edge.from == stage) {
                waits_for[edge.to.at()] -= 1;
                if waits_for[edge.to.at()] == 0 {
                    order.push(edge.to);
                }
            }
        }
        match ids.into_iter().find(|stage| waits_for[stage.at()] > 0) {
            None => Ok(order),
            Some(stage) => {
                let name = self.stages[stage.at()].name.clone();
                Err(GraphError::Circle { stage, name })
            }
        }
    }
}
