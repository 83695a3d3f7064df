//! The plan node and its stream.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::file::{File, OnUnreadable};
use super::reader::{READ_AHEAD_BYTES, Reader, Row};
use super::rows::{BYTES_COLUMN, Batches, SCHEMA, batch};
use crate::exchange::budget::Budget;

/// Reads files, each as a row.
///
/// ```text
///  P lists of files ──> P partitions
/// ```
///
/// - rows: one per file, in the order of its list
/// - memory: a batch of 1 MiB (or one file), and up to 4 files ahead: 64 MiB of them (or one file),
///   reserved before they are read. A file that the memory pool refuses waits for the others; if it is
///   the only one and larger than may pass [unreserved](crate::unreserved), the query ends
/// - cancel: dropping the stream drops the reads
/// - errors: of a file that cannot be read, by the policy; the row stays
#[derive(Debug)]
pub struct ReadFilesExec {
    /// The files of each partition.
    partitions: Vec<Arc<[File]>>,
    /// Columns of [`Self::full_schema`].
    projection: Vec<usize>,
    on_unreadable: OnUnreadable,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl ReadFilesExec {
    /// All columns: url, size, modified, bytes.
    pub fn full_schema() -> SchemaRef {
        Arc::clone(&SCHEMA)
    }

    /// # Errors
    /// If there is no such column.
    pub fn try_new(
        partitions: Vec<Arc<[File]>>,
        projection: Vec<usize>,
        on_unreadable: OnUnreadable,
    ) -> Result<Self> {
        let schema = Arc::new(SCHEMA.project(&projection)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(Self {
            partitions,
            projection,
            on_unreadable,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// All files, in the order of their rows.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.partitions.iter().flat_map(|files| files.iter())
    }

    /// The same with other files, in as many partitions.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn with_files(&self, files: &[File]) -> Result<Self> {
        let count = self.partitions.len().max(1);
        let each = files.len().div_ceil(count).max(1);
        let mut partitions: Vec<Arc<[File]>> = files.chunks(each).map(Arc::from).collect();
        partitions.resize(count, Arc::from([]));
        Self::try_new(partitions, self.projection.clone(), self.on_unreadable)
    }

    /// What becomes of files that cannot be read.
    pub fn on_unreadable(&self) -> OnUnreadable {
        self.on_unreadable
    }

    /// What a listing tells of files: all columns, with NULL for bytes.
    ///
    /// # Errors
    /// If a size is more than a BIGINT holds.
    pub fn listing(files: &[File]) -> Result<RecordBatch> {
        let row = |file: &File| Row { file: file.clone(), bytes: None, permit: None };
        let rows: Vec<Row> = files.iter().map(row).collect();
        let all: Vec<usize> = (0..SCHEMA.fields().len()).collect();
        batch(&rows, &all, &SCHEMA)
    }

    pub(super) fn parts(&self) -> (&[Arc<[File]>], &[usize], OnUnreadable) {
        (&self.partitions, &self.projection, self.on_unreadable)
    }
}

impl DisplayAs for ReadFilesExec {
    fn fmt_as(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: usize = self.partitions.iter().map(|files| files.len()).sum();
        let schema = self.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let columns = columns.join(", ");
        match kind {
            DisplayFormatType::TreeRender => write!(f, "files={files}\ncolumns={columns}"),
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "ReadFilesExec: files={files}, columns=[{columns}]")?;
                match self.on_unreadable {
                    OnUnreadable::Fail => Ok(()),
                    OnUnreadable::Null => write!(f, ", on_error=null"),
                }
            }
        }
    }
}

impl ExecutionPlan for ReadFilesExec {
    fn name(&self) -> &'static str {
        "ReadFilesExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() {
            Ok(self)
        } else {
            internal_err!("ReadFilesExec has no input, found {}", children.len())
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(files) = self.partitions.get(partition) else {
            return internal_err!("ReadFilesExec has no partition {partition}");
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let memory = MemoryConsumer::new(format!("ReadFilesExec[{partition}]"));
        let memory = memory.register(context.memory_pool());
        let reader = Reader {
            ahead: Arc::new(Budget::new(READ_AHEAD_BYTES, memory)),
            env: context.runtime_env(),
            on_unreadable: self.on_unreadable,
            needs_bytes: self.projection.contains(&BYTES_COLUMN),
            files_read: self.count("files_read", partition),
            files_failed: self.count("files_failed", partition),
            bytes_read: self.count("bytes_read", partition),
        };
        let rows_max = context.session_config().batch_size();
        let batches = Batches {
            rows: reader.rows(Arc::clone(files)),
            held: None,
            rows_max,
            projection: self.projection.clone(),
            schema: self.schema(),
        };
        let stream = futures::stream::try_unfold(batches, move |mut batches| {
            let baseline = baseline.clone();
            async move {
                let batch = batches.next().await?;
                Ok(batch.map(|batch| (batch.record_output(&baseline), batches)))
            }
        });
        let stream = RecordBatchStreamAdapter::new(self.schema(), stream);
        Ok(make_cooperative(Box::pin(stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        let rows = match partition {
            Some(at) => self.partitions.get(at).map_or(0, |files| files.len()),
            None => self.partitions.iter().map(|files| files.len()).sum(),
        };
        let mut statistics = Statistics::new_unknown(&self.schema());
        statistics.num_rows = datafusion::common::stats::Precision::Exact(rows);
        Ok(Arc::new(statistics))
    }
}

impl ReadFilesExec {
    fn count(&self, name: &'static str, partition: usize) -> Count {
        MetricBuilder::new(&self.metrics).counter(name, partition)
    }
}
