//! The root of a stage whose output is blocks.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::common::Result;
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use forebay_engine::in_claimed_order;
use forebay_engine::unreserved::admit;
use forebay_engine::weight;
use futures::StreamExt;
use futures::future::try_join_all;
use tokio::sync::Mutex;

use super::counted_file::{CountedFile, EndedBlock};
use super::cut::{BlockSize, Cutter};
use super::open_block::{OpenBlock, Sealed};
use super::row_digest::RowDigest;
use super::row_keys::RowKeys;
use super::run_order::run_order;
use super::store::BlockStore;
use crate::graph::{RowKey, RunBlock};
use crate::protocol::location::FileId;

/// Writes its input's rows as blocks.
///
/// Rows: all of the input's. Order: a block's rows, and a partition's blocks, are in the input's
/// order. Memory: a batch of the input, and while it is written its form in the file, reserved; what the
/// pool refuses of that passes if it is [small](forebay_engine::unreserved). Cancel: dropping it removes what is not sealed. Errors: the input's, a
/// full disk, a full store, the pool's.
#[derive(Clone, Debug)]
pub struct BlockWriterExec {
    input: Arc<dyn ExecutionPlan>,
    size: BlockSize,
    /// Blocks that an earlier attempt has sealed and that are still there.
    skipped: Vec<u32>,
    /// Whether its input is a sort, and it tells of each block where it is in its run.
    tells_keys: bool,
}

/// Called with each block when it is sealed.
pub type OnSealed<'a> = &'a (dyn Fn(FileId, &Sealed) + Sync);

impl BlockWriterExec {
    /// Writes blocks of this size.
    pub fn new(input: Arc<dyn ExecutionPlan>, size: BlockSize) -> Self {
        Self { input, size, skipped: vec![], tells_keys: false }
    }

    /// Without the blocks that are there already.
    #[must_use]
    pub fn with_skipped(mut self, skipped: Vec<u32>) -> Self {
        self.skipped = skipped;
        self
    }

    /// Of the sorted runs that its input [gives](run_order): with what is told of [blocks of runs](RunBlock).
    #[must_use]
    pub fn with_keys(mut self, tells_keys: bool) -> Self {
        self.tells_keys = tells_keys;
        self
    }

    /// Whether it says with which keys blocks begin.
    pub fn tells_keys(&self) -> bool {
        self.tells_keys
    }

    /// The plan whose rows it writes.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How large blocks become.
    pub fn size(&self) -> BlockSize {
        self.size
    }

    /// Blocks that are not written again.
    pub fn skipped(&self) -> &[u32] {
        &self.skipped
    }

    /// Writes everything.
    ///
    /// # Errors
    /// The input's, a full disk, a full store.
    pub async fn write(
        &self,
        store: &Arc<BlockStore>,
        job: &str,
        stage: u32,
        task: u32,
        context: Arc<TaskContext>,
        on_sealed: OnSealed<'_>,
    ) -> Result<Vec<(FileId, Sealed)>> {
        let told = self.told()?;
        let output = Output {
            store,
            job,
            stage,
            task,
            skipped: self.skipped.iter().copied().collect(),
            next: Mutex::new(0),
            memory: MemoryConsumer::new("BlockWriterExec").register(context.memory_pool()),
            told,
            on_sealed,
        };
        let partitions = self.input.output_partitioning().partition_count();
        let streams = (0..partitions)
            .map(|partition| {
                let rows = self.input.execute(partition, Arc::clone(&context))?;
                Ok(in_claimed_order(self.input.as_ref(), rows))
            })
            .collect::<Result<Vec<_>>>()?;
        let written = streams.into_iter().map(|rows| output.write(rows, self.size));
        let mut blocks: Vec<_> = try_join_all(written).await?.into_iter().flatten().collect();
        blocks.sort_by_key(|(id, _)| *id);
        Ok(blocks)
    }

