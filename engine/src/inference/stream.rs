//! The loop of one replica: batch k+1 is prepared while batch k computes, and handed to the device at
//! once, so that it need not wait until this stream is polled again.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::datatypes::UInt32Type;
use datafusion::common::instant::Instant;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::RecordOutput;
use forebay_udf::model::{BatchLimits, OnError};
use forebay_udf::runtime::{Prepared, enter_thread};
use forebay_udf::{ErrorClass, RuntimeError};
use futures::{StreamExt, TryFutureExt};

use super::batch::{ModelRows, join, null_outputs, pieces, slice};
use super::bisect::Bisection;
use super::in_flight::{InFlight, Pending, after, received};
use super::metrics::{DeviceMetrics, InferenceMetrics};
use super::on_error::{route, row_errors};
use super::setup::Setup;
use crate::SHARE_COLUMN;
use crate::device::{BatchError, LoadedModel, Outcome, Slot, Watch, in_flight_max};

/// A loaded model and the thread that runs it.
struct Running {
    /// Held, so that the model counts as used.
    loaded: Arc<LoadedModel>,
    slot: Slot,
    device: Arc<DeviceMetrics>,
    /// Held, so that the device is looked at.
    _watch: Option<Arc<Watch>>,
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
    /// As many as the device takes at a time, and one that waits for them.
    in_flight: VecDeque<InFlight>,
    /// Since when the first of them is that.
    first_since: Instant,
    active_since: Option<Instant>,
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
            in_flight: VecDeque::new(),
            first_since: Instant::now(),
            active_since: None,
        }
    }

    pub(super) fn into_stream(self) -> impl futures::Stream<Item = Result<RecordBatch>> + Send {
        futures::stream::try_unfold(self, |mut inference| async move {
            Ok(inference.next().await?.map(|batch| (batch, inference)))
        })
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.count_active_time();
        let next = self.advance().await;
        self.count_active_time();
        next
    }

    /// Adds the time since it was called last: in here, or in the operators above.
    fn count_active_time(&mut self) {
        let now = Instant::now();
        if let Some(since) = self.active_since.replace(now) {
            self.metrics.active_time.add_duration(now - since);
        }
    }

    async fn advance(&mut self) -> Result<Option<RecordBatch>> {
        if self.running.is_none() {
            self.load().await?;
        }
        loop {
            let depth = self.running()?.loaded.replica.depth();
            let has_place = self.in_flight.len() < in_flight_max(depth);
            if has_place && let Some(piece) = self.pieces.pop_front() {
                self.hand_over(piece)?;
                continue;
            }
            let wants_input = has_place && !self.input_ended;
            match (self.in_flight.front_mut(), wants_input) {
                (None, false) => {
                    self.setup.execution.tally.finish(&self.setup.model)?;
                    return Ok(None);
                }
                (None, true) => {
                    let since = Instant::now();
                    let item = self.input.next().await;
                    self.metrics.starved_time.add_elapsed(since);
                    self.take_in(item)?;
                }
                (Some(first), false) => {
                    let outcome = first.wait(self.first_since, &self.setup).await?;
                    return self.finish(outcome).await.map(Some);
                }
                (Some(first), true) => {
                    tokio::select! {
                        biased;
                        outcome = first.wait(self.first_since, &self.setup) => {
                            return self.finish(outcome?).await.map(Some);
                        }
                        item = self.input.next() => self.take_in(item)?,
                    }
                }
            }
        }
    }

    /// Loads the model while the first batch is on its way.
    async fn load(&mut self) -> Result<()> {
        let Setup { devices, env, model, device, partition, .. } = &self.setup;
        let since = Instant::now();
        let limit = self.setup.no_progress_limit;
        let load = async {
            let loaded = tokio::select! {
                biased;
                loaded = devices.replica(model, *device, env) => loaded,
                () = after(limit) => Err(self.setup.no_progress(since, "loading it has not ended")),
            };
            let loading = since.elapsed();
            self.metrics.load_time.add_duration(loading);
            loaded.map(|loaded| (loaded, loading))
        };
        // Whichever fails first is told at once: neither waits for the other's end.
        let first = async { self.input.next().await.transpose() };
        let ((loaded, loading), item) =
            futures::try_join!(load.map_err(DataFusionError::from), first)?;
        self.metrics.starved_time.add_duration(since.elapsed().saturating_sub(loading));
        let item = item.map(Ok);
        let Setup { execution, metrics, .. } = &self.setup;
        let slot = devices.slot(&loaded, *device, model, *partition)?;
        let (watch, device) = execution.watches.watch(devices, *device, metrics, *partition);
        self.metrics.replicas.set(1);
        self.running = Some(Running { loaded, slot, device, _watch: watch });
        self.take_in(item)
    }

    fn take_in(&mut self, item: Option<Result<RecordBatch>>) -> Result<()> {
        match item.transpose()? {
            Some(batch) => {
                let (columns, groups) = (self.prepared_of(&batch), self.groups_of(&batch)?);
                let limits = self.setup.execution.limits.get();
                self.pieces.extend(pieces(&batch, &columns, groups, &limits));
            }
            None => self.input_ended = true,
        }
        Ok(())
    }

    fn running(&self) -> Result<&Running> {
        self.running.as_ref().ok_or_else(|| internal_datafusion_err!("the model is not loaded"))
    }

    fn prepared_of(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        self.setup.prepared.iter().map(|at| Arc::clone(batch.column(*at))).collect()
    }

    fn groups_of<'a>(&self, batch: &'a RecordBatch) -> Result<Option<&'a UInt32Array>> {
        let Some(at) = self.setup.groups else { return Ok(None) };
        let groups = batch.column(at).as_primitive_opt::<UInt32Type>();
        groups.map(Some).ok_or_else(|| internal_datafusion_err!("{SHARE_COLUMN} is not a UInt32"))
    }

    /// Makes device inputs of the rows that the model is to see, and submits them.
    fn hand_over(&mut self, batch: RecordBatch) -> Result<()> {
        let timer = self.metrics.prepare_time.timer();
        let (columns, groups) = (self.prepared_of(&batch), self.groups_of(&batch)?);
        let model_rows = ModelRows::try_new(&columns, groups, batch.num_rows())?;
        let prepared = match model_rows.rows {
            0 => None,
            _ => Some(self.device_inputs(&model_rows.columns)?),
        };
        timer.done();
        let outcome = match prepared {
            None => None,
            Some(Ok(prepared)) => Some(Pending::Computes(self.running()?.slot.submit(prepared))),
            Some(Err(error)) => Some(Pending::Done(Outcome::failed(BatchError::Runtime(error)))),
        };
        if self.in_flight.is_empty() {
            self.first_since = Instant::now();
        }
        self.in_flight.push_back(InFlight { batch, model_rows, outcome });
        Ok(())
    }

    /// The first batch with its outputs.
    async fn finish(&mut self, outcome: Option<Outcome>) -> Result<RecordBatch> {
        let first = self.in_flight.pop_front();
        let InFlight { batch, model_rows, .. } =
            first.ok_or_else(|| internal_datafusion_err!("no batch computes"))?;
        self.first_since = Instant::now();
        let (outputs, errors) = match outcome {
            None => (null_outputs(&self.setup.model.signature.outputs, batch.num_rows()), None),
            Some(outcome) => {
                let (outputs, errors) = self.outputs(outcome, &model_rows).await?;
                self.first_since = Instant::now();
                (model_rows.scatter(outputs)?, errors)
            }
        };
        let errors = errors.map(|errors| model_rows.scatter(vec![errors])).transpose()?;
        let errors = errors.and_then(|mut errors| errors.pop());
        self.assemble(&batch, outputs, errors)
    }

    /// Outputs of the computed rows and, if some failed, the errors of these. A failed batch is
    /// done in parts.
    async fn outputs(
        &mut self,
        outcome: Outcome,
        model_rows: &ModelRows,
    ) -> Result<(Vec<ArrayRef>, Option<ArrayRef>)> {
        let mut whole = Some(outcome);
        let (mut parts, mut errors) = (Vec::new(), Vec::new());
        let mut bisection = Bisection::of(model_rows.rows);
        while let Some((start, rows)) = bisection.next() {
            let outcome = match whole.take() {
                Some(outcome) => outcome,
                None => self.infer(&slice(&model_rows.columns, start, rows)).await?,
            };
            let error = match self.record(outcome, rows) {
                Ok(outputs) => {
                    parts.push(outputs);
                    continue;
                }
                Err(error) => error,
            };
            let is_oom = error.is_out_of_memory();
            if (is_oom || self.is_row_error(&error)) && bisection.halve((start, rows)) {
                self.metrics.splits(is_oom).add(1);
                continue;
            }
            let last = if is_oom {
                self.with_room(&slice(&model_rows.columns, start, rows)).await?
            } else {
                Err((error, 1))
            };
            match last {
                Ok(outputs) => parts.push(outputs),
                // Judged by the last attempt: a device that broke meanwhile is no row's fault.
                Err((error, attempt)) if self.may_give_up(&error) => {
                    errors.push((start, error, attempt));
                    parts.push(null_outputs(&self.setup.model.signature.outputs, rows));
                }
                Err((error, _)) => return Err(self.locate(error, rows)),
            }
        }
        Ok((join(parts)?, row_errors(errors, model_rows.rows)))
    }

    /// Waits for the batches behind the one that failed: their time is not that of the failed one's parts.
    async fn finish_others(&mut self) -> Result<()> {
        for other in &mut self.in_flight {
            if let Some(outcome) = other.wait(self.first_since, &self.setup).await? {
                other.outcome = Some(Pending::Done(outcome));
            }
            self.first_since = Instant::now();
        }
        Ok(())
    }

    /// Whether the error is about a row, and the query is to go on without that row.
    fn is_row_error(&self, error: &BatchError) -> bool {
        self.setup.model.on_error != OnError::Fail && error.class() == Some(ErrorClass::Data)
    }

    /// Whether a row that is alone may be given up for this error.
    fn may_give_up(&self, error: &BatchError) -> bool {
        let is_its_memory = error.is_out_of_memory();
        self.is_row_error(error) || (is_its_memory && self.setup.model.on_error != OnError::Fail)
    }

    /// A second attempt at rows that cannot be divided, once idle models have made room.
    async fn with_room(
        &mut self,
        columns: &[ArrayRef],
    ) -> Result<Result<Vec<ArrayRef>, (BatchError, i32)>> {
        self.setup.devices.clear_idle();
        let outcome = self.infer(columns).await?;
        let rows = columns.first().map_or(0, |column| column.len());
        Ok(self.record(outcome, rows).map_err(|error| (error, 2)))
    }

    /// Prepares and computes some rows of a batch that failed, and waits for them.
    async fn infer(&mut self, columns: &[ArrayRef]) -> Result<Outcome> {
        self.finish_others().await?;
        let prepared = {
            let _timer = self.metrics.prepare_time.timer();
            self.device_inputs(columns)?
        };
        match prepared {
            Ok(prepared) => {
                let mut submitted = self.running()?.slot.submit(prepared);
                received(&mut submitted, Instant::now(), &self.setup).await
            }
            Err(error) => Ok(Outcome::failed(BatchError::Runtime(error))),
        }
    }

    /// Cheap enough for an async worker, which is readied for the runtime just for it.
    fn device_inputs(&self, columns: &[ArrayRef]) -> Result<Result<Prepared, RuntimeError>> {
        let replica = &self.running()?.loaded.replica;
        let Setup { model, device, devices, .. } = &self.setup;
        let prepared = enter_thread(model, *device).and_then(|_guard| replica.prepare(columns));
        Ok(prepared.inspect_err(|error| devices.heed(*device, error)))
    }

    fn record(&self, outcome: Outcome, rows: usize) -> Result<Vec<ArrayRef>, BatchError> {
        self.metrics.lease_wait_time.add_duration(outcome.lease_wait);
        self.metrics.busy_time.add_duration(outcome.busy);
        self.metrics.batches.add(1);
        let running = self.running.as_ref();
        if let (Some(running), Some(held)) = (running, outcome.held) {
            running.device.add_held(held);
        }
        // Of the batch as it was meant to be.
        let limits = self.setup.execution.limits.get();
        self.setup.follow_batches();
        let outputs = outcome.result?;
        self.metrics.rows_inferred.add(rows);
        let replica = running.map(|running| &running.loaded.replica);
        if let Some(operations) = replica.and_then(|r| r.operations(rows, outcome.padded)) {
            self.metrics.add_operations(operations);
        }
        let fill = fill_permille(rows, outcome.padded, &limits);
        self.metrics.batch_fill.add_part(fill);
        self.metrics.batch_fill.add_total(1000);
        Ok(outputs)
    }

    fn locate(&self, error: BatchError, rows: usize) -> datafusion::common::DataFusionError {
        error.locate(&self.setup.model, self.setup.device, rows).into()
    }

    fn assemble(
        &self,
        batch: &RecordBatch,
        mut outputs: Vec<ArrayRef>,
        errors: Option<ArrayRef>,
    ) -> Result<RecordBatch> {
        let _timer = self.metrics.baseline.elapsed_compute().timer();
        if let Some(at) = self.setup.row_errors {
            let errors = route(batch.column(at), errors)?;
            let failed = errors.len() - errors.null_count();
            self.metrics.rows_failed.add(failed);
            self.setup.execution.tally.add(batch.num_rows(), failed);
            if self.setup.model.on_error == OnError::Route {
                outputs.push(errors);
            }
        }
        let outputs = outputs.into_iter().zip(&self.setup.is_output_kept);
        let mut outputs = outputs.filter(|(_, is_kept)| **is_kept).map(|(output, _)| output);
        let column = |source: &Option<usize>| match source {
            Some(at) => Ok(Arc::clone(batch.column(*at))),
            None => outputs.next().ok_or_else(|| internal_datafusion_err!("an output is missing")),
        };
        let columns = self.setup.sources.iter().map(column).collect::<Result<Vec<_>>>()?;
        // Nobody may need a column of a model that counts its failures.
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let schema = Arc::clone(&self.setup.schema);
        let batch = RecordBatch::try_new_with_options(schema, columns, &options)?;
        Ok(batch.record_output(&self.metrics.baseline))
    }
}

/// How full a batch is, by the limit that it is closest to.
fn fill_permille(rows: usize, padded: usize, limits: &BatchLimits) -> usize {
    let permille = |part: usize, max: u32| part.saturating_mul(1000) / (max as usize).max(1);
    let by_tokens = limits.max_tokens.map_or(0, |max| permille(padded, max));
    permille(rows, limits.max_rows).max(by_tokens).min(1000)
}
