//! Tasks that are to stop: what they were given is free once their end is told, or nobody will tell it.

use crate::coordinator::known_jobs::Shared;
use crate::coordinator::registry::Registry;
use crate::graph::{Event, StageId, WorkerId};
use crate::protocol::messages::TaskName;

impl Registry {
    /// A task that is to stop has not come to a worker. It was lost on its way, or does not begin if it comes: what
    /// it was given there is free.
    pub(crate) fn absent(&self, worker: &str, task: &TaskName) {
        let Some(job) = self.get(&task.job) else { return };
        let task = StageId(task.stage).task(task.task);
        let drains = {
            let job = job.lock();
            job.is_held_by(task, worker, "the absence") && !job.graph.runs(task)
        };
        if drains {
            self.apply(&job, Event::TaskEnded { task });
            self.looks().ask([]);
        }
    }

    /// Tells workers again what is to stop and has not: what they are told while this scheduler may have a successor
    /// they do not hear.
    pub(crate) fn stop_again(&self) {
        for job in self.live() {
            let messages = job.lock().still_to_stop();
            for (worker, say) in messages {
                self.membership().tell(worker.as_str(), say);
            }
        }
    }

    /// A worker is gone: what it was to stop for jobs that are over has ended. Those that run hear of it from Ballista.
    pub(crate) fn nothing_ends_on(&self, worker: &str) {
        let worker = WorkerId::new(worker);
        let waits = |job: &Shared| {
            let job = job.lock();
            !job.graph.is_running_job() && job.graph.slots_on(&worker).next().is_some()
        };
        for job in self.live().into_iter().filter(waits) {
            self.apply(&job, Event::WorkerLost { worker: worker.clone() });
        }
    }
}
