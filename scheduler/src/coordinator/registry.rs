//! All jobs of a scheduler, and the ways in which something happens to them.
//!
//! Ballista's event loop is the only place where tasks are bound and jobs end. What happens
//! elsewhere (a block is sealed, a wait is over, a job has failed for want of a worker) changes the
//! graph at once; then the loop is woken, which makes it look.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::JobId;
use ballista_core::serde::scheduler::ExecutorMetadata;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::coordinator::book::{Book, Found};
use crate::coordinator::fleet;
use crate::coordinator::job::{Addresses, RunningJob};
use crate::coordinator::known_jobs::{KnownJobs, Shared};
use crate::coordinator::looks::Looks;
use crate::coordinator::totals::Totals;
use crate::coordinator::wakes::Wakes;
use crate::graph::{BlockReport, Event, Millis, StageId, WorkerId};
use crate::placement::WorkerState;
use crate::protocol::membership::Membership;
use crate::protocol::messages::{Leave, ReadAnswer, ReadDone, Sealed, to_worker};
use crate::tables::rows::Epoch;

/// A job that still waits is looked at again after so many milliseconds at the earliest.
const SOON: u64 = 50;

/// A client that waits for rows looks by itself, should nothing happen for so long.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// When the workers were last looked at, and what was taken of them then.
pub(crate) type Look = (Millis, Arc<Vec<WorkerState>>);

/// All jobs, and the workers they run on.
#[derive(Clone)]
pub(crate) struct Registry {
    jobs: Arc<RwLock<KnownJobs>>,
    addresses: Arc<RwLock<Arc<Addresses>>>,
    membership: Membership,
    looks: Arc<Looks>,
    start: Instant,
    /// Graphs' time at the start of this process.
    begins: Millis,
    epoch: Epoch,
    /// What is written down of jobs, if anything is.
    pub(super) book: Option<Arc<Book>>,
    wakes: Arc<Wakes>,
    /// What was taken of workers when that was last looked at.
    pub(crate) recent: Arc<Mutex<Option<Look>>>,
    /// There is another job, or a client has gone.
    changed: Arc<Notify>,
    /// Jobs that have a client. Of those that Ballista has not planned yet, since it waits for the
    /// first worker, what is known.
    clients: Arc<Mutex<BTreeMap<String, Option<Submitted>>>>,
}

/// A job before it is planned.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    pub(crate) name: String,
    pub(crate) session: String,
    pub(crate) owner: String,
    /// Milliseconds since 1970.
    pub(crate) queued_ms: u64,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("jobs", &self.jobs.read().all.len())
            .finish_non_exhaustive()
    }
}

impl Registry {
    /// No jobs yet.
    pub(crate) fn new(membership: Membership) -> Self {
        Self {
            jobs: Arc::default(),
            addresses: Arc::default(),
            membership,
            looks: Arc::default(),
            start: Instant::now(),
            begins: Millis::default(),
            book: None,
            wakes: Arc::default(),
            recent: Arc::default(),
            changed: Arc::default(),
            clients: Arc::default(),
            epoch: Epoch::now(),
        }
    }

    /// The same, in which what happens is written down. Time goes on where what was `found` ends.
    pub(crate) fn with_book(mut self, book: Book, found: &Found) -> Self {
        match found.epoch_ms {
            Some(before) => {
                let passed = u64::try_from(self.epoch.0.saturating_sub(before)).unwrap_or(0);
                // A clock may have been set back.
                self.begins = Millis(passed).max(found.last_time());
                self.epoch = Epoch(self.epoch.0.saturating_sub_unsigned(self.begins.0));
            }
            None => book.time_begins(self.epoch.0),
        }
        let workers = found.workers.iter().map(|worker| (worker.id.clone(), worker.clone()));
        Arc::make_mut(&mut self.addresses.write()).extend(workers);
        self.book = Some(Arc::new(book));
        self
    }

    /// What all jobs have done.
    pub(crate) fn totals(&self) -> Totals {
        let (mut totals, live) = {
            let jobs = self.jobs.read();
            (jobs.done.clone(), jobs.live.values().cloned().collect::<Vec<_>>())
        };
        live.iter().for_each(|job| totals.add(&Totals::of(&job.lock())));
        totals
    }

