//! What was written down and what workers still have, brought together after the start of a successor.

use std::collections::BTreeSet;

use forebay_engine::{ErrorKind, RemoteError};

use crate::coordinator::book::Begun;
use crate::coordinator::job::RunningJob;
use crate::coordinator::known_jobs::Shared;
use crate::coordinator::registry::Registry;
use crate::graph::{Event, Failure, FailureKind, StageId, Step, TaskId, WorkerId};
use crate::protocol::messages::{Holds, TaskName, to_worker};

impl RunningJob {
    /// Does again what was written down of it. An error becomes the job's own.
    pub(crate) fn replay(&mut self, begun: Begun) -> Result<(), RemoteError> {
        let Begun { snapshot, steps } = begun;
        if snapshot.cut != self.cut() {
            let message = format!(
                "job {} cannot be continued: this build of Forebay cuts its plan into other stages than \
                 the one that began it; run it again",
                self.id
            );
            return Err(RemoteError::new(ErrorKind::FailedPrecondition, message));
        }
        // If there is none, it is as this one yet.
        if let Some(graph) = snapshot.changed() {
            self.graph = graph;
        }
        let again = |step: Step| self.graph.replay(step).map(drop);
        steps.into_iter().try_for_each(again).map_err(|problem| {
            let message = format!(
                "what the scheduler's journal says of job {} does not fit together: {problem}",
                self.id
            );
            RemoteError::new(ErrorKind::Internal, message)
        })
    }

    /// The tasks that take something of a worker, and whether they run or were told to stop.
    fn tasks_on(&self, worker: &WorkerId) -> Vec<(TaskId, bool)> {
        let held = self.graph.task_rows().filter(|task| task.worker == worker);
        let held = held.map(|task| (task.id, self.graph.runs(task.id), task.is_draining));
        held.filter(|(_, runs, drains)| *runs || *drains).map(|(id, runs, _)| (id, runs)).collect()
    }
}

impl Registry {
    /// A worker has come from the scheduler before this one. What runs there and is not known is stopped;
    /// what is thought to run there and does not was lost on the way.
    pub(crate) fn reconcile(&self, id: &str, holds: &Holds) {
        let worker = WorkerId::new(id);
        let has: BTreeSet<&TaskName> = holds.running.iter().chain(&holds.ended).collect();
        for shared in self.live() {
            let (job, tasks) = {
                let job = shared.lock();
                (job.id.to_string(), job.tasks_on(&worker))
            };
            for (task, runs) in tasks {
                let (stage, number) = (task.stage.0, task.index);
                if has.contains(&TaskName { job: job.clone(), stage, task: number }) {
                    continue;
                }
                tracing::info!(%job, stage, task = number, worker = id, "was lost with the scheduler");
                let message = "the scheduler ended before the worker had it, or its end was told";
                let failure = Failure::new(FailureKind::WorkerLost, message);
                self.apply(
                    &shared,
                    match runs {
                        true => Event::TaskFailed { task, failure },
                        false => Event::TaskEnded { task },
                    },
                );
            }
        }
        for name in holds.running.iter().filter(|name| !self.is_run_by(name, &worker)) {
            self.membership().tell(id, to_worker::Say::Cancel(name.clone()));
        }
        for job in holds.jobs.iter().filter(|job| !self.has_client(job)) {
            self.membership().tell(id, to_worker::Say::Forget(job.clone()));
        }
    }

    /// A job was restored: its waits are listed, and its end is told if it has ended.
    pub(crate) fn look_at(&self, job: &Shared) {
        let (id, wakeup) = {
            let job = job.lock();
            (job.id.clone(), job.graph.next_wakeup())
        };
        self.wake_at(&id, wakeup.unwrap_or_default());
    }

    fn is_run_by(&self, name: &TaskName, worker: &WorkerId) -> bool {
        let Some(job) = self.get(&name.job) else { return false };
        let job = job.lock();
        let task = StageId(name.stage).task(name.task);
        job.graph.runs(task) && job.graph.worker_of(task) == Some(worker)
    }

    /// Whether a worker that is known does not attend: from the start on until it comes back.
    pub(crate) fn misses_workers(&self) -> bool {
        self.addresses().keys().any(|id| !self.membership().attends(id))
    }

