//! `.arrow` files, read without believing what they say of themselves.
//!
//! DataFusion's reader takes as much memory as a compressed buffer claims to hold, and slices where
//! the file says: one that is damaged ends the process. Here every message is checked before it is
//! decoded ([`claims`](crate::claims)), and they are read one after the other. Both of the formats are
//! read wherever one is: a plan that travels does not say which it meant.

mod blocks;
mod messages;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::{ArrowSource, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use source::CheckedArrowSource;

/// Bytes that the compressed buffers of one message may hold: more than a batch of rows has, and less
/// than what no machine has.
const DECOMPRESSED_BYTES_MAX: u64 = 4 << 30;

/// Lets scans of `.arrow` files check what they read. The last of a session's rules, and of one that
/// runs its plans itself: such scans do not travel.
#[derive(Debug)]
pub struct CheckArrowFiles;

impl PhysicalOptimizerRule for CheckArrowFiles {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| Ok(checked(node))).data()
    }

    fn name(&self) -> &str {
        "check_arrow_files"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A scan of `.arrow` files with a reader that checks; any other operator as it is.
pub fn checked(plan: Arc<dyn ExecutionPlan>) -> Transformed<Arc<dyn ExecutionPlan>> {
    let scan = plan.downcast_ref::<DataSourceExec>();
    let files = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
    let Some(files) = files.filter(|files| files.file_source().is::<ArrowSource>()) else {
        return Transformed::no(plan);
    };
    let source = Arc::new(CheckedArrowSource::new(Arc::clone(files.file_source())));
    let files = FileScanConfigBuilder::from(files.clone()).with_source(source).build();
    Transformed::yes(DataSourceExec::from_data_source(files))
}
