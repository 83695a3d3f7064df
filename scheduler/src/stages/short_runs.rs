//! Sorts of files on a cluster: their tasks read little each, to sort it with little memory.
//!
//! A scan has as many partitions as the cluster has cores. A task that sorts one of them may have to sort much more
//! than its memory holds: it writes sorted pieces to its disk, reads them and merges them, only for the stage above to
//! merge what all tasks give once more. With a partition for each such piece, rows go to disk and through a merge once.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use forebay_engine::BoundedProjectionExec;

use crate::stages::scan_bytes::scan_bytes;

/// Ranges whose bytes a task sorts, by the size of what it reads.
pub(super) const RANGES_IN_RUN: u64 = 2;

/// More runs are not made of one sort: each range reads a block of each.
const RUNS_MAX: u64 = 1024;

/// Reads the files below a merge of sorted partitions in more partitions, if they are large. Ranges have so many bytes;
/// with none, one task merges all runs, and they stay few.
pub(super) fn short_runs(
    plan: Arc<dyn ExecutionPlan>,
    range_bytes: u64,
    options: &ConfigOptions,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let merge = plan.downcast_ref::<SortPreservingMergeExec>();
    let sort = merge
        .filter(|merge| merge.fetch().is_none() && range_bytes > 0)
        .and_then(|merge| merge.input().downcast_ref::<SortExec>())
        .filter(|sort| sort.fetch().is_none() && sort.preserve_partitioning());
    let Some(sort) = sort else { return Ok(Transformed::no(plan)) };
    let run_bytes = range_bytes.saturating_mul(RANGES_IN_RUN);
    let Some(input) = finer(sort.input(), run_bytes, options)? else {
        return Ok(Transformed::no(plan));
    };
    let sort = SortExec::new(sort.expr().clone(), input).with_preserve_partitioning(true);
    Ok(Transformed::yes(replace_children_if_necessary(plan, vec![Arc::new(sort)])?))
}

/// The same rows in more partitions, each of so many bytes.
fn finer(
    plan: &Arc<dyn ExecutionPlan>,
    run_bytes: u64,
    options: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if plan.is::<DataSourceExec>() {
        let runs = scan_bytes(plan).div_ceil(run_bytes).min(RUNS_MAX) as usize;
        let is_few = runs <= plan.output_partitioning().partition_count();
        return if is_few || plan.fetch().is_some() {
            Ok(None)
        } else {
            plan.repartitioned(runs, options)
        };
    }
    let by_row = plan.is::<ProjectionExec>()
        || plan.is::<BoundedProjectionExec>()
        || plan.is::<FilterExec>();
    match plan.children()[..] {
        [input] if by_row && plan.fetch().is_none() => {
            let input = finer(input, run_bytes, options)?;
            let plan = |input| replace_children_if_necessary(Arc::clone(plan), vec![input]);
            input.map(plan).transpose()
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};
    use tempfile::TempDir;

    use super::*;

    /// In how many tasks the rows of a file are sorted, for ranges of so many bytes.
    async fn tasks(session: &SessionContext, range_bytes: u64) -> usize {
        let query = session.sql("SELECT * FROM t ORDER BY word").await.unwrap();
        let plan = query.create_physical_plan().await.unwrap();
        let options = session.copied_config().options().as_ref().clone();
        let plan = short_runs(plan, range_bytes, &options).unwrap().data;
        plan.children()[0].output_partitioning().partition_count()
    }

    #[tokio::test]
    async fn compressed_files_are_cut_by_what_their_rows_take_in_memory() {
        let folder = TempDir::new().unwrap();
        let config =
            SessionConfig::new().with_target_partitions(2).with_repartition_file_min_size(1);
        let session = SessionContext::new_with_config(config);
        let path = folder.path().join("t.parquet").display().to_string();
        let rows = "SELECT concat(repeat('x', 100), value) AS word, value FROM range(200000)";
        for statement in [
            format!("COPY ({rows}) TO '{path}' STORED AS PARQUET"),
            format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}'"),
        ] {
            session.sql(&statement).await.unwrap().collect().await.unwrap();
        }
        let in_memory = 200_000 * (106 + 8);
        assert!(std::fs::metadata(&path).unwrap().len() < in_memory / 5);
        assert_eq!(tasks(&session, in_memory).await, 2);
        let many = tasks(&session, in_memory / 20).await;
        assert!((9..=12).contains(&many), "{many} tasks for ten times their share");
        assert_eq!(tasks(&session, 0).await, 2, "one task merges all");
    }
}
