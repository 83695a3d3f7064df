//! The leaf of a stage that reads blocks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};
use forebay_engine::unreserved::admit;
use forebay_engine::{in_order, read_ahead, weight};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, future, stream};

use super::decoded::{Decoded, batches};
use super::neighbours::Neighbours;
use super::on_disk::on_disk;
use super::range::RangeCut;
use super::rest::{self, Rest};
use super::service;
use super::store::BlockStore;
use crate::graph::{KeyRange, reads_ahead};
use crate::protocol::connection::Peers;
use crate::protocol::location::BlockLocation;
use crate::protocol::schedulers::Schedulers;

/// Reads blocks.
///
/// ```text
///  partition 0 ◀── block, block, …      one after the other, the next one fetched meanwhile; where many are
///                                       merged, once the last batch of the one before is there
///  partition 1 ◀── block, …
/// ```
///
/// Of a hash shuffle, a partition reads its segment of each block; those of a worker come up to 8 MiB at a time. If
/// not all is there when it begins, it asks the scheduler for the [rest](Rest).
///
/// Rows: the blocks', checked against what was sealed. Order: the blocks', in theirs. Memory: two
/// blocks per partition as they lie on disk, compressed perhaps, or twice what comes at a time, or one block where
/// many are merged, and one batch as it is decoded, reserved; what the pool refuses of these passes if it is
/// [small](forebay_engine::unreserved). Cancel: ends the fetch. Errors: a [`BlockError`](super::failure::BlockError)
/// that names the block, so that it can be made again.
#[derive(Clone, Debug)]
pub struct BlockReaderExec {
    /// The stage that wrote them.
    stage: u32,
    partitions: Vec<Vec<BlockLocation>>,
    /// The order in which a merge above takes the partitions to be.
    merged_by: Option<LexOrdering>,
    /// By their keys in that order: the rows that it gives.
    range: KeyRange,
    /// Rows before that, which it has read and not given.
    left_out: Arc<AtomicU64>,
    /// What comes behind the blocks.
    rest: Option<Rest>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl BlockReaderExec {
    /// Reads these blocks of `stage`.
    pub fn new(stage: u32, schema: SchemaRef, partitions: Vec<Vec<BlockLocation>>) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        let metrics = ExecutionPlanMetricsSet::new();
        let (range, left_out) = (KeyRange::default(), Arc::default());
        let (merged_by, rest) = (None, None);
        Self { stage, partitions, merged_by, range, left_out, rest, properties, metrics }
    }

    /// Reads what else comes, too: not all is there yet.
    #[must_use]
    pub fn followed_by(mut self, rest: Rest) -> Self {
        self.rest = Some(rest);
        self
    }

    /// What comes behind the blocks, if anything does.
    pub fn rest(&self) -> Option<&Rest> {
        self.rest.as_ref()
    }

    /// Below a merge by this order: checked in debug builds. Does not travel; a worker adds it.
    #[must_use]
    pub fn merged_by(mut self, order: LexOrdering) -> Self {
        self.merged_by = Some(order);
        self
    }

    /// Gives of the rows those in a range of the order by which they are merged.
    #[must_use]
    pub fn in_range(mut self, range: KeyRange) -> Self {
        self.range = range;
        self
    }

    /// How many rows before the range it has read: all that there are, once each partition has given a row or ended.
    pub fn left_out(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.left_out)
    }

    /// The range in which it gives rows.
    pub fn range(&self) -> &KeyRange {
        &self.range
    }

    /// The stage that wrote the blocks.
    pub fn stage(&self) -> u32 {
        self.stage
    }

    /// The blocks of each partition.
    pub fn partitions(&self) -> &[Vec<BlockLocation>] {
        &self.partitions
    }
}

impl DisplayAs for BlockReaderExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks: usize = self.partitions.iter().map(Vec::len).sum();
        write!(f, "BlockReaderExec: stage={}, blocks={blocks}", self.stage)?;
        if !self.range.is_all() {
            f.write_str(", in a range")?;
        }
        if self.rest.is_some() { f.write_str(", and what comes") } else { Ok(()) }
    }
}

