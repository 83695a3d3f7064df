//! The thread on which one stream's forward passes run.
//!
//! A forward pass blocks, keeps per-thread state of its runtime, and must not sit on an async
//! worker, so each stream has a thread of its own for as long as it lives. The thread also waits
//! for the lease of each batch: unlike a stream, which a plan may stop polling, it runs whenever it
//! is woken, so no share of a device is ever given to someone who does not use it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use datafusion::common::{Result as DataFusionResult, exec_datafusion_err};
use forebay_udf::model::ModelDeclaration;
use forebay_udf::runtime::{Device, Prepared, Replica, Usage, enter_thread};
use forebay_udf::{ErrorClass, RuntimeError};
use futures::executor::block_on;
use futures::future::{Either, select};
use tokio::sync::oneshot;

use super::batching::Batching;
use super::devices::Devices;
use crate::error::{EngineError, panic_text};

/// What became of one batch.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Vec<ArrayRef>, BatchError>,
    /// Padded size of the batch: rows, times the longest of them if they have tokens.
    pub(crate) padded: usize,
    /// How long the batch waited for its share of the device.
    pub(crate) lease_wait: Duration,
    /// How long the device was busy with it.
    pub(crate) busy: Duration,
}

impl Outcome {
    /// A batch that never reached the device.
    pub(crate) fn failed(error: BatchError) -> Self {
        let (lease_wait, busy) = (Duration::ZERO, Duration::ZERO);
        Self { result: Err(error), padded: 0, lease_wait, busy }
    }
}

/// Why a batch failed.
#[derive(Debug)]
pub(crate) enum BatchError {
    Runtime(RuntimeError),
    Panic(String),
}

struct Job {
    batch: Prepared,
    reply: oneshot::Sender<Outcome>,
    computes: Arc<AtomicBool>,
}

/// A batch that was handed over.
#[derive(Debug)]
pub(crate) struct Submitted {
    /// Arrives when the batch has been computed.
    pub(crate) outcome: oneshot::Receiver<Outcome>,
    /// Set once the batch has its share of the device.
    computes: Arc<AtomicBool>,
}

impl Submitted {
    /// Whether the batch has its share of the device.
    pub(crate) fn computes(&self) -> bool {
        self.computes.load(Ordering::Relaxed)
    }
}

/// Batches that a stream hands over at a time: one computes, and the next waits for it.
pub(crate) const IN_FLIGHT_MAX: usize = 2;

/// One place where a replica runs. Its thread ends when the slot is dropped and the batch that it
/// works on, if any, is done; that batch's lease is held until then.
#[derive(Debug)]
pub(crate) struct Slot {
    jobs: mpsc::SyncSender<Job>,
}

impl Slot {
    /// Starts the thread of stream `partition`.
    pub(crate) fn start(
        devices: Arc<Devices>,
        model: Arc<ModelDeclaration>,
        device: Device,
        replica: Arc<dyn Replica>,
        partition: usize,
    ) -> DataFusionResult<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(IN_FLIGHT_MAX);
        let name = format!("forebay-{}-{partition}", model.name);
        let body = move || run(&queue, &devices, &model, device, &*replica);
        std::thread::Builder::new().name(name).spawn(body).map_err(|error| {
            exec_datafusion_err!("a thread for a model cannot be started: {error}")
        })?;
        Ok(Self { jobs })
    }

    /// Hands over a batch; the outcome arrives when it has been computed. The receiver of a batch
    /// that is no longer wanted may be dropped: the batch is skipped if it has not started.
    pub(crate) fn submit(&self, batch: Prepared) -> Submitted {
        let (reply, outcome) = oneshot::channel();
        let computes = Arc::new(AtomicBool::new(false));
        // If the thread is gone or the stream broke its promise, the receiver reports it.
        let _ = self.jobs.try_send(Job { batch, reply, computes: Arc::clone(&computes) });
        Submitted { outcome, computes }
    }
}

