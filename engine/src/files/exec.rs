//! The plan node and its stream.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use arrow::array::{
    ArrayRef, BinaryArray, BinaryBuilder, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{
    DataFusionError, Result, Statistics, exec_datafusion_err, exec_err, internal_err,
};
use datafusion::execution::memory_pool::MemoryConsumer;
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

use crate::exchange::budget::{Budget, Permit};

/// Bytes of files in one batch, unless one file has more: a batch of a few photos stays in the caches of a
/// core, and 8 MiB took twice the memory and as much time.
const BATCH_BYTES: usize = 1024 * 1024;
/// Files that are being read or waiting at one time, per partition, and their bytes, unless the next
/// file alone has more.
const READ_AHEAD_FILES: usize = 4;
const READ_AHEAD_BYTES: usize = 64 << 20;
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

    /// What a listing tells of files: all columns, with NULL for bytes.
    ///
    /// # Errors
    /// If a size is no number of SQL's.
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

/// A file with its bytes, if they are needed and could be read.
struct Row {
    file: File,
    bytes: Option<Bytes>,
    /// For the bytes.
    permit: Option<Permit>,
}

/// Reads the files of one partition.
#[derive(Clone, Debug)]
struct Reader {
    ahead: Arc<Budget>,
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
        let reader = self.clone();
        // One after the other: the file that is wanted first must not wait for those behind it.
        let admitted = futures::stream::iter(0..files.len()).then(move |at| {
            let (reader, file) = (reader.clone(), files[at].clone());
            async move { Ok((reader.admit(&file).await?, file)) }
        });
        let reads = admitted.map(move |admitted: Result<_>| {
            let reader = self.clone();
            async move {
                let (permit, file) = admitted?;
                reader.row(file, permit).await
            }
        });
        reads.buffered(READ_AHEAD_FILES).boxed()
    }

    /// Waits until there is room for a file.
    async fn admit(&self, file: &File) -> Result<Option<Permit>> {
        if !self.needs_bytes || file.size > FILE_BYTES_MAX {
            return Ok(None);
        }
        let bytes = usize::try_from(file.size).unwrap_or(usize::MAX);
        let take = |cx: &mut Context<'_>| match self.ahead.try_take(bytes, cx.waker()) {
            Ok(None) => Poll::Pending,
            Ok(permit) => Poll::Ready(Ok(permit)),
            Err(error) => Poll::Ready(Err(error.context(format!("for {}", file.url())))),
        };
        poll_fn(take).await
    }

    async fn row(&self, file: File, mut permit: Option<Permit>) -> Result<Row> {
        if !self.needs_bytes {
            return Ok(Row { file, bytes: None, permit });
        }
        match self.read(&file, &mut permit).await {
            Ok(bytes) => {
                self.files_read.add(1);
                self.bytes_read.add(bytes.len());
                Ok(Row { file, bytes: Some(bytes), permit })
            }
            // A file for which there is no memory is no unreadable one.
            Err(error) if matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) => {
                Err(error.context(format!("for {}", file.url())))
            }
            Err(error) if self.on_unreadable == OnUnreadable::Fail => Err(error.context(format!(
                "{} cannot be read; read_files(…, 'null') gives NULL for the bytes of such files",
                file.url()
            ))),
            Err(_) => {
                self.files_failed.add(1);
                Ok(Row { file, bytes: None, permit: None })
            }
        }
    }

    async fn read(&self, file: &File, permit: &mut Option<Permit>) -> Result<Bytes> {
        if file.size > FILE_BYTES_MAX {
            return exec_err!("it has {} bytes, more than {FILE_BYTES_MAX}", file.size);
        }
        let store: Arc<dyn ObjectStore> = self.env.object_store(&file.store)?;
        let found = store.get(&file.path).await?;
        // It may have grown.
        if found.meta.size > FILE_BYTES_MAX {
            return exec_err!("it has {} bytes, more than {FILE_BYTES_MAX}", found.meta.size);
        }
        if let Some(permit) = permit {
            let more = found.meta.size.saturating_sub(file.size);
            permit.grow(usize::try_from(more).unwrap_or(usize::MAX))?;
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
        while rows.len() < self.rows_max && size < BATCH_BYTES {
            let row = match self.held.take() {
                Some(row) => row,
                None => {
                    // The next file may wait for what these hold: less than a batch.
                    rows.iter_mut().for_each(|row| row.permit = None);
                    match self.rows.next().await {
                        Some(row) => row?,
                        None => break,
                    }
                }
            };
            let bytes = row.bytes.as_ref().map_or(0, Bytes::len);
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
        let files = rows.iter().map(|row| &row.file);
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
                if let [Row { bytes: Some(bytes), .. }] = rows {
                    // Large, perhaps: not copied.
                    let offsets = OffsetBuffer::from_lengths([bytes.len()]);
                    let bytes = Buffer::from(bytes.clone());
                    return Ok(Arc::new(BinaryArray::try_new(offsets, bytes, None)?));
                }
                let size = rows.iter().filter_map(|row| row.bytes.as_ref()).map(Bytes::len).sum();
                // Growing would copy megabytes again and again.
                let mut bytes = BinaryBuilder::with_capacity(rows.len(), size);
                for row in rows {
                    bytes.append_option(row.bytes.as_ref());
                }
                Arc::new(bytes.finish())
            }
        })
    };
    let columns = projection.iter().map(column).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

