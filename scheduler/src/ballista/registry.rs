//! All jobs of a scheduler, and the ways in which something happens to them.
//!
//! Ballista's event loop is the only place where tasks are bound and jobs end. What happens
//! elsewhere (a block is sealed, a wait is over, a job has failed for want of a worker) changes the
//! graph at once; then the loop is *nudged*: told of a task that does not exist, which makes it
//! look.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::JobId;
use ballista_core::serde::scheduler::ExecutorMetadata;
use ballista_scheduler::scheduler_server::timestamp_millis;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, mpsc};

use super::figures::Totals;
use super::fleet;
use super::running::{Addresses, RunningJob};
use crate::graph::{BlockReport, Event, Millis, StageId, WorkerId};
use crate::rpc::messages::{Leave, ReadAnswer, ReadDone, Sealed, to_worker};
use crate::rpc::service::Attendance;
use crate::tables::rows::Epoch;

/// Jobs that have ended and can still be looked at.
const ENDED_MAX: usize = 1000;

/// A client that waits for rows looks by itself, should nothing happen for so long.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) type Shared = Arc<Mutex<RunningJob>>;

/// All jobs, and the workers they run on.
#[derive(Clone)]
pub(super) struct Registry {
    /// In the order of their ids, which is that of their starts.
    jobs: Arc<RwLock<BTreeMap<String, Shared>>>,
    addresses: Arc<RwLock<Addresses>>,
    attendance: Attendance,
    nudges: mpsc::Sender<JobId>,
    start: Instant,
    epoch: Epoch,
    /// What jobs did that cannot be looked at any more.
    removed: Arc<Mutex<Totals>>,
    /// There is another job.
    added: Arc<Notify>,
    /// What clients wait for and Ballista has not planned yet: it waits for the first worker.
    submitted: Arc<Mutex<BTreeMap<String, Submitted>>>,
}

/// A job before it is planned.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub(super) name: String,
    pub(super) session: String,
    pub(super) owner: String,
    /// Milliseconds since 1970.
    pub(super) queued_ms: u64,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("jobs", &self.jobs.read().len()).finish_non_exhaustive()
    }
}

impl Registry {
    /// No jobs yet. Jobs that the event loop must look at are sent to `nudges`.
    pub(super) fn new(attendance: Attendance, nudges: mpsc::Sender<JobId>) -> Self {
        Self {
            jobs: Arc::default(),
            addresses: Arc::default(),
            attendance,
            nudges,
            start: Instant::now(),
            removed: Arc::default(),
            added: Arc::default(),
            submitted: Arc::default(),
            epoch: Epoch(i64::try_from(timestamp_millis()).unwrap_or(0)),
        }
    }

    /// What all jobs have done.
    pub(super) fn totals(&self) -> Totals {
        let mut totals = self.removed.lock().clone();
        self.all().iter().for_each(|job| totals.add(&job.lock().totals()));
        totals
    }

