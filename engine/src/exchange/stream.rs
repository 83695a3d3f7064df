//! One execution of an exchange: the producers' tasks, and what one replica polls.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::datatypes::SchemaRef;
use datafusion::common::instant::Instant;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::RecordOutput;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::time::Sleep;

use super::budget::Budget;
use super::metrics::{ProducerMetrics, ReplicaMetrics};
use super::queue::{Push, Queue, Take};
use super::seal::{LINGER, Patience};
use super::stall::stalled;
use super::window::{Block, Planned, Sharing};
use crate::checker::Ledger;
use crate::error::{EngineError, panic_text};
use crate::weight;

/// One execution, shared by its replicas' streams. The producers end with the last of them.
#[derive(Debug)]
pub(super) struct Execution {
    pub(super) queue: Arc<Queue>,
    pub(super) budget: Arc<Budget>,
    /// Of the blocks: the input's, with the sequence number as last column if `ordered`.
    pub(super) block_schema: SchemaRef,
    /// Of the batches: with the numbers of equal inputs as last column if they are shared.
    pub(super) schema: SchemaRef,
    pub(super) ordered: bool,
    pub(super) sharing: Sharing,
    /// What the producers read.
    pub(super) input: Arc<dyn ExecutionPlan>,
    /// For how long a replica waits while nothing happens in there.
    pub(super) no_progress_limit: Option<Duration>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) producers: Mutex<Producers>,
}

/// The producers' side of an execution.
pub(super) enum Producers {
    /// Nobody has asked for rows yet.
    Waiting(Vec<(SendableRecordBatchStream, ProducerMetrics)>),
    /// Each aborted when dropped.
    Running(#[expect(dead_code, reason = "held for its drop")] Vec<SpawnedTask<()>>),
}

impl std::fmt::Debug for Producers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting(_) => "Waiting",
            Self::Running(_) => "Running",
        })
    }
}

impl Execution {
    fn start(&self) {
        let mut producers = self.producers.lock();
        if let Producers::Waiting(inputs) = &mut *producers {
            let inputs = std::mem::take(inputs).into_iter().enumerate();
            let spawn = |(partition, (input, metrics))| {
                let producer = Producer {
                    queue: Arc::clone(&self.queue),
                    schema: Arc::clone(&self.block_schema),
                    ordered: self.ordered,
                    sharing: self.sharing,
                    partition,
                    metrics,
                };
                SpawnedTask::spawn(producer.run(input))
            };
            *producers = Producers::Running(inputs.map(spawn).collect());
        }
    }
}

/// The task of one input partition.
struct Producer {
    queue: Arc<Queue>,
    schema: SchemaRef,
    ordered: bool,
    sharing: Sharing,
    partition: usize,
    metrics: ProducerMetrics,
}

impl Producer {
    async fn run(self, input: SendableRecordBatchStream) {
        match AssertUnwindSafe(self.pump(input)).catch_unwind().await {
            Ok(Ok(())) => self.queue.finish(self.partition),
            Ok(Err(error)) => self.queue.fail(error),
            Err(panic) => self.queue.fail(exec_datafusion_err!(
                "StreamingExchangeExec: the producer of partition {} panicked: {}",
                self.partition,
                panic_text(&*panic)
            )),
        }
    }