    /// Workers that have not come back since the start, though jobs have something there, are lost.
    pub(crate) fn lose_absent(&self) {
        let addresses = self.addresses();
        for id in addresses.keys().filter(|id| !self.membership().attends(id)) {
            let worker = WorkerId::new(id.as_str());
            let jobs = self.live().into_iter();
            // Of one that has ended a task may still be thought to stop there.
            let has_something = |job: &Shared| {
                let job = job.lock();
                job.graph.uses_worker(&worker) || job.graph.slots().any(|(at, ..)| *at == worker)
            };
            let jobs: Vec<_> = jobs.filter(has_something).collect();
            if !jobs.is_empty() {
                tracing::info!(worker = %id, "has not come back, and counts as lost");
            }
            for job in jobs {
                self.apply(&job, Event::WorkerLost { worker: worker.clone() });
                let id = job.lock().id.clone();
                self.wake(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;
    use std::time::Duration;

    use ballista_core::JobId;
    use datafusion::prelude::SessionConfig;
    use tempfile::TempDir;

    use super::*;
    use crate::coordinator::book::{Address, Book, Found, JobDocument, fold, metadata};
    use crate::coordinator::registry::Submitted;
    use crate::graph::{JobGraph, JobSpec, Snapshot, StageSpec, TaskState, Work};
    use crate::journal::State;
    use crate::protocol::membership::Membership;
    use crate::protocol::messages::RunRequest;
    use crate::resources::{Lease, Need};
    use crate::stages::StagedPlan;

    const JOB: &str = "038FYY9SHE000";

    fn job(registry: &Registry) -> RunningJob {
        let mut job = unlogged();
        job.log_to(registry.log_of(JOB));
        job
    }

    /// As it is before what was written down of it is done again.
    fn unlogged() -> RunningJob {
        of_units(4)
    }

    fn of_units(units: u32) -> RunningJob {
        let stages = vec![StageSpec::new("s", Need::cpus(1000), units)];
        let spec = JobSpec { stages, ..JobSpec::default() };
        let graph = JobGraph::try_new(spec.clone()).unwrap();
        let plans = StagedPlan { spec, ..StagedPlan::default() };
        let config = Arc::new(SessionConfig::new());
        RunningJob::new(JobId::new(JOB), String::new(), config, plans, graph)
    }

    /// A scheduler on this folder, and what it found there.
    async fn scheduler(folder: &TempDir) -> (Registry, Found) {
        scheduler_with(State::in_folder(folder.path())).await
    }

    async fn scheduler_with(state: State) -> (Registry, Found) {
        let hold = state.take().await.unwrap();
        let (journal, records) = hold.open(fold).await.unwrap();
        let found = Found::read(records).unwrap();
        let registry = Registry::new(Membership::new());
        (registry.with_book(Book::new(journal, &found), &found), found)
    }

    fn waits() -> Submitted {
        let (name, session, owner) = (String::new(), String::new(), String::new());
        Submitted { name, session, owner, queued_ms: 7 }
    }

    fn task(number: u32) -> TaskId {
        StageId(0).task(number)
    }

    fn name(task: u32) -> TaskName {
        TaskName { job: JOB.to_owned(), stage: 0, task }
    }

    #[tokio::test]
    async fn a_successor_knows_what_ran_and_both_sides_come_to_the_same() {
        let folder = TempDir::new().unwrap();
        let (first, found) = scheduler(&folder).await;
        assert!(found.jobs.is_empty());
        let document = JobDocument { request: RunRequest::default(), queued_ms: 7 };
        first.begin(JOB, &document).await.unwrap();
        let shared = first.add(job(&first));
        shared.lock().write_cut();
        first.apply(&shared, Event::Started);
        for unit in 0..4 {
            let (work, worker) = (Work::Unit(StageId(0).unit(unit)), WorkerId::new("w"));
            let mut job = shared.lock();
            job.graph.bind(work, &worker, Lease::default(), first.now()).unwrap();
            job.write_down();
        }
        first.apply(&shared, Event::TaskFinished { task: task(0), blocks: vec![] });
        first.written().await.unwrap();
        let before = first.now();
        drop((first, shared));

        let (second, mut found) = scheduler(&folder).await;
        assert!(second.now() >= before, "time goes on");
        let found_job = found.jobs.remove(0);
        assert_eq!((found_job.id.as_str(), &found_job.document), (JOB, &document));
        let mut restored = unlogged();
        restored.replay(found_job.begun.unwrap()).unwrap();
        restored.log_to(second.log_of(JOB));
        second.submit(&JobId::new(JOB), waits());
        let shared = second.add(restored);
        // Task 1 runs, 2 has ended and will be reported, 3 was lost with the scheduler.
        let holds = Holds { running: vec![name(1), name(9)], ended: vec![name(2)], jobs: vec![] };
        second.reconcile("w", &holds);
        let states: Vec<_> = {
            let job = shared.lock();
            job.graph.task_rows().map(|task| task.state.clone()).collect()
        };
        let lost = TaskState::Failed(FailureKind::WorkerLost);
        let running = TaskState::Running;
        assert_eq!(states, [TaskState::Finished, running.clone(), running, lost]);
        let w = WorkerId::new("w");
        let run = [1, 9, 0].map(|task| second.is_run_by(&name(task), &w));
        assert_eq!(run, [true, false, false]);
        second.forget(JOB);
        let nobody = RemoteError::new(ErrorKind::Canceled, "nobody wants it");
        second.apply(&shared, Event::Canceled(nobody));
        // Tasks that were canceled end after their job.
        for index in 0..4 {
            second.apply(&shared, Event::TaskEnded { task: task(index) });
        }
        drop((second, shared));
        assert!(scheduler(&folder).await.1.jobs.is_empty(), "what is over and left is forgotten");
    }

    /// What a scheduler on this folder goes on with.
    async fn goes_on(folder: &TempDir) -> (Registry, Shared) {
        let (registry, mut found) = scheduler(folder).await;
        let mut restored = unlogged();
        restored.replay(found.jobs.remove(0).begun.unwrap()).unwrap();
        restored.log_to(registry.log_of(JOB));
        assert!(registry.take_over(&mut restored));
        registry.written().await.unwrap();
        registry.submit(&JobId::new(JOB), waits());
        let shared = registry.add(restored);
        (registry, shared)
    }

    fn bind(registry: &Registry, job: &Shared, unit: u32) -> TaskId {
        let (work, worker) = (Work::Unit(StageId(0).unit(unit)), WorkerId::new("w"));
        job.lock().graph.bind(work, &worker, Lease::default(), registry.now()).unwrap().task
    }

    /// Each scheduler starts tasks that are not on the disk when it dies.
    #[tokio::test]
    async fn no_task_has_the_name_of_one_that_was_lost_with_its_scheduler() {
        let folder = TempDir::new().unwrap();
        let (first, _) = scheduler(&folder).await;
        let document = JobDocument { request: RunRequest::default(), queued_ms: 7 };
        first.begin(JOB, &document).await.unwrap();
        let mut begun = job(&first);
        assert!(!first.take_over(&mut begun), "it is its own");
        let shared = first.add(begun);
        shared.lock().write_cut();
        first.apply(&shared, Event::Started);
        let mut given = vec![bind(&first, &shared, 0)];
        shared.lock().write_down();
        given.extend([1, 2].map(|unit| bind(&first, &shared, unit)));
        first.nearly_written().await.unwrap();
        drop((first, shared));
        for _ in 0..2 {
            let (next, shared) = goes_on(&folder).await;
            let is_held = |task| shared.lock().graph.is_held(task);
            assert!(is_held(given[0]) && !given[1..].iter().any(|task| is_held(*task)));
            given.extend([1, 2, 3].map(|unit| bind(&next, &shared, unit)));
            drop((next, shared));
        }
        let different: BTreeSet<_> = given.iter().collect();
        assert_eq!(different.len(), given.len(), "{given:?}");
    }

    /// Bytes of the journal that is there.
    fn journal_bytes(folder: &TempDir) -> u64 {
        let files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let journals = files.filter(|file| file.path().extension().is_some_and(|e| e == "journal"));
        journals.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    /// What tells graphs apart, but for steps that are yet to be taken.
    fn seen(job: &mut RunningJob) -> String {
        job.graph.record_steps();
        assert!(job.graph.take_steps().is_empty());
        format!("{:?}", job.graph)
    }

    async fn do_units(registry: &Registry, job: &Shared, units: Range<u32>) {
        for unit in units {
            let task = bind(registry, job, unit);
            registry.apply(job, Event::TaskFinished { task, blocks: vec![] });
            if unit % 100 == 0 {
                registry.written().await.unwrap();
            }
        }
        registry.written().await.unwrap();
    }

    async fn until_smaller(folder: &TempDir, bytes: u64) {
        let is_small = async {
            while journal_bytes(folder) > bytes {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let limit = Duration::from_secs(60);
        tokio::time::timeout(limit, is_small).await.expect("it is not made less");
    }

    /// Each scheduler does a part of a job's tasks, whose steps are in the journal until a snapshot stands for them.
    #[tokio::test]
    async fn of_a_long_job_little_is_written_down_and_successors_know_all_of_it() {
        const UNITS: u32 = 3000;
        const SCHEDULERS: u32 = 3;
        /// All steps have more than three times as many.
        const BYTES: u64 = 200_000;
        let folder = TempDir::new().unwrap();
        let state = || State::in_folder(folder.path()).with_copied_from(30_000);
        let mut before: Option<String> = None;
        for part in 0..SCHEDULERS {
            let (registry, mut found) = scheduler_with(state()).await;
            let mut running = of_units(UNITS);
            if let Some(before) = &before {
                let begun = found.jobs.remove(0).begun.unwrap();
                assert!(begun.snapshot.time() <= registry.now());
                running.replay(begun).unwrap();
                assert!(seen(&mut running) == *before, "another graph");
                running.log_to(registry.log_of(JOB));
                assert!(registry.take_over(&mut running));
            } else {
                let document = JobDocument { request: RunRequest::default(), queued_ms: 7 };
                registry.begin(JOB, &document).await.unwrap();
                running.log_to(registry.log_of(JOB));
                running.write_cut();
            }
            let shared = registry.add(running);
            let each = UNITS / SCHEDULERS;
            do_units(&registry, &shared, part * each..(part + 1) * each).await;
            until_smaller(&folder, BYTES).await;
            before = Some(seen(&mut shared.lock()));
        }
        let (_, mut found) = scheduler(&folder).await;
        let Begun { snapshot, steps } = found.jobs.remove(0).begun.unwrap();
        assert!(steps.len() < UNITS as usize, "{} steps of {}", steps.len(), 2 * UNITS);
        let tasks = snapshot.changed().unwrap().task_rows().count();
        assert!(tasks > UNITS as usize / 2, "{tasks} tasks");
    }

    #[test]
    fn what_does_not_fit_together_is_left_as_it_is() {
        let spec = unlogged().plans.spec;
        let snapshot = Snapshot::new(1, spec).to_bytes().unwrap();
        let started = serde_json::to_vec(&Step::PassedOver { numbers: 1, now: Default::default() });
        let (started, unknown) = (started.unwrap(), b"{\"Other\":1}".to_vec());
        let work = Work::Unit(StageId(7).unit(0));
        let (worker, lease, now) = (WorkerId::new("w"), Lease::default(), Default::default());
        let of_others = serde_json::to_vec(&Step::Bind { work, worker, lease, now }).unwrap();
        let key = format!("job/{JOB}");
        let folds = |key: &str, snapshot: &[u8], step: &[u8]| {
            fold(key, &[&b"document"[..], snapshot], &[step]).is_some()
        };
        assert!(folds(&key, &snapshot, &started));
        assert!(!folds("worker/w", &snapshot, &started));
        assert!(!folds(&key, &snapshot, &unknown) && !folds(&key, &snapshot, &of_others));
        for damaged in [&snapshot[..snapshot.len() - 1], &snapshot[1..], b"", b"\xff\xff\xff\xff1"]
        {
            assert!(!folds(&key, damaged, &started), "{damaged:?}");
        }
        assert_eq!(fold(&key, &[&b"document"[..]], &[&started[..]]), None);
    }

    #[tokio::test]
    async fn workers_are_missed_that_the_scheduler_before_has_had() {
        let folder = TempDir::new().unwrap();
        let (first, _) = scheduler(&folder).await;
        assert!(!first.misses_workers(), "there have been none");
        first.add_worker(&metadata(Address {
            id: "w".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 1,
            grpc_port: 2,
        }));
        first.written().await.unwrap();
        drop(first);
        let (second, _) = scheduler(&folder).await;
        assert!(second.misses_workers());
        // Nothing of any job is there.
        second.forget_gone();
        assert!(!second.misses_workers());
    }

    #[tokio::test]
    async fn steps_of_other_stages_are_refused() {
        let folder = TempDir::new().unwrap();
        let (registry, _) = scheduler(&folder).await;
        let (cut, spec) = (1, JobSpec::default());
        let begun = Begun { snapshot: Snapshot::new(cut, spec), steps: vec![] };
        let error = job(&registry).replay(begun).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        assert!(error.message.contains("run it again"), "{error}");
    }
}
