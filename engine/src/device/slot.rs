//! What a stream hands its batches over to: a thread for as long as the stream lives, and on it the model.
//!
//! A forward pass blocks, keeps per-thread state of its runtime, and must not sit on an async
//! worker, so each stream has a thread of its own for as long as it lives. The thread also waits
//! for the lease of each batch: unlike a stream, which a plan may stop polling, it runs whenever it
//! is woken, so no share of a device is ever given to someone who does not use it.
//!
//! A device that computes by itself gets the next batch before the one that it has is waited for.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use forebay_udf::model::ModelDeclaration;
use forebay_udf::runtime::{Device, Held, Lane, Prepared, Usage};
use forebay_udf::{ErrorClass, RuntimeError};
use futures::executor::block_on;
use futures::future::{Either, select};
use tokio::sync::oneshot;

use super::batching::Batching;
use super::lease::{Lease, Leases};
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
    /// The memory that batches held when it was started; `None` where that is not counted.
    pub(crate) held: Option<Held>,
}

impl Outcome {
    /// A batch that never reached the device.
    pub(crate) fn failed(error: BatchError) -> Self {
        let (lease_wait, busy) = (Duration::ZERO, Duration::ZERO);
        Self { result: Err(error), padded: 0, lease_wait, busy, held: None }
    }
}

/// Why a batch failed.
#[derive(Clone, Debug)]
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

/// Batches that a stream hands over at a time: those that the device takes, and one that waits for them.
pub(crate) fn in_flight_max(depth: usize) -> usize {
    depth + 1
}

/// The way of one stream to its thread, which is free for others once the slot is dropped and what it has
/// started, if anything, is done; the leases of that are held until then.
#[derive(Debug)]
pub(crate) struct Slot {
    jobs: mpsc::SyncSender<Job>,
}

impl Slot {
    /// A slot, and what its thread is to do for it, on a device that takes `depth` batches at a time.
    pub(super) fn new(site: Site, model: Arc<ModelDeclaration>, depth: usize) -> (Self, Visit) {
        let (jobs, queue) = mpsc::sync_channel::<Job>(in_flight_max(depth));
        (Self { jobs }, Visit { jobs: queue, site, model, depth })
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

/// A device, and what a thread that runs a model on it has to do with others.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) leases: Arc<Leases>,
    /// What the model's batches on the device are, and what they teach.
    pub(super) batching: Batching,
}

impl Site {
    /// Takes note of what an error says of the device.
    fn heed(&self, error: &BatchError) {
        if let BatchError::Runtime(error) = error {
            self.leases.heed(self.batching.device(), error);
        }
    }
}

/// What a thread does for one stream.
#[derive(Debug)]
pub(super) struct Visit {
    jobs: mpsc::Receiver<Job>,
    site: Site,
    model: Arc<ModelDeclaration>,
    depth: usize,
}

impl Visit {
    /// Runs the stream's batches until it hands over no more.
    pub(super) fn serve(&self, lane: &mut dyn Lane) {
        let lessons = Lessons::new(&self.site.batching);
        let (started, freed) = (VecDeque::new(), Instant::now());
        Server { visit: self, lane, started, set_aside: None, freed, lessons }.run();
    }

    /// Answers every batch with an error: the thread could not be set up.
    pub(super) fn refuse(&self, error: &BatchError) {
        self.site.heed(error);
        while let Ok(job) = self.jobs.recv() {
            let _ = job.reply.send(Outcome::failed(error.clone()));
        }
    }
}

/// A batch that the device has.
struct Started {
    reply: oneshot::Sender<Outcome>,
    /// Held until it is done; the next batch may have the same.
    lease: Arc<Lease>,
    rows: usize,
    padded: usize,
    lease_wait: Duration,
    since: Instant,
    held: Option<Held>,
}

/// When a batch is started.
enum Turn {
    /// With this share of the device: that of the batch before it, or one that was waited for.
    Now { lease: Arc<Lease>, waited: Duration },
    /// Once the batches before it are done, as others wait for the device.
    Later,
    /// Nobody wants it any more.
    Never,
    /// The device is lost.
    Refused(RuntimeError),
}

/// A thread at work for one stream.
struct Server<'a> {
    visit: &'a Visit,
    lane: &'a mut dyn Lane,
    /// The first is the oldest.
    started: VecDeque<Started>,
    /// The next batch, if it must wait because others want the device.
    set_aside: Option<Job>,
    /// Since when the device has nothing older than the first.
    freed: Instant,
    lessons: Lessons<'a>,
}