    async fn pump(&self, mut input: SendableRecordBatchStream) -> Result<()> {
        let mut position = 0;
        while let Some(batch) = input.next().await.transpose()? {
            let (rows_max, bytes_max) = (self.queue.block_rows_max(), self.queue.block_bytes_max());
            for slice in weight::slices(batch, rows_max, bytes_max) {
                let rows = slice.num_rows() as u64;
                let slice = if self.ordered { self.number(slice, position)? } else { slice };
                position += rows;
                if self.push(&slice).await == Push::Closed {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Appends each row's position in the input.
    fn number(&self, batch: RecordBatch, position: u64) -> Result<RecordBatch> {
        let end = position + batch.num_rows() as u64;
        let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(position..end));
        let mut columns = batch.columns().to_vec();
        columns.push(numbers);
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }

    /// Hands over all rows, in parts if the window has room for some of them only.
    async fn push(&self, batch: &RecordBatch) -> Push {
        let (mut start, mut rows) = (0, batch.num_rows());
        while rows > 0 {
            match self.offer(Block::new(batch.slice(start, rows), self.sharing)).await {
                Push::Accepted => {
                    start += rows;
                    rows = batch.num_rows() - start;
                }
                Push::Room(room) => rows = room,
                Push::Closed => return Push::Closed,
            }
        }
        Push::Accepted
    }

    async fn offer(&self, block: Block) -> Push {
        let mut block = Some(block);
        let mut blocked = None;
        let answer = poll_fn(|cx| {
            let poll = self.queue.poll_push(cx, self.partition, &mut block);
            if poll.is_pending() {
                blocked.get_or_insert_with(Instant::now);
            }
            poll
        })
        .await;
        if let Some(since) = blocked {
            self.metrics.blocked_time.add_elapsed(since);
        }
        answer
    }
}

/// What one replica polls.
#[derive(Debug)]
pub(super) struct Replica {
    execution: Arc<Execution>,
    partition: usize,
    metrics: ReplicaMetrics,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.execution.queue.leave();
    }
}

impl Replica {
    pub(super) fn new(
        execution: Arc<Execution>,
        partition: usize,
        metrics: ReplicaMetrics,
    ) -> Self {
        execution.queue.enter();
        Self { execution, partition, metrics }
    }

    /// The batches that this replica takes.
    pub(super) fn into_stream(self) -> impl futures::Stream<Item = Result<RecordBatch>> + Send {
        futures::stream::unfold(self, |replica| async move {
            let item = replica.next().await?;
            Some((item, replica))
        })
    }

    async fn next(&self) -> Option<Result<RecordBatch>> {
        self.execution.start();
        let since = Instant::now();
        let planned = self.wait().await;
        self.metrics.idle_time.add_elapsed(since);
        self.metrics.held_bytes_peak.set_max(self.execution.budget.held_bytes_peak());
        match planned {
            Ok(Some(planned)) => Some(self.gather(planned)),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Waits for a batch, for as long as the operators below do something.
    async fn wait(&self) -> Result<Option<Planned>> {
        let Execution { input, no_progress_limit, .. } = self.execution.as_ref();
        tokio::select! {
            biased;
            planned = self.batch() => planned,
            stalled = stalled(input.as_ref(), *no_progress_limit) => {
                Err(EngineError::NoProgress {
                    operator: "StreamingExchangeExec".to_owned(),
                    seconds: no_progress_limit.unwrap_or_default().as_secs(),
                    waits_for: format!("no rows have come from {stalled}"),
                }.into())
            }
        }
    }

    /// Waits for a batch; flushes what there is when it has waited long enough.
    async fn batch(&self) -> Result<Option<Planned>> {
        let mut linger: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|cx| {
            loop {
                let expired =
                    linger.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
                let patience = if expired { Patience::Flush } else { Patience::FullBatch };
                match self.execution.queue.take(cx, self.partition, patience) {
                    Take::Batch(planned) => return Poll::Ready(Ok(Some(planned))),
                    Take::End => return Poll::Ready(Ok(None)),
                    Take::Failed(error) => return Poll::Ready(Err(DataFusionError::Shared(error))),
                    Take::Partial if linger.is_none() => {
                        linger = Some(Box::pin(tokio::time::sleep(LINGER)));
                        // Once more, to have the timer wake us.
                    }
                    Take::Partial => return Poll::Pending,
                    Take::Empty => {
                        linger = None;
                        return Poll::Pending;
                    }
                }
            }
        })
        .await
    }

    fn gather(&self, planned: Planned) -> Result<RecordBatch> {
        let _timer = self.metrics.baseline.elapsed_compute().timer();
        self.metrics.batches.add(1);
        self.metrics.useful_tokens.add_part(usize::try_from(planned.tokens).unwrap_or(usize::MAX));
        self.metrics
            .useful_tokens
            .add_total(usize::try_from(planned.padded_tokens()).unwrap_or(usize::MAX));
        self.metrics.shared_rows.add(planned.shared_rows);
        let batch = planned.gather(&self.execution.schema)?;
        self.metrics.moved_bytes.add(weight::bytes(&batch));
        Ok(batch.record_output(&self.metrics.baseline))
    }
}
