//! What a join and the joins of its parts have in common.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, SpillManager};

use datafusion::common::JoinType;

/// One of a join's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Build,
    Probe,
}

/// A join as it was planned.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) join: Arc<HashJoinExec>,
    /// Of what DataFusion's join does not measure.
    pub(super) metrics: ExecutionPlanMetricsSet,
}

impl Shape {
    pub(super) fn input(&self, side: Side) -> &Arc<dyn ExecutionPlan> {
        match side {
            Side::Build => self.join.left(),
            Side::Probe => self.join.right(),
        }
    }

    pub(super) fn schema(&self, side: Side) -> SchemaRef {
        self.input(side).schema()
    }

    pub(super) fn keys(&self, side: Side) -> Vec<Arc<dyn PhysicalExpr>> {
        let keys = self.join.on().iter();
        let of_side = keys.map(|(build, probe)| match side {
            Side::Build => build,
            Side::Probe => probe,
        });
        of_side.cloned().collect()
    }

    pub(super) fn probe_partitions(&self) -> usize {
        self.join.right().output_partitioning().partition_count()
    }

    /// Whether all partitions meet one table, and rows of the table are given by what has met them in any.
    pub(super) fn gives_rows_of_a_shared_table(&self) -> bool {
        *self.join.partition_mode() == PartitionMode::CollectLeft
            && !matches!(
                self.join.join_type(),
                JoinType::Inner
                    | JoinType::Right
                    | JoinType::RightSemi
                    | JoinType::RightAnti
                    | JoinType::RightMark
            )
    }

    /// An order that has all orders that the join claims: what has several has them one behind the other.
    pub(super) fn order(&self) -> Option<LexOrdering> {
        let claimed = self.join.properties().equivalence_properties().oeq_class().iter();
        LexOrdering::new(claimed.flat_map(|order| order.iter().cloned()))
    }

    /// What writes the rows of a side to disk, and reads them.
    pub(super) fn on_disk(
        &self,
        side: Side,
        partition: usize,
        context: &TaskContext,
    ) -> SpillManager {
        let metrics = SpillMetrics::new(&self.metrics, partition);
        SpillManager::new(context.runtime_env(), metrics, self.schema(side))
            .with_compression_type(context.session_config().spill_compression())
    }

    /// The join of a part: of these rows only, by the same keys.
    ///
    /// # Errors
    /// None that the planned join did not have.
    pub(super) fn of_part(
        &self,
        kind: JoinType,
        build: Arc<dyn ExecutionPlan>,
        probe: Arc<dyn ExecutionPlan>,
    ) -> Result<HashJoinExec> {
        let join = self.join.builder();
        let join = if kind == *self.join.join_type() { join } else { join.with_type(kind) };
        // What NULLs mean is settled when rows are parted.
        join.with_null_aware(false)
            .with_partition_mode(PartitionMode::Partitioned)
            .with_fetch(None)
            .with_new_children(vec![build, probe])?
            .build()
    }

    /// As errors name it.
    pub(super) fn label(&self) -> String {
        let keys = self.join.on().iter().map(|(build, probe)| format!("{build} = {probe}"));
        format!("HashJoinExec on {}", keys.collect::<Vec<_>>().join(" and "))
    }
}