impl ExecutionPlan for BlockReaderExec {
    fn name(&self) -> &'static str {
        "BlockReaderExec"
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
        match children.len() {
            0 => Ok(self),
            many => internal_err!("BlockReaderExec is a leaf, found {many} inputs"),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let peers = context.session_config().get_extension::<Peers>().unwrap_or_default();
        self.read(partition, &context, peers)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

impl BlockReaderExec {
    /// The rows of a partition. Blocks of other workers come by the connections of `peers`.
    ///
    /// # Errors
    /// If there is no such partition.
    pub(crate) fn read(
        &self,
        partition: usize,
        context: &TaskContext,
        peers: Arc<Peers>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(blocks) = self.partitions.get(partition).cloned() else {
            return internal_err!("BlockReaderExec: no partition {partition}");
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let name = format!("BlockReaderExec[{partition}]");
        let reader = Reader {
            peers,
            store: context.session_config().get_extension::<BlockStore>(),
            neighbours: context.session_config().get_extension::<Neighbours>(),
            pool: MemoryConsumer::new(name).register(context.memory_pool()),
            bytes: MetricBuilder::new(&self.metrics).counter("bytes_read", partition),
        };
        let reader = Arc::new(reader);
        let schema = self.schema();
        let (range, left_out) = (self.cut_range()?, self.left_out());
        // One block is decoded while the next one is fetched.
        let at_once = if self.fetches_ahead() { 2 } else { 1 };
        let there = stream::iter(fetched_together(blocks)).map(Ok);
        let reads = there.chain(self.rest_of(partition, context)?).map(move |blocks| {
            let reader = Arc::clone(&reader);
            async move { reader.fetch(blocks?).await }
        });
        let rows = batches(read_ahead(reads, at_once))
            .map_ok(move |batch| as_declared(batch, &schema))
            .map(move |batch| {
                let (before, rows) = range.within(batch?)?;
                left_out.fetch_add(before as u64, Ordering::Release);
                // What is not compressed lies in the block itself.
                Ok::<_, DataFusionError>(rows.map(weight::detached).transpose()?)
            })
            // Behind the range there is nothing to read.
            .try_take_while(|batch| future::ready(Ok(batch.is_some())))
            .try_filter_map(|batch| future::ready(Ok(batch.filter(|rows| rows.num_rows() > 0))))
            .inspect_ok(move |batch| metrics.record_output(batch.num_rows()));
        let rows = Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows));
        Ok(match &self.merged_by {
            Some(order) => in_order(self.name(), order, rows),
            None => rows,
        })
    }
}

impl BlockReaderExec {
    /// Whether each partition has a block more than it needs. Of many that are merged it would be much, and in
    /// each task of a worker.
    fn fetches_ahead(&self) -> bool {
        let largest = |blocks: &Vec<BlockLocation>| blocks.iter().map(|block| block.bytes).max();
        let one_of_each = self.partitions.iter().filter_map(largest).fold(0, u64::saturating_add);
        self.merged_by.is_none() || reads_ahead(one_of_each)
    }

    /// What else comes of a partition, in pieces that are fetched together.
    fn rest_of(&self, partition: usize, context: &TaskContext) -> Result<Coming> {
        let Some(rest) = &self.rest else { return Ok(stream::empty().boxed()) };
        let schedulers = context.session_config().get_extension::<Schedulers>();
        let (Some(schedulers), Some(number)) = (schedulers, rest.partitions.get(partition)) else {
            return internal_err!("BlockReaderExec: nobody tells what comes of {partition}");
        };
        let coming = rest::coming(schedulers, rest.task.clone(), *number, rest.told);
        let groups = coming.map_ok(|blocks| stream::iter(fetched_together(blocks)).map(Ok));
        Ok(groups.try_flatten().boxed())
    }

