//! The loop of one replica: batch k+1 is prepared while batch k computes.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::instant::Instant;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::RecordOutput;
use forebay_udf::RuntimeError;
use forebay_udf::model::ModelDeclaration;
use forebay_udf::runtime::{Device, Prepared, Replica, enter_thread};
use futures::{StreamExt, TryFutureExt};
use tokio::sync::oneshot;

use super::batch::{ValidRows, join, null_outputs, pieces, slice};
use super::metrics::InferenceMetrics;
use super::oom::Halving;
use crate::carry::Sources;
use crate::device::{BatchError, Devices, Outcome, Slot};

/// What a stream is told by its operator.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) devices: Arc<Devices>,
    pub(super) env: Arc<RuntimeEnv>,
    pub(super) model: Arc<ModelDeclaration>,
    pub(super) device: Device,
    pub(super) partition: usize,
    /// Where the prepared columns are in the input.
    pub(super) prepared: Vec<usize>,
    /// Which input column each output column is.
    pub(super) sources: Sources,
    pub(super) schema: SchemaRef,
}

/// A loaded model and the thread that runs it.
struct Running {
    replica: Arc<dyn Replica>,
    slot: Slot,
}

/// A batch and the rows of it that the model is to see.
struct Work {
    batch: RecordBatch,
    valid: ValidRows,
    /// Its device inputs, unless there is no row for the model.
    prepared: Option<Result<Prepared, RuntimeError>>,
}

/// A batch that computes, or has no need to.
struct InFlight {
    batch: RecordBatch,
    valid: ValidRows,
    outcome: Option<Pending>,
}

enum Pending {
    Computes(oneshot::Receiver<Outcome>),
    /// It failed before it reached the device.
    Failed(RuntimeError),
}

/// One replica's stream.
pub(super) struct Inference {
    setup: Setup,
    input: SendableRecordBatchStream,
    metrics: InferenceMetrics,
    running: Option<Running>,
    /// Pieces of the input batch that was taken last.
    pieces: VecDeque<RecordBatch>,
    input_ended: bool,
    next: Option<Work>,
    current: Option<InFlight>,
    /// Rows that are known to fit into the device's memory, after a batch did not.
    rows_fit: usize,
}

impl Inference {
    pub(super) fn new(
        setup: Setup,
        input: SendableRecordBatchStream,
        metrics: InferenceMetrics,
    ) -> Self {
        Self {
            setup,
            input,
            metrics,
            running: None,
            pieces: VecDeque::new(),
            input_ended: false,
            next: None,
            current: None,
            rows_fit: usize::MAX,
        }
    }

    pub(super) fn into_stream(self) -> impl futures::Stream<Item = Result<RecordBatch>> + Send {
        futures::stream::try_unfold(self, |mut inference| async move {
            Ok(inference.next().await?.map(|batch| (batch, inference)))
        })
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.running.is_none() {
            self.load().await?;
        }
        loop {
            if self.current.is_none() {
                self.current = self.next.take().map(|work| self.start(work)).transpose()?;
            }
            if self.next.is_none()
                && let Some(piece) = self.pieces.pop_front()
            {
                self.next = Some(self.prepare(piece)?);
                continue;
            }
            let wants_input = self.next.is_none() && !self.input_ended;
            match (&mut self.current, wants_input) {
                (None, false) => return Ok(None),
                (None, true) => {
                    let item = self.input.next().await;
                    self.take_in(item)?;
                }
                (Some(current), false) => {
                    let outcome = current.wait().await;
                    return self.finish(outcome).await.map(Some);
                }
                (Some(current), true) => {
                    tokio::select! {
                        biased;
                        outcome = current.wait() => return self.finish(outcome).await.map(Some),
                        item = self.input.next() => self.take_in(item)?,
                    }
                }
            }
        }
    }

    /// Loads the model while the first batch is on its way.
    async fn load(&mut self) -> Result<()> {
        let Setup { devices, env, model, device, partition, .. } = &self.setup;
        let load = async {
            let since = Instant::now();
            let loaded = devices.replica(model, *device, env).await;
            self.metrics.load_time.add_elapsed(since);
            loaded
        };
        // Whichever fails first is told at once: neither waits for the other's end.
        let first = async { self.input.next().await.transpose() };
        let (loaded, item) = futures::try_join!(load.map_err(DataFusionError::from), first)?;
        let (replica, item) = (Arc::clone(&loaded.replica), item.map(Ok));
        let (devices, model) = (Arc::clone(devices), Arc::clone(model));
        let slot = Slot::start(devices, model, *device, Arc::clone(&replica), *partition)?;
        self.metrics.replicas.set(1);
        self.running = Some(Running { replica, slot });
        self.take_in(item)
    }

    fn take_in(&mut self, item: Option<Result<RecordBatch>>) -> Result<()> {
        match item.transpose()? {
            Some(batch) => {
                let limits = &self.setup.model.batch;
                self.pieces.extend(pieces(&batch, &self.setup.prepared, limits, self.rows_fit));
            }
            None => self.input_ended = true,
        }
        Ok(())
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().ok_or_else(|| internal_datafusion_err!("the model is not loaded"))
    }

    /// Makes device inputs of the rows without NULL.
    fn prepare(&self, batch: RecordBatch) -> Result<Work> {
        let _timer = self.metrics.prepare_time.timer();
        let columns: Vec<ArrayRef> =
            self.setup.prepared.iter().map(|at| Arc::clone(batch.column(*at))).collect();
        let valid = ValidRows::try_new(&columns, batch.num_rows())?;
        let prepared = match valid.rows {
            0 => None,
            _ => Some(self.device_inputs(&valid.columns)?),
        };
        Ok(Work { batch, valid, prepared })
    }

