//! What a plan is after it has been cut: the stages' plans, and how they read each other.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::execution_plans::SortShuffleWriterExec;
use datafusion::common::{DataFusionError, internal_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;

use crate::graph::{JobSpec, StageId};

/// A plan in stages.
#[derive(Debug, Default)]
pub(crate) struct StagedPlan {
    /// By [`StageId`]; roots write, leaves scan or read what other stages write.
    pub(crate) plans: Vec<Arc<dyn ExecutionPlan>>,
    /// By [`StageId`].
    pub(crate) readers: Vec<HashMap<StageId, Reads>>,
    /// The stages of Ballista's shuffle readers.
    pub(crate) shuffles: HashMap<usize, StageId>,
    /// Stages and edges.
    pub(crate) spec: JobSpec,
}

impl StagedPlan {
    /// Whether a stage writes a hash shuffle.
    pub(crate) fn is_shuffle(&self, stage: StageId) -> bool {
        let plan = self.plans.get(stage.0 as usize);
        plan.is_some_and(|plan| plan.is::<SortShuffleWriterExec>())
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
}

impl From<crate::graph::GraphError> for DataFusionError {
    fn from(error: crate::graph::GraphError) -> Self {
        internal_datafusion_err!("stages that do not fit together: {error}")
    }
}
