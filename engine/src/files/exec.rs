//! The plan node and its stream.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, BinaryBuilder, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

/// Bytes of files in one batch, unless one file has more: a batch of a few photos stays in the caches of a
/// core, and 8 MiB took twice the memory and as much time.
const BATCH_BYTES: usize = 1024 * 1024;
/// Files that are being read or waiting at one time, per partition.
const READ_AHEAD_FILES: usize = 4;
/// Bytes of one file at most.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let modified = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("url", DataType::Utf8, false),
        Field::new("size", DataType::Int64, false),
        Field::new("modified", modified, false),
        Field::new("bytes", DataType::Binary, true),
    ]))
});
/// Where the bytes are in the schema: the only column that is read and not known.
const BYTES_COLUMN: usize = 3;

/// A file that a listing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The store that it is in.
    pub store: ObjectStoreUrl,
    /// Where it is in the store.
    pub path: Path,
    /// Its bytes.
    pub size: u64,
    /// When it was written, in microseconds since 1970.
    pub modified_us: i64,
}

impl File {
    /// What `read_files` finds this file under: what would mean something else in a URL is encoded.
    fn url(&self) -> String {
        let mut url = self.store.as_str().to_owned();
        for c in self.path.as_ref().chars() {
            match c {
                '%' | '*' | '?' | '[' | '#' | '\\' | '\0'..='\x1f' | '\x7f' => {
                    url.push_str(&format!("%{:02X}", u32::from(c)));
                }
                c => url.push(c),
            }
        }
        url
    }
}

/// What becomes of a file that is listed and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnreadable {
    /// The query ends with the reason.
    Fail,
    /// Its bytes are NULL.
    Null,
}

/// Reads files, each as a row.
///
/// ```text
///  P lists of files ──> P partitions
/// ```
///
/// - rows: one per file, in the order of its list
/// - memory: a batch of 1 MiB (or one file), and 4 files ahead
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

    /// What a listing tells of files: all columns, with NULL for bytes.
    ///
    /// # Errors
    /// If a size is no number of SQL's.
    pub fn listing(files: &[File]) -> Result<RecordBatch> {
        let rows: Vec<Row> = files.iter().map(|file| (file.clone(), None)).collect();
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
        match children.is_empty() {
            true => Ok(self),
            false => internal_err!("ReadFilesExec has no input, found {}", children.len()),
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
        let reader = Reader {
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

/// A file with its bytes, if they are needed and could be read.
type Row = (File, Option<Bytes>);

/// Reads the files of one partition.
#[derive(Clone, Debug)]
struct Reader {
    env: Arc<RuntimeEnv>,
    on_unreadable: OnUnreadable,
    needs_bytes: bool,
    files_read: Count,
    files_failed: Count,
    bytes_read: Count,
}

impl Reader {
    /// In the order of the list.
    fn rows(self, files: Arc<[File]>) -> BoxStream<'static, Result<Row>> {
        let reads = (0..files.len()).map(move |at| {
            let (reader, file) = (self.clone(), files[at].clone());
            async move { reader.row(file).await }
        });
        futures::stream::iter(reads).buffered(READ_AHEAD_FILES).boxed()
    }

    async fn row(&self, file: File) -> Result<Row> {
        if !self.needs_bytes {
            return Ok((file, None));
        }
        match self.read(&file).await {
            Ok(bytes) => {
                self.files_read.add(1);
                self.bytes_read.add(bytes.len());
                Ok((file, Some(bytes)))
            }
            Err(error) if self.on_unreadable == OnUnreadable::Fail => Err(error.context(format!(
                "{} cannot be read; read_files(…, 'null') gives NULL for the bytes of such files",
                file.url()
            ))),
            Err(_) => {
                self.files_failed.add(1);
                Ok((file, None))
            }
        }
    }

    async fn read(&self, file: &File) -> Result<Bytes> {
        if file.size > FILE_BYTES_MAX {
            return exec_err!("it has {} bytes, more than {FILE_BYTES_MAX}", file.size);
        }
        let store: Arc<dyn ObjectStore> = self.env.object_store(&file.store)?;
        let found = store.get(&file.path).await?;
        // It may have grown.
        if found.meta.size > FILE_BYTES_MAX {
            return exec_err!("it has {} bytes, more than {FILE_BYTES_MAX}", found.meta.size);
        }
        Ok(found.bytes().await?)
    }
}

/// Rows → batches.
struct Batches {
    rows: BoxStream<'static, Result<Row>>,
    /// A row that did not fit into the batch before.
    held: Option<Row>,
    rows_max: usize,
    projection: Vec<usize>,
    schema: SchemaRef,
}

impl Batches {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut rows: Vec<Row> = vec![];
        let mut size = 0;
        while rows.len() < self.rows_max {
            let row = match self.held.take() {
                Some(row) => row,
                None => match self.rows.next().await {
                    Some(row) => row?,
                    None => break,
                },
            };
            let bytes = row.1.as_ref().map_or(0, Bytes::len);
            if size > 0 && size + bytes > BATCH_BYTES {
                self.held = Some(row);
                break;
            }
            size += bytes;
            rows.push(row);
        }
        if rows.is_empty() { Ok(None) } else { self.batch(&rows).map(Some) }
    }

    fn batch(&self, rows: &[Row]) -> Result<RecordBatch> {
        batch(rows, &self.projection, &self.schema)
    }
}

fn batch(rows: &[Row], projection: &[usize], schema: &SchemaRef) -> Result<RecordBatch> {
    let column = |at: &usize| -> Result<ArrayRef> {
        let files = rows.iter().map(|(file, _)| file);
        Ok(match *at {
            0 => Arc::new(files.map(|file| Some(file.url())).collect::<StringArray>()),
            1 => Arc::new(
                files
                    .map(|file| i64::try_from(file.size))
                    .collect::<std::result::Result<Int64Array, _>>()
                    .map_err(|e| exec_datafusion_err!("the size of a file: {e}"))?,
            ),
            2 => Arc::new(
                TimestampMicrosecondArray::from_iter_values(files.map(|f| f.modified_us))
                    .with_timezone("UTC"),
            ),
            _ => {
                let size =
                    rows.iter().filter_map(|(_, content)| content.as_ref()).map(Bytes::len).sum();
                // Growing would copy megabytes again and again.
                let mut bytes = BinaryBuilder::with_capacity(rows.len(), size);
                for (_, content) in rows {
                    bytes.append_option(content.as_ref());
                }
                Arc::new(bytes.finish())
            }
        })
    };
    let columns = projection.iter().map(column).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