    fn start(&self, work: Work) -> Result<InFlight> {
        let Work { batch, valid, prepared } = work;
        let outcome = match prepared {
            None => None,
            Some(Ok(prepared)) => Some(Pending::Computes(self.running()?.slot.submit(prepared))),
            Some(Err(error)) => Some(Pending::Failed(error)),
        };
        Ok(InFlight { batch, valid, outcome })
    }

    /// The current batch with its outputs. The next one starts before, if it is prepared.
    async fn finish(&mut self, outcome: Option<Outcome>) -> Result<RecordBatch> {
        let current = self.current.take();
        let InFlight { batch, valid, .. } =
            current.ok_or_else(|| internal_datafusion_err!("no batch computes"))?;
        let is_oom = |outcome: &Outcome| {
            matches!(outcome.result, Err(BatchError::Runtime(RuntimeError::OutOfMemory { .. })))
        };
        if !outcome.as_ref().is_some_and(is_oom)
            && let Some(work) = self.next.take()
        {
            self.current = Some(self.start(work)?);
        }
        let outputs = match outcome {
            None => null_outputs(&self.setup.model.signature.outputs, batch.num_rows()),
            Some(outcome) => {
                let outputs = self.outputs(outcome, &valid).await?;
                valid.scatter(outputs)?
            }
        };
        self.assemble(&batch, outputs)
    }

    /// Outputs of the valid rows: of the whole batch, or of its halves if it did not fit.
    async fn outputs(&mut self, outcome: Outcome, valid: &ValidRows) -> Result<Vec<ArrayRef>> {
        let error = match self.record(outcome, valid.rows) {
            Ok(outputs) => return Ok(outputs),
            Err(error) => error,
        };
        let Some(mut halving) = is_oom(&error).then(|| Halving::of(valid.rows)).flatten() else {
            return Err(self.locate(error, valid.rows));
        };
        self.metrics.oom_splits.add(1);
        let mut parts = Vec::new();
        while let Some((start, rows)) = halving.next() {
            let outcome = self.infer(&slice(&valid.columns, start, rows)).await?;
            match self.record(outcome, rows) {
                Ok(outputs) => {
                    self.rows_fit = self.rows_fit.min(rows.max(1));
                    parts.push(outputs);
                }
                Err(error) if is_oom(&error) && halving.halve(start, rows) => {
                    self.metrics.oom_splits.add(1);
                }
                Err(error) => return Err(self.locate(error, rows)),
            }
        }
        Ok(join(parts)?)
    }

    /// Prepares and computes some rows, and waits for them.
    async fn infer(&mut self, columns: &[ArrayRef]) -> Result<Outcome> {
        let prepared = {
            let _timer = self.metrics.prepare_time.timer();
            self.device_inputs(columns)?
        };
        Ok(match prepared {
            Ok(prepared) => received(self.running()?.slot.submit(prepared).await),
            Err(error) => Outcome::failed(BatchError::Runtime(error)),
        })
    }

    /// Cheap enough for an async worker, which is readied for the runtime just for it.
    fn device_inputs(&self, columns: &[ArrayRef]) -> Result<Result<Prepared, RuntimeError>> {
        let replica = &self.running()?.replica;
        let Setup { model, device, .. } = &self.setup;
        Ok(enter_thread(model, *device).and_then(|_guard| replica.prepare(columns)))
    }

    fn record(&self, outcome: Outcome, rows: usize) -> Result<Vec<ArrayRef>, BatchError> {
        self.metrics.lease_wait_time.add_duration(outcome.lease_wait);
        self.metrics.busy_time.add_duration(outcome.busy);
        self.metrics.batches.add(1);
        let outputs = outcome.result?;
        self.metrics.rows_inferred.add(rows);
        Ok(outputs)
    }

    fn locate(&self, error: BatchError, rows: usize) -> datafusion::common::DataFusionError {
        error.locate(&self.setup.model, self.setup.device, rows).into()
    }

    fn assemble(&self, batch: &RecordBatch, outputs: Vec<ArrayRef>) -> Result<RecordBatch> {
        let _timer = self.metrics.baseline.elapsed_compute().timer();
        let mut outputs = outputs.into_iter();
        let column = |source: &Option<usize>| match source {
            Some(at) => Ok(Arc::clone(batch.column(*at))),
            None => outputs.next().ok_or_else(|| internal_datafusion_err!("an output is missing")),
        };
        let columns = self.setup.sources.iter().map(column).collect::<Result<Vec<_>>>()?;
        let batch = RecordBatch::try_new(Arc::clone(&self.setup.schema), columns)?;
        Ok(batch.record_output(&self.metrics.baseline))
    }
}

impl InFlight {
    /// Waits for the outcome; `None` if the model had nothing to do. May be dropped and called
    /// again.
    async fn wait(&mut self) -> Option<Outcome> {
        match self.outcome.as_mut()? {
            Pending::Computes(outcome) => Some(received(outcome.await)),
            Pending::Failed(_) => match self.outcome.take()? {
                Pending::Failed(error) => Some(Outcome::failed(BatchError::Runtime(error))),
                Pending::Computes(_) => None,
            },
        }
    }
}

fn received(outcome: Result<Outcome, oneshot::error::RecvError>) -> Outcome {
    outcome
        .unwrap_or_else(|_| Outcome::failed(BatchError::Panic("its thread has ended".to_owned())))
}

fn is_oom(error: &BatchError) -> bool {
    matches!(error, BatchError::Runtime(RuntimeError::OutOfMemory { .. }))
}