    /// When [`Self::now`] was 0.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn attendance(&self) -> &Attendance {
        &self.attendance
    }

    /// The time, as graphs count it.
    pub(super) fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn add(&self, job: RunningJob) -> Shared {
        let id = job.id.to_string();
        let job = Arc::new(Mutex::new(job));
        let mut jobs = self.jobs.write();
        jobs.insert(id, Arc::clone(&job));
        self.added.notify_waiters();
        let surplus = jobs.len().saturating_sub(ENDED_MAX);
        let ended = jobs.iter().filter(|(_, job)| !job.lock().graph.is_running_job());
        let oldest: Vec<String> = ended.take(surplus).map(|(id, _)| id.clone()).collect();
        for id in oldest {
            if let Some(job) = jobs.remove(&id) {
                self.removed.lock().add(&job.lock().totals());
            }
        }
        job
    }

    /// A client waits for a job, which may have been planned already.
    pub(super) fn submit(&self, id: &JobId, job: Submitted) {
        self.submitted.lock().insert(id.to_string(), job);
    }

    /// Those that are not planned yet.
    pub(super) fn unplanned(&self) -> Vec<(String, Submitted)> {
        let submitted = self.submitted.lock().clone();
        submitted.into_iter().filter(|(id, _)| self.get(id).is_none()).collect()
    }

    pub(super) fn get(&self, id: &str) -> Option<Shared> {
        self.jobs.read().get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Shared> {
        self.jobs.read().values().cloned().collect()
    }

    pub(super) fn add_worker(&self, worker: &ExecutorMetadata) {
        self.addresses.write().insert(worker.id.clone(), worker.clone());
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.read().clone()
    }

    /// Drops the addresses of workers that are gone, once no job has anything there.
    pub(super) fn forget_gone(&self) {
        // In this order: who has an address has attended before.
        let known: Vec<String> = self.addresses.read().keys().cloned().collect();
        let attending = self.attendance.workers();
        let is_gone = |id: &String| attending.iter().all(|worker| worker.id != *id);
        for id in known.into_iter().filter(is_gone) {
            let worker = WorkerId::new(id.as_str());
            if !self.all().iter().any(|job| job.lock().graph.uses_worker(&worker)) {
                self.addresses.write().remove(&id);
            }
        }
    }

    /// Something happened to a job; workers are told what follows from it.
    pub(super) fn apply(&self, job: &Mutex<RunningJob>, event: Event) {
        let is_announcement = matches!(event, Event::BlockSealed { .. });
        let (messages, id, wants_a_look) = {
            let mut job = job.lock();
            let messages = job.apply(event, self.now());
            let runs = job.graph.is_running_job();
            let wants_a_look = if runs { is_announcement } else { !job.end_is_told };
            (messages, job.id.clone(), wants_a_look)
        };
        for (worker, say) in messages {
            self.attendance.tell(worker.as_str(), say);
        }
        if wants_a_look {
            self.nudge(&id);
        }
    }

    /// A worker has completed a block.
    pub(super) fn sealed(&self, sealed: &Sealed) {
        let Some(job) = self.get(&sealed.job) else { return };
        let task = StageId(sealed.id.stage).task(sealed.id.task);
        let block = BlockReport {
            seq: sealed.id.seq,
            bytes: sealed.bytes,
            rows: sealed.rows,
            checksum: u64::from(sealed.checksum),
        };
        self.apply(&job, Event::BlockSealed { task, block });
    }

    /// A worker has no room for what its tasks write.
    pub(super) fn worker_full(&self, id: &str) {
        let runs = |job: &Shared| job.lock().graph.is_running_job();
        for job in self.all().into_iter().filter(runs) {
            let worker = WorkerId::new(id);
            self.apply(&job, Event::WorkerFull { worker });
        }
    }

    /// Makes the event loop look at a job.
    pub(super) fn nudge(&self, job: &JobId) {
        // Full of nudges: [`Self::wake`] comes back to it.
        self.nudges.try_send(job.clone()).ok();
    }

    /// Whether the event loop has something to do for a job.
    pub(super) fn wants_a_look(&self, id: &str) -> bool {
        self.get(id).is_none_or(|job| !job.lock().end_is_told)
    }

    /// Nudges jobs whose waits are over, and those whose end could not be told because too many
    /// nudges were waiting.
    pub(super) fn wake(&self) {
        let now = self.now();
        for job in self.all() {
            let job = job.lock();
            let is_due = job.graph.next_wakeup().is_some_and(|at| at <= now);
            if is_due || (!job.graph.is_running_job() && !job.end_is_told) {
                self.nudge(&job.id);
            }
        }
    }

    /// Gives up jobs that have waited for too long for a worker that can run them.
    pub(super) fn give_up(&self, patience: Duration) {
        let attending = self.attendance.workers();
        let workers: Vec<_> = attending.iter().map(fleet::worker_state).collect();
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        for job in self.all() {
            let hopeless = job.lock().hopeless(&workers, self.now(), patience_ms);
            if let Some(event) = hopeless {
                self.apply(&job, event);
            }
        }
    }

    /// Whether any worker attends.
    pub(super) fn has_workers(&self) -> bool {
        !self.attendance.workers().is_empty()
    }

    /// Lets draining workers go that no job needs any more.
    pub(super) fn release_drained(&self) {
        for worker in self.attendance.workers().into_iter().filter(|worker| worker.draining) {
            let id = WorkerId::new(worker.id.as_str());
            let needs = |job: &Shared| {
                let job = job.lock();
                !job.is_forgotten && job.graph.needs_worker(&id)
            };
            if !self.all().iter().any(needs) {
                self.attendance.tell(&worker.id, to_worker::Say::Leave(Leave {}));
            }
        }
    }

    /// The client of a job has read something, or could not. Whether that counts.
    pub(super) fn read_ended(&self, job: &Shared, done: ReadDone) -> bool {
        let (event, id) = {
            let job = job.lock();
            (job.read_ended(done), job.id.clone())
        };
        let Some(event) = event else { return false };
        self.apply(job, event);
        // What was held back for it may start.
        self.nudge(&id);
        true
    }

    /// What the client of a job reads next, once there is something.
    pub(super) async fn next_read(&self, job: &Shared) -> ReadAnswer {
        let changed = Arc::clone(&job.lock().changed);
        loop {
            let addresses = self.addresses();
            let wakeup = {
                let mut job = job.lock();
                if let Some(answer) = job.next_read(&addresses, self.now()) {
                    return answer;
                }
                job.graph.next_wakeup()
            };
            let pause = wakeup.map_or(LOOK_AGAIN_AFTER, |at| {
                Duration::from_millis(at.since(self.now()).max(1)).min(LOOK_AGAIN_AFTER)
            });
            tokio::time::timeout(pause, changed.notified()).await.ok();
        }
    }

    /// The job of this id, once it has been planned. Until then its client waits.
    pub(super) async fn planned(&self, id: &str) -> Shared {
        loop {
            let added = self.added.notified();
            tokio::pin!(added);
            added.as_mut().enable();
            if let Some(job) = self.get(id) {
                return job;
            }
            added.await;
        }
    }

    /// Nobody waits for a job any more: all workers drop what they hold of it.
    pub(super) fn forget(&self, job: &str) {
        self.submitted.lock().remove(job);
        if let Some(job) = self.get(job) {
            job.lock().is_forgotten = true;
        }
        for worker in self.attendance.workers() {
            self.attendance.tell(&worker.id, to_worker::Say::Forget(job.to_owned()));
        }
    }
}
