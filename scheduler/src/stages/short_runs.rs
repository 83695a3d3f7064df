//! Sorts of files on a cluster: their tasks read little each, to sort it with little memory.
//!
//! A scan has as many partitions as the cluster has cores. A task that sorts one of them may have to sort much more
//! than its memory holds: it writes sorted pieces to its disk, reads them and merges them, only for the stage above to
//! merge what all tasks give once more. With a partition for each such piece, rows go to disk and through a merge once.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use forebay_engine::BoundedProjectionExec;

/// Ranges whose bytes a task sorts, by the size of what it reads.
const RANGES_IN_RUN: u64 = 2;

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
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        let runs = bytes(scan).div_ceil(run_bytes).min(RUNS_MAX) as usize;
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

/// Of its files, or of the rows that it reads of them if their number is known. Nothing of what are no files.
fn bytes(scan: &DataSourceExec) -> u64 {
    let Some(files) = scan.data_source().downcast_ref::<FileScanConfig>() else { return 0 };
    let rows = scan.data_source().partition_statistics(None).ok();
    let rows = rows.and_then(|known| known.total_byte_size.get_value().copied());
    let files = files.file_groups.iter().flat_map(|group| group.iter());
    rows.map_or_else(|| files.map(|file| file.effective_size()).sum(), |bytes| bytes as u64)
}