    /// What makes keys of rows, and a digest, if they are to be told.
    fn told(&self) -> Result<Option<(RowKeys, RowDigest)>> {
        if !self.tells_keys {
            return Ok(None);
        }
        match run_order(&self.input) {
            Some(order) => {
                let keys = RowKeys::try_new(&order, &self.input.schema())?;
                Ok(Some((keys, RowDigest::new(&order))))
            }
            None => {
                internal_err!("BlockWriterExec tells keys of a sort, found {}", self.input.name())
            }
        }
    }
}

/// Where the blocks of one task go.
struct Output<'a> {
    store: &'a Arc<BlockStore>,
    job: &'a str,
    stage: u32,
    task: u32,
    skipped: HashSet<u32>,
    next: Mutex<u32>,
    memory: MemoryReservation,
    told: Option<(RowKeys, RowDigest)>,
    on_sealed: OnSealed<'a>,
}

impl Output<'_> {
    async fn write(
        &self,
        rows: SendableRecordBatchStream,
        size: BlockSize,
    ) -> Result<Vec<(FileId, Sealed)>> {
        let mut blocks = Blocks::default();
        let written = self.write_rows(rows, size, &mut blocks).await;
        // Those that have ended are complete, whatever became of the others.
        let kept = self.keep(&mut blocks, |_| true).await;
        written.and(kept).map(|()| blocks.sealed)
    }

    async fn write_rows(
        &self,
        mut rows: SendableRecordBatchStream,
        size: BlockSize,
        blocks: &mut Blocks,
    ) -> Result<()> {
        let mut cutter = Cutter::new(size);
        let mut open: Option<Growing> = None;
        let mut file = None;
        let mut end = None;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            if batch.num_rows() == 0 {
                continue;
            }
            end = self.key(&batch, batch.num_rows() - 1)?;
            let mut hashes = self.hashes(&batch)?.into_iter();
            for piece in cutter.cut(&batch) {
                if piece.starts_block {
                    self.seal(open.take(), &mut file, blocks).await?;
                    self.keep(blocks, EndedBlock::is_ready).await?;
                }
                let block = match &mut open {
                    Some(block) => block,
                    None => open.insert(self.begin(&piece.rows).await?),
                };
                if let Some(run) = &mut block.run {
                    let of_piece = hashes.by_ref().take(piece.rows.num_rows());
                    run.digest = of_piece.fold(run.digest, u64::wrapping_add);
                }
                if self.skipped.contains(&block.id.seq) {
                    continue;
                }
                if block.joined.add(piece.rows) {
                    self.flush(block, &mut file).await?;
                }
            }
        }
        if let Some(run) = open.as_mut().and_then(|block| block.run.as_mut()) {
            run.end = end;
        }
        self.seal(open, &mut file, blocks).await
    }

    /// The key of a row, if keys are told.
    fn key(&self, rows: &RecordBatch, at: usize) -> Result<Option<RowKey>> {
        let Some((keys, _)) = &self.told else { return Ok(None) };
        Ok(Some(RowKey::new(keys.of(rows, at)?.as_ref())))
    }

    /// What each row adds to a digest, if keys are told. Asked once of a batch, whatever it is cut into: its
    /// dictionaries belong to all of it.
    fn hashes(&self, rows: &RecordBatch) -> Result<Vec<u64>> {
        let Some((_, digest)) = &self.told else { return Ok(vec![]) };
        digest.hashes(rows)
    }

    /// A block whose first rows are these.
    async fn begin(&self, rows: &RecordBatch) -> Result<Growing> {
        let run = self.key(rows, 0)?.map(|key| RunBlock { key, end: None, digest: 0 });
        Ok(Growing { id: self.next_id().await, run, joined: Joined::default(), file: None })
    }

    async fn next_id(&self) -> FileId {
        let mut next = self.next.lock().await;
        let id = FileId { stage: self.stage, task: self.task, seq: *next };
        *next += 1;
        id
    }

    /// Writes what has been joined, behind other blocks if there is a file for that.
    async fn flush(&self, block: &mut Growing, file: &mut Option<CountedFile>) -> Result<()> {
        let memory = self.memory.new_empty();
        admit(&memory, block.joined.bytes_to_write())?;
        let Some(rows) = block.joined.take()? else { return Ok(()) };
        let open = match (block.file.take(), file.take()) {
            (Some(open), _) => open,
            (None, Some(file)) => OpenBlock::within(file.for_block(block.id), &rows)?,
            (None, None) if block.run.is_some() => {
                OpenBlock::create_run(self.store, self.job, block.id, &rows)?
            }
            (None, None) => OpenBlock::create(self.store, self.job, block.id, &rows)?,
        };
        block.file.insert(open).write(&rows).await
    }

    /// Ends a block; `file` becomes that for the next one.
    async fn seal(
        &self,
        open: Option<Growing>,
        file: &mut Option<CountedFile>,
        blocks: &mut Blocks,
    ) -> Result<()> {
        let Some(mut block) = open else { return Ok(()) };
        self.flush(&mut block, file).await?;
        // Without a file it is there already.
        let Some(open) = block.file else { return Ok(()) };
        if block.run.is_some() {
            let (sealed, ended, written) = open.seal_within()?;
            *file = Some(written).filter(|written| written.ended() < RUN_FILE_BYTES);
            blocks.ended.push_back((block.id, Sealed { run: block.run, ..sealed }, ended));
        } else {
            // Whoever has read it has it removed.
            blocks.sealed.push(self.sealed(block.id, open.seal()?));
        }
        Ok(())
    }

    /// Keeps the first blocks that have ended, as far as they are like this.
    async fn keep(&self, blocks: &mut Blocks, which: impl Fn(&EndedBlock) -> bool) -> Result<()> {
        while let Some((id, sealed, ended)) =
            blocks.ended.pop_front_if(|(_, _, ended)| which(ended))
        {
            let bytes = ended.keep().await?;
            blocks.sealed.push(self.sealed(id, Sealed { bytes, ..sealed }));
        }
        Ok(())
    }

    fn sealed(&self, id: FileId, sealed: Sealed) -> (FileId, Sealed) {
        (self.on_sealed)(id, &sealed);
        (id, sealed)
    }
}

