//! The root of a stage whose output is blocks.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::StreamExt;
use futures::future::try_join_all;
use tokio::sync::Mutex;

use super::cut::{BlockSize, Cutter};
use super::location::BlockId;
use super::store::{BlockStore, OpenBlock, Sealed};

/// Writes its input's rows as blocks.
///
/// Rows: all of the input's. Order: a block's rows, and a partition's blocks, are in the input's
/// order. Memory: a batch. Cancel: dropping it removes what is not sealed. Errors: the input's, a
/// full disk, a full store.
#[derive(Clone, Debug)]
pub struct BlockWriterExec {
    input: Arc<dyn ExecutionPlan>,
    size: BlockSize,
    /// Blocks that an earlier attempt has sealed and that are still there.
    skipped: Vec<u32>,
}

/// Called with each block when it is sealed.
pub type OnSealed<'a> = &'a (dyn Fn(BlockId, Sealed) + Sync);

impl BlockWriterExec {
    /// Writes blocks of this size.
    pub fn new(input: Arc<dyn ExecutionPlan>, size: BlockSize) -> Self {
        Self { input, size, skipped: vec![] }
    }

    /// Without the blocks that are there already.
    #[must_use]
    pub fn with_skipped(mut self, skipped: Vec<u32>) -> Self {
        self.skipped = skipped;
        self
    }

    /// What it writes.
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
    ) -> Result<Vec<(BlockId, Sealed)>> {
        let output = Output {
            store,
            job,
            stage,
            task,
            skipped: self.skipped.iter().copied().collect(),
            next: Mutex::new(0),
            on_sealed,
        };
        let partitions = self.input.output_partitioning().partition_count();
        let streams = (0..partitions)
            .map(|partition| self.input.execute(partition, Arc::clone(&context)))
            .collect::<Result<Vec<_>>>()?;
        let written = streams.into_iter().map(|rows| output.write(rows, self.size));
        let mut blocks: Vec<_> = try_join_all(written).await?.into_iter().flatten().collect();
        blocks.sort_by_key(|(id, _)| *id);
        Ok(blocks)
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
    on_sealed: OnSealed<'a>,
}

impl Output<'_> {
    async fn write(
        &self,
        mut rows: SendableRecordBatchStream,
        size: BlockSize,
    ) -> Result<Vec<(BlockId, Sealed)>> {
        let mut cutter = Cutter::new(size);
        let mut sealed = vec![];
        let mut open: Option<(BlockId, Option<OpenBlock>)> = None;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            if batch.num_rows() == 0 {
                continue;
            }
            for piece in cutter.cut(&batch) {
                if piece.starts_block {
                    sealed.extend(self.seal(open.take())?);
                }
                if open.is_none() {
                    open = Some(self.open(&piece.rows).await?);
                }
                if let Some((_, Some(block))) = &mut open {
                    block.write(&piece.rows).await?;
                }
            }
        }
        sealed.extend(self.seal(open)?);
        Ok(sealed)
    }

    /// The next block, which begins with these rows; without a file if it is there already.
    async fn open(&self, first: &RecordBatch) -> Result<(BlockId, Option<OpenBlock>)> {
        let mut next = self.next.lock().await;
        let id = BlockId { stage: self.stage, task: self.task, seq: *next };
        *next += 1;
        if self.skipped.contains(&id.seq) {
            return Ok((id, None));
        }
        Ok((id, Some(self.store.create(self.job, id, first)?)))
    }

    fn seal(
        &self,
        open: Option<(BlockId, Option<OpenBlock>)>,
    ) -> Result<Option<(BlockId, Sealed)>> {
        let Some((id, Some(block))) = open else { return Ok(None) };
        let sealed = block.seal()?;
        (self.on_sealed)(id, sealed);
        Ok(Some((id, sealed)))
    }
}

impl DisplayAs for BlockWriterExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockWriterExec: bytes_max={}", self.size.bytes_max)
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
