//! What was written down and what workers still have, brought together after the start of a successor.

use std::collections::BTreeSet;

use forebay_engine::{ErrorKind, RemoteError};

use crate::coordinator::book::Line;
use crate::coordinator::job::RunningJob;
use crate::coordinator::known_jobs::Shared;
use crate::coordinator::registry::Registry;
use crate::graph::{Event, Failure, FailureKind, StageId, TaskId, WorkerId};
use crate::protocol::messages::{Holds, TaskName, to_worker};

impl RunningJob {
    /// Does again what was written down of it. An error becomes the job's own.
    pub(crate) fn replay(&mut self, lines: Vec<Line>) -> Result<(), RemoteError> {
        for line in lines {
            match line {
                Line::Cut(cut) if cut == self.cut() => {}
                Line::Cut(_) => {
                    let message = format!(
                        "job {} cannot be continued: this build of Forebay cuts its plan into other stages than \
                         the one that began it; run it again",
                        self.id
                    );
                    return Err(RemoteError::new(ErrorKind::FailedPrecondition, message));
                }
                Line::Shuffled(task, files) => {
                    self.restore_shuffled(task, files.into_iter().map(Into::into).collect());
                }
                Line::Step(step) => {
                    let now = step.time();
                    let bound = self.graph.replay(step).map_err(|problem| {
                        let message = format!(
                            "what the scheduler's journal says of job {} does not fit together: {problem}",
                            self.id
                        );
                        RemoteError::new(ErrorKind::Internal, message)
                    })?;
                    if let Some(bound) = bound {
                        self.units.insert(bound.task, bound.unit);
                    }
                    if !self.graph.is_running_job() {
                        self.ended.get_or_insert(now);
                    }
                }
            }
        }
        Ok(())
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

    /// Workers that have not come back since the start, though jobs have something there, are lost.
    pub(crate) fn lose_absent(&self) {
        let absent = self.addresses().into_keys().filter(|id| !self.membership().attends(id));
        for id in absent.collect::<Vec<_>>() {
            let worker = WorkerId::new(id.as_str());
            let jobs = self.live().into_iter();
            let jobs: Vec<_> = jobs.filter(|job| job.lock().graph.uses_worker(&worker)).collect();
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