/// Blocks that were written, in their order.
#[derive(Default)]
struct Blocks {
    /// Those that are complete.
    sealed: Vec<(FileId, Sealed)>,
    /// Those that may still be on their way to the disk.
    ended: VecDeque<(FileId, Sealed, EndedBlock)>,
}

/// So much of a run is in one file. Its blocks are small, and would be tens of thousands of files, which file systems are
/// slow to make where others were removed a moment ago. A file, and its room, stays while it has a block that is wanted,
/// as they all are until the ranges are done; one that a reader lost keeps it until the job ends, so it is not large.
const RUN_FILE_BYTES: u64 = 16 << 20;

/// A block that is being written.
struct Growing {
    id: FileId,
    /// What is told of it, so far.
    run: Option<RunBlock>,
    joined: Joined,
    file: Option<OpenBlock>,
}

/// Small batches, such as a model's, on their way to become one: for each batch a block has a
/// header, padding, and room for its buffers that is lost to compression.
#[derive(Default)]
struct Joined {
    batches: Vec<RecordBatch>,
    bytes: usize,
    rows: usize,
}

/// From here on a batch is large enough.
const JOINED_BYTES: usize = 256 << 10;
const JOINED_ROWS: usize = 8192;

impl Joined {
    /// Says whether there is enough to be written.
    fn add(&mut self, batch: RecordBatch) -> bool {
        self.bytes += weight::bytes(&batch);
        self.rows += batch.num_rows();
        self.batches.push(batch);
        self.bytes >= JOINED_BYTES || self.rows >= JOINED_ROWS
    }

    /// Bytes that come into being while it is written: one batch of several, and what lies in the file.
    fn bytes_to_write(&self) -> usize {
        let copies = if self.batches.len() > 1 { 2 } else { 1 };
        self.bytes.saturating_mul(copies)
    }