fn run(
    jobs: &mpsc::Receiver<Job>,
    devices: &Devices,
    model: &Arc<ModelDeclaration>,
    device: Device,
    replica: &dyn Replica,
) {
    let guard = catch_unwind(AssertUnwindSafe(|| enter_thread(model, device)));
    let _guard = match guard {
        Ok(Ok(guard)) => guard,
        Ok(Err(error)) => {
            return refuse(jobs, || BatchError::Runtime(copy_device_error(&error, device)));
        }
        Err(panic) => {
            let text = panic_text(&*panic);
            return refuse(jobs, || BatchError::Panic(text.clone()));
        }
    };
    let mut lessons = Lessons::new(Batching::new(devices, model, device));
    while let Ok(Job { batch, mut reply, computes }) = jobs.recv() {
        if reply.is_closed() {
            continue;
        }
        let waiting = Instant::now();
        let lease = {
            let lease = std::pin::pin!(devices.lease(device, model));
            let unwanted = std::pin::pin!(reply.closed());
            match block_on(select(lease, unwanted)) {
                Either::Left((lease, _)) => lease,
                Either::Right(_) => continue,
            }
        };
        computes.store(true, Ordering::Relaxed);
        let started = Instant::now();
        let (rows, padded) = (batch.rows, batch.padded);
        let result = catch_unwind(AssertUnwindSafe(|| replica.forward(batch)));
        let elapsed = started.elapsed();
        drop(lease);
        let usage = result.as_ref().map(|_| replica.usage(rows, padded)).unwrap_or_default();
        let busy = usage.busy.unwrap_or(elapsed);
        lessons.learn(&result, rows, padded, busy, usage);
        let result = match result {
            Ok(result) => result.map_err(BatchError::Runtime),
            Err(panic) => Err(BatchError::Panic(panic_text(&*panic))),
        };
        let _ = reply.send(Outcome { result, padded, lease_wait: started - waiting, busy });
    }
}

/// What this thread's batches teach. The rate of all of them is kept when the thread ends.
struct Lessons {
    batching: Batching,
    rows: usize,
    busy: Duration,
}

/// A rate that was measured over less time says little.
const MEASURED_FROM: Duration = Duration::from_secs(1);

impl Lessons {
    fn new(batching: Batching) -> Self {
        Self { batching, rows: 0, busy: Duration::ZERO }
    }

    fn learn<E>(
        &mut self,
        result: &Result<Result<Vec<ArrayRef>, RuntimeError>, E>,
        rows: usize,
        padded: usize,
        busy: Duration,
        usage: Usage,
    ) {
        match result {
            Ok(Ok(_)) => {
                self.rows += rows;
                self.busy += busy;
                self.batching.observe(rows, padded, Some(busy), usage);
            }
            Ok(Err(RuntimeError::OutOfMemory { .. })) => {
                self.batching.observe(rows, padded, None, usage);
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

impl Drop for Lessons {
    fn drop(&mut self) {
        let is_measured = self.busy >= MEASURED_FROM;
        self.batching.ended(is_measured.then(|| self.rows as f64 / self.busy.as_secs_f64()));
    }
}

/// Answers every batch with an error: the thread could not be set up.
fn refuse(jobs: &mpsc::Receiver<Job>, error: impl Fn() -> BatchError) {
    while let Ok(job) = jobs.recv() {
        let _ = job.reply.send(Outcome::failed(error()));
    }
}

fn copy_device_error(error: &RuntimeError, device: Device) -> RuntimeError {
    RuntimeError::Device { device: device.to_string(), problem: error.to_string() }
}

impl BatchError {
    /// Who can do something about it; `None` for a panic, which is a bug.
    pub(crate) fn class(&self) -> Option<ErrorClass> {
        match self {
            Self::Runtime(error) => Some(error.class()),
            Self::Panic(_) => None,
        }
    }

    /// Whether a smaller batch may fit. Told by the error itself: another one that may pass is no
    /// reason to divide a batch, let alone to remember that a smaller one is needed.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Runtime(RuntimeError::OutOfMemory { .. }))
    }

    /// With the model, the device and the rows that it happened to.
    pub(crate) fn locate(
        self,
        model: &ModelDeclaration,
        device: Device,
        rows: usize,
    ) -> EngineError {
        let (model, device) = (model.name.clone(), device.to_string());
        match self {
            Self::Runtime(source) => {
                EngineError::Batch { model, device, rows, source: Box::new(source) }
            }
            Self::Panic(text) => {
                let problem = format!("a batch of {rows} rows panicked: {text}");
                EngineError::Panic { model, device, problem }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_did_not_fit_is_tried_in_parts_for_its_memory() {
        let (text, model) = (|| "x".to_owned(), || "m".to_owned());
        let memory = RuntimeError::OutOfMemory { model: model(), rows: 8, problem: text() };
        assert!(BatchError::Runtime(memory).is_out_of_memory());
        let others = [
            RuntimeError::Device { device: text(), problem: text() },
            RuntimeError::Library { library: text(), problem: text() },
            RuntimeError::Program { model: model(), rows: 8, problem: text() },
        ];
        for error in others.map(BatchError::Runtime) {
            assert!(!error.is_out_of_memory(), "{:?}", error.class());
        }
        assert!(!BatchError::Panic("out of memory".to_owned()).is_out_of_memory());
    }
}