#[cfg(test)]
mod tests {
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::prelude::SessionConfig;
    use futures::TryStreamExt;
    use tempfile::TempDir;

    use super::*;
    use crate::ErrorKind;

    const MIB: usize = 1 << 20;

    /// Files of so many bytes, whose first byte is their number.
    fn files(folder: &TempDir, sizes: &[usize]) -> Vec<File> {
        let file = |(at, size): (usize, &usize)| {
            let path = folder.path().join(format!("{at}.bin"));
            let mut bytes = vec![0; *size];
            bytes[0] = at as u8;
            std::fs::write(&path, bytes).unwrap();
            File {
                store: ObjectStoreUrl::local_filesystem(),
                path: Path::from_absolute_path(path).unwrap(),
                size: *size as u64,
                modified_us: 0,
            }
        };
        sizes.iter().enumerate().map(file).collect()
    }

    fn read(files: Vec<File>, pool: &Arc<dyn MemoryPool>) -> SendableRecordBatchStream {
        let partitions = vec![files.into()];
        let plan = ReadFilesExec::try_new(partitions, vec![BYTES_COLUMN], OnUnreadable::Fail);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(pool));
        let context = TaskContext::default()
            .with_session_config(SessionConfig::new())
            .with_runtime(runtime.build_arc().unwrap());
        plan.unwrap().execute(0, Arc::new(context)).unwrap()
    }

    fn firsts(batches: &[RecordBatch]) -> Vec<(u8, usize)> {
        let column = |batch: &RecordBatch| {
            batch.column(0).as_any().downcast_ref::<BinaryArray>().unwrap().clone()
        };
        let files = batches.iter().map(column);
        files
            .flat_map(|c| c.iter().map(|f| f.map(|f| (f[0], f.len())).unwrap()).collect::<Vec<_>>())
            .collect()
    }

    #[tokio::test]
    async fn what_is_read_ahead_is_reserved_and_bounded() {
        let folder = TempDir::new().unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(usize::MAX));
        let mut rows = read(files(&folder, &[30 * MIB; 6]), &pool);
        let first = rows.next().await.unwrap().unwrap();
        assert!(pool.reserved() > 0 && pool.reserved() <= 64 * MIB, "{}", pool.reserved());
        let rest: Vec<_> = rows.try_collect().await.unwrap();
        assert_eq!(pool.reserved(), 0);
        let all = [vec![first], rest].concat();
        assert_eq!(firsts(&all), (0..6).map(|at| (at, 30 * MIB)).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn files_wait_for_each_other_where_memory_is_short() {
        let folder = TempDir::new().unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MIB));
        let sizes = [MIB / 3, MIB / 3, MIB, 5 * MIB, MIB / 2, MIB / 2, MIB / 2];
        let rows: Vec<_> = read(files(&folder, &sizes), &pool).try_collect().await.unwrap();
        let expected: Vec<_> = (0..).zip(sizes).collect();
        assert_eq!(firsts(&rows), expected, "one that is larger than all memory passes alone");
        assert_eq!(pool.reserved(), 0);
    }

    #[tokio::test]
    async fn a_file_that_is_far_larger_than_what_is_left_ends_the_query() {
        let folder = TempDir::new().unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MIB));
        let sizes = [1000, 65 * MIB];
        let error = read(files(&folder, &sizes), &pool).try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted, "{error}");
        let error = error.strip_backtrace();
        for part in ["1.bin", "ReadFilesExec[0]: 65.0 MiB at once", "raise the memory limit"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
        assert_eq!(pool.reserved(), 0);
    }
}