    /// All of it, without what its buffers hold beside it.
    fn take(&mut self) -> Result<Option<RecordBatch>> {
        let Self { batches, .. } = std::mem::take(self);
        let Some(first) = batches.first() else { return Ok(None) };
        let joined = match &batches[..] {
            [one] => one.clone(),
            all => concat_batches(first.schema_ref(), all)?,
        };
        Ok(Some(weight::compact(&joined)?))
    }
}

impl DisplayAs for BlockWriterExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockWriterExec: bytes_max={}", self.size.bytes_max)?;
        if self.tells_keys { f.write_str(", keys=true") } else { Ok(()) }
    }
}

impl ExecutionPlan for BlockWriterExec {
    fn name(&self) -> &'static str {
        "BlockWriterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
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
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input, ..Self::clone(&self) })),
            Err(all) => internal_err!("BlockWriterExec takes one input, found {}", all.len()),
        }
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("BlockWriterExec is the root of a stage: a worker calls write")
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::Int64Type;
    use arrow::ipc::reader::StreamReader;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::sorts::sort::SortExec;
    use forebay_engine::ErrorKind;
    use tempfile::TempDir;

    use super::*;
    use crate::protocol::location::BlockLocation;

    /// What a model gives: a slice of a large batch after the other.
    fn slices(rows: usize) -> Vec<RecordBatch> {
        let text = (0..8000).map(|row| format!("a text that is longer than a view: {row:06}"));
        let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(text));
        let whole = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        (0..8000 / rows).map(|at| whole.slice(at * rows, rows)).collect()
    }

    async fn written(batches: Vec<RecordBatch>, skipped: Vec<u32>) -> (Vec<RecordBatch>, Vec<u64>) {
        let folder = TempDir::new().unwrap();
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let store = Arc::new(store);
        let schema = batches[0].schema();
        let input = MemorySourceConfig::try_new_exec(&[batches], schema, None).unwrap();
        let writer = BlockWriterExec::new(input, BlockSize::up_to(u64::MAX).in_windows_of(1000));
        let writer = writer.with_skipped(skipped);
        let context = Arc::new(TaskContext::default());
        let blocks = writer.write(&store, "job", 1, 2, context, &|_, _| {}).await.unwrap();
        let (mut read, mut sizes) = (vec![], vec![]);
        for (id, sealed) in blocks {
            let (rows, bytes, checksum) = (sealed.rows, sealed.bytes, sealed.checksum);
            let (job, worker, address) = ("job".to_owned(), "w".to_owned(), String::new());
            let segment_at = None;
            let location =
                BlockLocation { job, id, worker, address, bytes, rows, checksum, segment_at };
            let file = store.read(&location).unwrap();
            let batches = StreamReader::try_new(&file[..], None).unwrap();
            read.extend(batches.map(Result::unwrap));
            sizes.push(bytes);
        }
        (read, sizes)
    }

    #[tokio::test]
    async fn a_block_of_small_slices_is_as_large_as_one_of_a_large_batch() {
        let (rows, sizes) = written(slices(16), vec![]).await;
        let (expected, expected_sizes) = written(slices(8000), vec![]).await;
        let schema = expected[0].schema();
        let all = |batches: &[RecordBatch]| concat_batches(&schema, batches).unwrap();
        assert_eq!(all(&rows), all(&expected));
        assert_eq!(
            (sizes.len(), rows.len()),
            (4, 4),
            "of 1000, 2000, 4000 and 1000 rows, one batch"
        );
        for (size, expected) in sizes.iter().zip(&expected_sizes) {
            assert!(size * 10 < expected * 11, "{sizes:?} instead of {expected_sizes:?}");
        }
    }

    #[tokio::test]
    async fn what_it_takes_to_write_a_batch_is_reserved_or_small() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool)).build_arc();
        let context = Arc::new(TaskContext::default().with_runtime(runtime.unwrap()));
        let folder = TempDir::new().unwrap();
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let store = Arc::new(store);
        let write = async |bytes: usize| {
            let column: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(bytes)]));
            let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
            let schema = batch.schema();
            let input = MemorySourceConfig::try_new_exec(&[vec![batch]], schema, None).unwrap();
            let writer = BlockWriterExec::new(input, BlockSize::WHOLE);
            writer.write(&store, "job", 1, 2, Arc::clone(&context), &|_, _| {}).await
        };
        assert_eq!(write(10_000).await.unwrap().len(), 1);
        assert_eq!(pool.reserved(), 0, "it is written");
        let error = write(72 << 20).await.unwrap_err();
        assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted);
        assert!(error.to_string().contains("BlockWriterExec: 72.0 MiB at once"), "{error}");
    }

    #[tokio::test]
    async fn what_is_there_is_not_written_again() {
        let (all, _) = written(slices(16), vec![]).await;
        let (rows, _) = written(slices(16), vec![0, 2]).await;
        assert_eq!(rows, [all[1].clone(), all[3].clone()]);
    }
    /// A sorted run of 100,000 numbers in small blocks, in a store whose blocks the page cache has up to so many bytes of:
    /// what was told, in that order, and where each number is.
    async fn run(
        cached_max: u64,
        skipped: &[u32],
        folder: &TempDir,
    ) -> (Vec<FileId>, Vec<(FileId, Vec<i64>)>) {
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let store = Arc::new(store.with_cached_max(cached_max));
        let numbers = Int64Array::from_iter_values((0..100_000).map(|n| n * 7919 % 100_003));
        let batch = RecordBatch::try_from_iter([("n", Arc::new(numbers) as ArrayRef)]).unwrap();
        let schema = batch.schema();
        let input = MemorySourceConfig::try_new_exec(&[vec![batch]], schema, None).unwrap();
        let key = PhysicalSortExpr::new_default(Arc::new(Column::new("n", 0)));
        let sort = Arc::new(SortExec::new([key].into(), input));
        let size = BlockSize::of_run(20_000, 1 << 20);
        let writer =
            BlockWriterExec::new(sort, size).with_keys(true).with_skipped(skipped.to_vec());
        let told = parking_lot::Mutex::new(vec![]);
        let context = Arc::new(TaskContext::default());
        let tell = |id: FileId, sealed: &Sealed| {
            assert!(sealed.run.is_some());
            told.lock().push(id);
        };
        let blocks = writer.write(&store, "job", 1, 2, context, &tell).await.unwrap();
        let mut found = vec![];
        for (id, sealed) in blocks {
            let (bytes, rows, checksum) = (sealed.bytes, sealed.rows, sealed.checksum);
            let (job, worker) = ("job".to_owned(), "w".to_owned());
            let location =
                BlockLocation { job, id, worker, bytes, rows, checksum, ..Default::default() };
            let file = store.read(&location).unwrap();
            let batches = StreamReader::try_new(&file[..], None).unwrap().map(Result::unwrap);
            let numbers =
                |batch: RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            found.push((id, batches.flat_map(numbers).collect()));
        }
        (told.into_inner(), found)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn blocks_of_a_run_are_the_same_past_the_page_cache() {
        let folders = [(); 3].map(|()| TempDir::new().unwrap());
        let (told, cached) = run(u64::MAX, &[], &folders[0]).await;
        assert!(cached.len() > 30, "{} blocks", cached.len());
        let numbers: Vec<i64> = cached.iter().flat_map(|(_, numbers)| numbers.clone()).collect();
        assert!(numbers.len() == 100_000 && numbers.is_sorted());
        assert!(told.is_sorted() && told.len() == cached.len());
        let (its_told, direct) = run(0, &[], &folders[1]).await;
        assert!(direct == cached && its_told == told);
        let (its_told, rest) = run(0, &[0, 1, 7], &folders[2]).await;
        let is_skipped = |id: &FileId| [0, 1, 7].contains(&id.seq);
        assert_eq!(its_told, told.into_iter().filter(|id| !is_skipped(id)).collect::<Vec<_>>());
        assert!(rest == cached.into_iter().filter(|(id, _)| !is_skipped(id)).collect::<Vec<_>>());
    }
}
