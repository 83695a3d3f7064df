//! What a plan is after it has been cut: the stages' plans, and how they read each other.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{DataFusionError, internal_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;

use crate::block::HashWriterExec;
use crate::graph::{JobSpec, StageId};

/// A plan in stages.
#[derive(Debug, Default)]
pub(crate) struct StagedPlan {
    /// By [`StageId`]. The client, whose stage is the last of [`StagedPlan::spec`], has no plan.
    pub(crate) stages: Vec<PlannedStage>,
    /// What the graph knows of the same stages.
    pub(crate) spec: JobSpec,
}

/// What the tasks of one stage run.
#[derive(Debug)]
pub(crate) struct PlannedStage {
    /// Its root writes; its leaves scan, or read what other stages write.
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    /// How it reads the stages of which it reads blocks.
    pub(crate) reads: HashMap<StageId, Reads>,
}

impl PlannedStage {
    /// Whether it deals its rows out by hash, into blocks.
    pub(crate) fn is_dealt(&self) -> bool {
        self.plan.is::<HashWriterExec>()
    }
}

impl StagedPlan {
    /// A stage, unless it is the client's.
    pub(crate) fn stage(&self, id: StageId) -> Option<&PlannedStage> {
        self.stages.get(id.0 as usize)
    }
}

/// How a stage reads another one's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// A unit's input is one partition.
    Unit,
    /// Each unit of the other stage is a partition; something above makes one of them.
    AllApart,
    /// All of it is one partition.
    AllInOne,
    /// The other stage has dealt its rows out by hash: a partition of it, or all of them.
    Dealt,
}

impl From<crate::graph::GraphError> for DataFusionError {
    fn from(error: crate::graph::GraphError) -> Self {
        internal_datafusion_err!("stages that do not fit together: {error}")
    }
}