impl Server<'_> {
    fn run(mut self) {
        loop {
            if let Some(mut job) = self.next() {
                match self.turn(&mut job) {
                    Turn::Now { lease, waited } => {
                        self.start(job, lease, waited);
                        continue;
                    }
                    Turn::Never => continue,
                    Turn::Refused(error) => {
                        let _ = job.reply.send(Outcome::failed(BatchError::Runtime(error)));
                        continue;
                    }
                    Turn::Later => self.set_aside = Some(job),
                }
            }
            match self.started.pop_front() {
                Some(first) => self.finish(first),
                None => return,
            }
        }
    }

    /// The next batch: waits for it if there is nothing else to do. `None` if the device takes no more now, or
    /// there are none.
    fn next(&mut self) -> Option<Job> {
        if self.started.len() == self.visit.depth {
            return None;
        }
        let jobs = &self.visit.jobs;
        let is_idle = self.started.is_empty();
        let waiting = self.set_aside.take();
        waiting.or_else(|| if is_idle { jobs.recv().ok() } else { jobs.try_recv().ok() })
    }

    /// When a batch may have its share of the device, for which it waits if nothing else is to be done.
    fn turn(&self, job: &mut Job) -> Turn {
        if job.reply.is_closed() {
            return Turn::Never;
        }
        let Visit { site, model, .. } = self.visit;
        if let Err(error) = site.leases.lost().check(site.batching.device()) {
            return Turn::Refused(error);
        }
        if let Some(Started { lease, .. }) = self.started.back() {
            let share = || Turn::Now { lease: Arc::clone(lease), waited: Duration::ZERO };
            return if lease.is_wanted() { Turn::Later } else { share() };
        }
        let since = Instant::now();
        let lease = std::pin::pin!(site.leases.lease(site.batching.device(), model));
        let unwanted = std::pin::pin!(job.reply.closed());
        match block_on(select(lease, unwanted)) {
            Either::Left((Ok(lease), _)) => {
                Turn::Now { lease: Arc::new(lease), waited: since.elapsed() }
            }
            Either::Left((Err(error), _)) => Turn::Refused(error),
            Either::Right(_) => Turn::Never,
        }
    }

    fn start(&mut self, job: Job, lease: Arc<Lease>, lease_wait: Duration) {
        let Job { batch, reply, computes } = job;
        computes.store(true, Ordering::Relaxed);
        let (rows, padded, since) = (batch.rows, batch.padded, Instant::now());
        let lane = &mut *self.lane;
        let result = flat(catch_unwind(AssertUnwindSafe(|| lane.start(batch))));
        let held = self.lane.held();
        let started = Started { reply, lease, rows, padded, lease_wait, since, held };
        match result {
            Ok(()) => self.started.push_back(started),
            Err(error) => self.tell(started, Err(error), since.elapsed()),
        }
    }

    /// Waits for the oldest batch.
    fn finish(&mut self, first: Started) {
        let lane = &mut *self.lane;
        let result = catch_unwind(AssertUnwindSafe(|| lane.finish().transpose()));
        let result = flat(result).and_then(|columns| {
            columns.ok_or_else(|| BatchError::Panic("its replica has lost it".to_owned()))
        });
        // While the batch before it computed, it did not.
        let elapsed = first.since.max(self.freed).elapsed();
        self.freed = Instant::now();
        self.tell(first, result, elapsed);
    }

    /// `elapsed`: for how long the device had the batch, by the clock.
    fn tell(
        &mut self,
        batch: Started,
        result: Result<Vec<ArrayRef>, BatchError>,
        elapsed: Duration,
    ) {
        let Started { reply, lease, rows, padded, lease_wait, held, .. } = batch;
        if let Err(error) = &result {
            // Before others get the share.
            self.visit.site.heed(error);
        }
        drop(lease);
        let usage = match &result {
            Err(BatchError::Panic(_)) => Usage::default(),
            Ok(_) | Err(BatchError::Runtime(_)) => self.lane.usage(rows, padded),
        };
        let busy = usage.busy.unwrap_or(elapsed);
        self.lessons.learn(&result, rows, padded, busy, usage);
        let _ = reply.send(Outcome { result, padded, lease_wait, busy, held });
    }
}

/// A panic is an error as well.
pub(super) fn flat<T>(
    result: std::thread::Result<Result<T, RuntimeError>>,
) -> Result<T, BatchError> {
    match result {
        Ok(result) => result.map_err(BatchError::Runtime),
        Err(panic) => Err(BatchError::Panic(panic_text(&*panic))),
    }
}

/// What a stream's batches teach. The rate of all of them is kept when the stream ends.
struct Lessons<'a> {
    batching: &'a Batching,
    rows: usize,
    busy: Duration,
}

/// A rate that was measured over less time says little.
const MEASURED_FROM: Duration = Duration::from_secs(1);

impl<'a> Lessons<'a> {
    fn new(batching: &'a Batching) -> Self {
        Self { batching, rows: 0, busy: Duration::ZERO }
    }

    fn learn(
        &mut self,
        result: &Result<Vec<ArrayRef>, BatchError>,
        rows: usize,
        padded: usize,
        busy: Duration,
        usage: Usage,
    ) {
        match result {
            Ok(_) => {
                self.rows += rows;
                self.busy += busy;
                self.batching.observe(rows, padded, Some(busy), usage);
            }
            Err(error) if error.is_out_of_memory() => {
                self.batching.observe(rows, padded, None, usage);
            }
            Err(_) => {}
        }
    }
}

impl Drop for Lessons<'_> {
    fn drop(&mut self) {
        let is_measured = self.busy >= MEASURED_FROM;
        self.batching.ended(is_measured.then(|| self.rows as f64 / self.busy.as_secs_f64()));
    }
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

    /// With the model, the device and the rows that it happened to; a device that is lost is so whatever
    /// these are.
    pub(crate) fn locate(
        self,
        model: &ModelDeclaration,
        device: Device,
        rows: usize,
    ) -> EngineError {
        let (model, device) = (model.name.clone(), device.to_string());
        match self {
            Self::Runtime(lost @ RuntimeError::DeviceLost { .. }) => EngineError::Runtime(lost),
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