    /// When [`Self::now`] was 0.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The time, as graphs count it.
    pub(crate) fn now(&self) -> Millis {
        self.begins.after(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn add(&self, job: RunningJob) -> Shared {
        let id = job.id.to_string();
        let job = Arc::new(Mutex::new(job));
        self.jobs.write().add(id.clone(), &job);
        // After it was added: who finds it in neither place knows that there is no such job.
        if let Some(submitted) = self.clients.lock().get_mut(&id) {
            *submitted = None;
        }
        self.changed.notify_waiters();
        job
    }

    /// Keeps an id for a job that is about to be submitted: no other can have it before this one is forgotten.
    /// Whether it was free.
    pub(crate) fn reserve(&self, id: &str, job: Submitted) -> bool {
        let mut clients = self.clients.lock();
        // What is written down may be of a job that could not be restored.
        let is_taken =
            clients.contains_key(id) || self.get(id).is_some() || self.log_of(id).is_some();
        if !is_taken {
            clients.insert(id.to_owned(), Some(job));
        }
        !is_taken
    }

    /// A client waits for a job, which may have been planned already.
    pub(crate) fn submit(&self, id: &JobId, job: Submitted) {
        let mut clients = self.clients.lock();
        let job = self.get(id.as_ref()).is_none().then_some(job);
        clients.insert(id.to_string(), job);
    }

    /// Those that are not planned yet.
    pub(crate) fn unplanned(&self) -> Vec<(String, Submitted)> {
        let clients = self.clients.lock();
        let unplanned = clients.iter().filter_map(|(id, job)| Some((id.clone(), job.clone()?)));
        unplanned.collect()
    }

    /// Whether a client waits for a job, or reads its rows.
    pub(crate) fn has_client(&self, id: &str) -> bool {
        self.clients.lock().contains_key(id)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Shared> {
        self.jobs.read().all.get(id).cloned()
    }

    /// All that can be looked at.
    pub(crate) fn all(&self) -> Vec<Shared> {
        self.jobs.read().all.values().cloned().collect()
    }

    /// Those that something may still happen to.
    pub(crate) fn live(&self) -> Vec<Shared> {
        self.jobs.read().live.values().cloned().collect()
    }

    /// Takes those that are over from the live ones.
    pub(crate) fn retire(&self) {
        for job in self.live() {
            let id = job.lock().id.to_string();
            let has_client = self.has_client(&id);
            let done = {
                let mut job = job.lock();
                // Its client may have gone before it was planned.
                job.is_forgotten |= !job.graph.is_running_job() && !has_client;
                job.is_over().then(|| Totals::of(&job))
            };
            if let Some(done) = done {
                self.jobs.write().retire(id, &done);
            }
        }
    }

    pub(crate) fn add_worker(&self, worker: &ExecutorMetadata) {
        let mut addresses = self.addresses.write();
        let known = Arc::make_mut(&mut addresses).insert(worker.id.clone(), worker.clone());
        drop(addresses);
        if let Some(book) = self.book.as_ref().filter(|_| known.is_none()) {
            book.worker_came(worker);
        }
    }

    pub(crate) fn addresses(&self) -> Arc<Addresses> {
        Arc::clone(&self.addresses.read())
    }

    /// Drops the addresses of workers that are gone, once no job has anything there.
    pub(crate) fn forget_gone(&self) {
        // In this order: who has an address has attended before.
        let known: Vec<String> = self.addresses.read().keys().cloned().collect();
        for id in known.into_iter().filter(|id| !self.membership.attends(id)) {
            let worker = WorkerId::new(id.as_str());
            if !self.live().iter().any(|job| job.lock().graph.uses_worker(&worker)) {
                Arc::make_mut(&mut self.addresses.write()).remove(&id);
                if let Some(book) = &self.book {
                    book.worker_went(&id);
                }
            }
        }
    }

    /// Something happened to a job; workers are told what follows from it.
    pub(crate) fn apply(&self, job: &Mutex<RunningJob>, event: Event) {
        let is_announcement = matches!(event, Event::BlockSealed { .. });
        let (messages, id, wants_a_look, wakeup, is_gone) = {
            let mut job = job.lock();
            let messages = job.apply(event, self.now());
            let runs = job.graph.is_running_job();
            let wants_a_look = if runs { is_announcement } else { !job.end_is_told };
            let is_gone = !runs && job.is_forgotten;
            (messages, job.id.clone(), wants_a_look, job.graph.next_wakeup(), is_gone)
        };
        if is_gone {
            self.close(id.as_ref());
        }
        for (worker, say) in messages {
            self.membership.tell(worker.as_str(), say);
        }
        if let Some(at) = wakeup {
            self.wakes.list(id.as_ref(), at);
        }
        if wants_a_look {
            self.wake(&id);
        }
    }

    /// A worker has completed a block of a task that it runs.
    pub(crate) fn sealed(&self, worker: &str, sealed: &Sealed) {
        let Some(job) = self.get(&sealed.job) else { return };
        let task = StageId(sealed.id.stage).task(sealed.id.task);
        let counts = {
            let job = job.lock();
            // Of what counts as a whole nothing is written down, and nobody is woken, before its end.
            job.graph.is_block_wise(task.stage) && job.is_held_by(task, worker, "a block")
        };
        if !counts {
            return;
        }
        let block = BlockReport {
            seq: sealed.id.seq,
            bytes: sealed.bytes,
            rows: sealed.rows,
            checksum: u64::from(sealed.checksum),
            // Of an output that counts as a whole, told with its end.
            run: None,
            segments: None,
        };
        self.apply(&job, Event::BlockSealed { task, block });
    }

    /// A worker has no room for what its tasks write.
    pub(crate) fn worker_full(&self, id: &str) {
        let runs = |job: &Shared| job.lock().graph.is_running_job();
        for job in self.live().into_iter().filter(runs) {
            let worker = WorkerId::new(id);
            self.apply(&job, Event::WorkerFull { worker });
        }
    }

    /// Makes the event loop look at a job.
    pub(crate) fn wake(&self, job: &JobId) {
        self.looks.ask([job.to_string()]);
    }

    /// What the event loop is to look at.
    pub(crate) fn looks(&self) -> &Looks {
        &self.looks
    }

    /// Makes the event loop look at a job at this time, or soon if that is over.
    pub(crate) fn wake_at(&self, job: &JobId, at: Millis) {
        self.wakes.list(job.as_ref(), at);
    }

    /// Whether the event loop has something to do for a job.
    pub(crate) fn wants_a_look(&self, id: &str) -> bool {
        self.get(id).is_none_or(|job| !job.lock().end_is_told)
    }

    fn soon(&self) -> Millis {
        self.now().after(SOON)
    }

    /// Wakes the loop for jobs whose waits are over.
    pub(crate) fn wake_due(&self) {
        for id in self.wakes.due(self.now()) {
            let Some(job) = self.get(&id) else { continue };
            let job = job.lock();
            if !job.graph.is_running_job() && job.end_is_told {
                continue;
            }
            self.wake(&job.id);
            // Listed until it waits for nothing: the loop may not look, and other units wait longer.
            if let Some(at) = job.graph.next_wakeup() {
                self.wakes.list(&id, at.max(self.soon()));
            }
        }
    }

    /// Gives up jobs that have waited for too long for a worker that can run them.
    pub(crate) fn give_up(&self, patience: Duration) {
        let attending = self.membership.workers();
        let workers: Vec<_> = attending.iter().map(fleet::worker_state).collect();
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        for job in self.live() {
            let hopeless = job.lock().hopeless(&workers, self.now(), patience_ms);
            if let Some(event) = hopeless {
                self.apply(&job, event);
            }
        }
    }

    /// Whether any worker attends.
    pub(crate) fn has_workers(&self) -> bool {
        !self.membership.is_empty()
    }

    /// Lets draining workers go that no job needs any more.
    pub(crate) fn release_drained(&self) {
        for worker in self.membership.draining() {
            let id = WorkerId::new(worker.as_str());
            let needs = |job: &Shared| {
                let job = job.lock();
                !job.is_forgotten && job.graph.needs_worker(&id)
            };
            if !self.live().iter().any(needs) {
                self.membership.tell(&worker, to_worker::Say::Leave(Leave {}));
            }
        }
    }

    /// The client of a job has read something, or could not. Whether that counts.
    pub(crate) fn read_ended(&self, job: &Shared, done: ReadDone) -> bool {
        let (event, id) = {
            let job = job.lock();
            if job.has_read(&done) {
                return true;
            }
            (job.read_ended(done), job.id.clone())
        };
        let Some(event) = event else { return false };
        self.apply(job, event);
        // What was held back for it may start.
        self.wake(&id);
        true
    }

    /// What the client of a job reads next, once there is something.
    pub(crate) async fn next_read(&self, job: &Shared) -> ReadAnswer {
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

    /// The job of this id, once it has been planned. Nothing if there is none, or none any more.
    pub(crate) async fn planned(&self, id: &str) -> Option<Shared> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // In this order: a job that is not waited for was planned before, or never will be.
            let is_waited_for = self.has_client(id);
            let found = self.get(id);
            if found.is_some() || !is_waited_for {
                return found;
            }
            changed.await;
        }
    }

    /// Nobody waits for a job any more: all workers drop what they hold of it.
    pub(crate) fn forget(&self, job: &str) {
        self.clients.lock().remove(job);
        self.changed.notify_waiters();
        let runs = self.get(job).is_some_and(|job| {
            let mut job = job.lock();
            job.is_forgotten = true;
            job.graph.is_running_job()
        });
        if !runs {
            self.close(job);
        }
        self.membership.tell_all(&to_worker::Say::Forget(job.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::runtime::SpawnedTask;
    use datafusion::prelude::SessionConfig;
    use forebay_engine::{ErrorKind, RemoteError};

    use super::*;
    use crate::coordinator::known_jobs::OVER_MAX;
    use crate::graph::JobGraph;
    use crate::stages::StagedPlan;

    fn registry() -> Registry {
        Registry::new(Membership::new())
    }

    fn submitted() -> Submitted {
        let (name, session, owner) = (String::new(), String::new(), String::new());
        Submitted { name, session, owner, queued_ms: 0 }
    }

    fn add(registry: &Registry, id: &str) -> Shared {
        let config = Arc::new(SessionConfig::new());
        let (id, graph) = (JobId::new(id), JobGraph::nothing());
        registry.add(RunningJob::new(id, String::new(), config, StagedPlan::default(), graph))
    }

    fn cancel(registry: &Registry, job: &Shared) {
        let why = RemoteError::new(ErrorKind::Canceled, "nobody wants it");
        registry.apply(job, Event::Canceled(why));
    }

    #[test]
    fn what_is_over_is_looked_at_by_nobody_and_counts_for_ever() {
        let registry = registry();
        let ids: Vec<_> = (0..OVER_MAX + 3).map(|at| format!("{at:06}")).collect();
        for id in &ids {
            registry.submit(&JobId::new(id.as_str()), submitted());
            let job = add(&registry, id);
            cancel(&registry, &job);
            job.lock().end_is_told = true;
        }
        registry.retire();
        assert_eq!(registry.live().len(), ids.len(), "their clients are there");
        ids[1..].iter().for_each(|id| registry.forget(id));
        registry.retire();
        assert_eq!(registry.live().len(), 1);
        registry.forget(&ids[0]);
        registry.retire();
        assert!(registry.live().is_empty());
        assert_eq!(registry.all().len(), OVER_MAX);
        let totals = format!("{:?}", registry.totals());
        assert!(totals.contains(&format!("\"canceled\": {}", ids.len())), "{totals}");
    }

    #[test]
    fn an_id_is_of_one_job_until_that_is_forgotten() {
        let registry = registry();
        assert!(registry.reserve("j", submitted()));
        assert_eq!(registry.unplanned().len(), 1);
        assert!(!registry.reserve("j", submitted()));
        registry.forget("j");
        assert!(registry.reserve("j", submitted()));
        registry.submit(&JobId::new("j"), submitted());
        let job = add(&registry, "j");
        registry.forget("j");
        assert!(!registry.reserve("j", submitted()), "it can still be looked at");
        cancel(&registry, &job);
        assert!(!registry.reserve("j", submitted()));
    }

    #[test]
    fn a_job_whose_client_has_gone_before_it_was_planned_ends_up_over_too() {
        let registry = registry();
        registry.submit(&JobId::new("j"), submitted());
        registry.forget("j");
        let job = add(&registry, "j");
        registry.retire();
        assert_eq!(registry.live().len(), 1, "it runs until it is canceled");
        cancel(&registry, &job);
        job.lock().end_is_told = true;
        registry.retire();
        assert!(registry.live().is_empty());
    }

    #[tokio::test]
    async fn who_waits_for_a_job_learns_that_it_is_planned_or_never_will_be() {
        let registry = registry();
        assert!(registry.planned("unknown").await.is_none());
        for id in ["planned", "forgotten"] {
            registry.submit(&JobId::new(id), submitted());
        }
        let waits = |id: &'static str| {
            let registry = registry.clone();
            SpawnedTask::spawn(async move { registry.planned(id).await.is_some() })
        };
        let (planned, forgotten) = (waits("planned"), waits("forgotten"));
        tokio::task::yield_now().await;
        add(&registry, "planned");
        registry.forget("forgotten");
        assert!(planned.join().await.unwrap());
        assert!(!forgotten.join().await.unwrap());
    }
}
