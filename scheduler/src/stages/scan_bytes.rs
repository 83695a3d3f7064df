//! How much a scan reads.

use std::sync::Arc;

use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;

/// Bytes of the rows that a scan reads of its files as they are in memory, as far as their statistics tell, or of the
/// files, which may be compressed. Nothing of what is no scan of files.
pub(super) fn scan_bytes(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let Some(scan) = plan.downcast_ref::<DataSourceExec>() else { return 0 };
    let Some(files) = scan.data_source().downcast_ref::<FileScanConfig>() else { return 0 };
    let known = scan.data_source().partition_statistics(None).ok();
    let rows = known.and_then(|known| {
        let mut columns = known.column_statistics.iter().map(|column| column.byte_size.get_value());
        let of_columns = columns.try_fold(0_usize, |sum, bytes| Some(sum.saturating_add(*bytes?)));
        of_columns.or_else(|| known.total_byte_size.get_value().copied())
    });
    let files = files.file_groups.iter().flat_map(|group| group.iter());
    rows.map_or_else(|| files.map(|file| file.effective_size()).sum(), |bytes| bytes as u64)
}