    fn cut_range(&self) -> Result<RangeCut> {
        match &self.merged_by {
            _ if self.range.is_all() => Ok(RangeCut::all()),
            Some(order) => RangeCut::try_new(self.range.clone(), order, &self.schema()),
            None => {
                internal_err!("BlockReaderExec: a range of rows that are not merged in an order")
            }
        }
    }
}

/// Blocks that will be there, in pieces.
type Coming = BoxStream<'static, Result<Vec<BlockLocation>>>;

/// Bytes that are asked for at a time, of small segments that one worker has, and how many of them.
const TOGETHER_BYTES: u64 = 8 << 20;
const TOGETHER_MAX: usize = 1024;

/// Segments of one worker that stand side by side are fetched together, as there may be many small ones of them; a
/// whole block alone.
fn fetched_together(blocks: Vec<BlockLocation>) -> Vec<Vec<BlockLocation>> {
    let mut groups: Vec<Vec<BlockLocation>> = vec![];
    let mut bytes = 0_u64;
    for block in blocks {
        bytes = bytes.saturating_add(block.bytes);
        let fits = |group: &&mut Vec<BlockLocation>| {
            let is_like = |before: &BlockLocation| {
                before.segment_at.is_some() && before.worker == block.worker
            };
            bytes <= TOGETHER_BYTES
                && group.len() < TOGETHER_MAX
                && block.segment_at.is_some()
                && group.last().is_some_and(is_like)
        };
        match groups.last_mut().filter(fits) {
            Some(group) => group.push(block),
            None => {
                bytes = block.bytes;
                groups.push(vec![block]);
            }
        }
    }
    groups
}

/// The batch under the plan's schema. On its way to the writer a plan may forget that a column can be NULL:
/// DataFusion's codec does not keep what a cast was told to say. Whoever puts batches of several stages
/// together takes the first one's word for all.
fn as_declared(batch: RecordBatch, schema: &SchemaRef) -> RecordBatch {
    if batch.schema_ref() == schema {
        batch
    } else {
        batch.clone().with_schema(Arc::clone(schema)).unwrap_or(batch)
    }
}

/// What fetching a block needs.
struct Reader {
    peers: Arc<Peers>,
    /// The blocks of this worker.
    store: Option<Arc<BlockStore>>,
    /// Workers of this machine, if this is one.
    neighbours: Option<Arc<Neighbours>>,
    pool: MemoryReservation,
    bytes: Count,
}

impl Reader {
    /// The blocks, of one worker.
    async fn fetch(self: Arc<Self>, blocks: Vec<BlockLocation>) -> Result<Vec<Decoded>> {
        let mut reserved = vec![];
        for block in &blocks {
            let memory = self.pool.new_empty();
            // Whoever has taken the memory may be waiting for this block before it gives any back.
            admit(&memory, usize::try_from(block.bytes).unwrap_or(usize::MAX))?;
            reserved.push(memory);
        }
        let bytes = match self.own(&blocks) {
            Some(store) => {
                let here = blocks.clone();
                let read = move || {
                    here.iter().map(|block| store.read(block)).collect::<Result<Vec<_>, _>>()
                };
                let read = on_disk(read).await;
                read.map_err(|error| internal_datafusion_err!("reading a block: {error}"))??
            }
            None => self.of_another(&blocks).await?,
        };
        self.bytes.add(bytes.iter().map(Bytes::len).sum());
        let decoded = blocks.into_iter().zip(bytes).zip(reserved);
        Ok(decoded.map(|((block, bytes), memory)| Decoded::new(block, bytes, memory)).collect())
    }

    /// The blocks, of another worker: from its files if it is a neighbour's, and over the network.
    async fn of_another(&self, blocks: &[BlockLocation]) -> Result<Vec<Bytes>> {
        let reader = match self.store {
            Some(_) => service::Reader::Task,
            None => service::Reader::Session,
        };
        let fetch = service::fetch(&self.peers, blocks, reader);
        match &self.neighbours {
            Some(neighbours) => neighbours.read_or(&self.peers, blocks, fetch).await,
            None => fetch.await,
        }
    }

    fn own(&self, blocks: &[BlockLocation]) -> Option<Arc<BlockStore>> {
        let is_here =
            |store: &BlockStore| blocks.iter().all(|block| store.worker() == block.worker);
        self.store.clone().filter(|store| is_here(store))
    }
}

#[cfg(test)]
mod tests;
