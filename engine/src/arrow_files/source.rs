//! What a scan of `.arrow` files is to DataFusion.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, PhysicalExpr};
use object_store::{ObjectStore, ObjectStoreExt};

use super::{blocks, messages};

/// DataFusion's scan of `.arrow` files, read by what is here.
pub(super) struct CheckedArrowSource {
    inner: Arc<dyn FileSource>,
}

impl CheckedArrowSource {
    pub(super) fn new(inner: Arc<dyn FileSource>) -> Self {
        Self { inner }
    }
}

impl FileSource for CheckedArrowSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _config: &FileScanConfig,
        _partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let schema = self.table_schema().file_schema();
        let split = match self.projection() {
            Some(projection) => SplitProjection::new(schema, projection),
            None => SplitProjection::unprojected(self.table_schema()),
        };
        let columns = split.file_indices.clone();
        ProjectionOpener::try_new(split, Arc::new(Opener { store, columns }), schema)
    }

    fn table_schema(&self) -> &TableSchema {
        self.inner.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self::new(self.inner.with_batch_size(batch_size)))
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.inner.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.inner.metrics()
    }

    fn file_type(&self) -> &str {
        self.inner.file_type()
    }

    fn fmt_extra(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_extra(kind, f)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }
}

/// Opens one file, or a part of one.
struct Opener {
    store: Arc<dyn ObjectStore>,
    /// Those of the file's columns that are read.
    columns: Vec<usize>,
}

/// With which a file begins whose footer says where its batches are.
const MAGIC: &[u8] = b"ARROW1";

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let (store, columns) = (Arc::clone(&self.store), self.columns.clone());
        Ok(Box::pin(async move {
            let object = file.object_meta;
            let head = object.size.min(MAGIC.len() as u64);
            let has_footer = store.get_range(&object.location, 0..head).await? == MAGIC;
            if has_footer {
                return blocks::open(store, object, columns, file.range).await;
            }
            if file.range.is_some_and(|range| range.start > 0) {
                // Whoever has the beginning reads it all.
                return Ok(Box::pin(futures::stream::empty()) as _);
            }
            messages::open(store, object, columns).await
        }))
    }
}
