//! What writes files writes them aside, and a commit makes them visible.
//!
//! The last of the physical rules: those before know DataFusion's `DataSinkExec`, and have brought its
//! input into one partition and into its order.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use forebay_engine::write::Target;
use forebay_engine::{CommitExec, WriteExec};

use super::disguise::{Plan, Rule};
use crate::config::ForebayConfig;

pub(crate) fn add_to(rules: &mut Vec<Rule>) {
    rules.push(Arc::new(StageWrites));
}

/// Puts a [`CommitExec`] over a [`WriteExec`] in the place of a sink for files.
#[derive(Debug)]
struct StageWrites;

impl PhysicalOptimizerRule for StageWrites {
    fn optimize(&self, plan: Plan, config: &ConfigOptions) -> Result<Plan> {
        let options = config.extensions.get::<ForebayConfig>().cloned().unwrap_or_default();
        let staged = |plan: Plan| {
            let sink = plan.downcast_ref::<DataSinkExec>();
            let found =
                sink.and_then(|sink| Some((sink, Target::of(sink, options.file_bytes as u64)?)));
            let Some((sink, target)) = found else { return Ok(Transformed::no(plan)) };
            let target = Arc::new(target);
            let write = WriteExec::new(Arc::clone(sink.input()), Arc::clone(&target));
            Ok(Transformed::yes(Arc::new(CommitExec::new(Arc::new(write), target)) as Plan))
        };
        plan.transform_up(staged).data()
    }

    fn name(&self) -> &str {
        "stage_writes"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
