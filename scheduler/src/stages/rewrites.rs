//! What a plan must not look like when it is cut: Ballista's planner, or a task that runs a part of it,
//! would take it for something else.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};

/// The limit of a join of one partition holds for all of its rows, in however many it will run.
pub(crate) fn limit_joins(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    match plan.fetch() {
        Some(fetch)
            if plan.is::<HashJoinExec>() && plan.output_partitioning().partition_count() == 1 =>
        {
            Ok(Transformed::yes(Arc::new(GlobalLimitExec::new(plan, 0, Some(fetch)))))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// A merge that ends after some rows, as a limit above one that does not: where Ballista's planner has a
/// stage planned anew, DataFusion's rule takes such a merge for a sort that is already there, and loses the
/// limit.
pub(crate) fn limit_merges(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    match plan.fetch() {
        Some(fetch) if plan.is::<SortPreservingMergeExec>() => {
            let merge = plan.with_fetch(None).unwrap_or(plan);
            Ok(Transformed::yes(Arc::new(GlobalLimitExec::new(merge, 0, Some(fetch)))))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// Ballista gives each task the partitions of a scan in memory that are its own, without the limit of
/// each of them.
pub(crate) fn limit_scans(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let is_in_memory = plan
        .downcast_ref::<DataSourceExec>()
        .is_some_and(|scan| scan.data_source().downcast_ref::<MemorySourceConfig>().is_some());
    match plan.fetch() {
        Some(fetch) if is_in_memory => {
            let scan = plan.with_fetch(None).unwrap_or(plan);
            Ok(Transformed::yes(Arc::new(LocalLimitExec::new(scan, fetch))))
        }
        _ => Ok(Transformed::no(plan)),
    }
}

/// Dealing out rows is of use to one process: of a stage, each task would run all that is below. Ballista's
/// planner leaves it out or cuts there, and puts it back where it plans a stage anew: to deal out in
/// turn, or what is one partition.
pub(crate) fn without_repartition(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let repartition = plan.downcast_ref::<RepartitionExec>();
    let is_idle = |repartition: &RepartitionExec| {
        matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_))
            || repartition.input().output_partitioning().partition_count() == 1
    };
    Ok(match repartition.filter(|repartition| is_idle(repartition)) {
        Some(repartition) => Transformed::yes(Arc::clone(repartition.input())),
        None => Transformed::no(plan),
    })
}
