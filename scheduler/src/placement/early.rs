//! Tasks that wait on a worker for others, and are to give it back.

use std::collections::BTreeMap;

use crate::graph::{TaskId, WorkerId};
use crate::resources::{Lease, Need};

use super::fleet::Fleet;
use super::job::Job;

/// A task that waits, and the place of its job.
type Early<'a> = (usize, TaskId, &'a Need, &'a Lease);

/// Which of the tasks that began early is to stop, as what has found no worker in the last round could have its.
/// The last one that began there, one at a time: what stops may be enough.
pub fn in_the_way(jobs: &[Job<'_>], fleet: &Fleet) -> Option<(usize, TaskId)> {
    if fleet.wanting.is_empty() {
        return None;
    }
    let mut waiting = BTreeMap::<&WorkerId, Vec<Early<'_>>>::new();
    for (at, job) in jobs.iter().enumerate() {
        for (task, worker, lease) in job.graph.early_tasks() {
            let need = &job.graph.stage(task.stage).need;
            waiting.entry(worker).or_default().push((at, task, need, lease));
        }
    }
    // What was told to stop before will make room first.
    if waiting.is_empty() || jobs.iter().any(|job| job.graph.drains()) {
        return None;
    }
    waiting.into_iter().find_map(|(worker, tasks)| {
        let mut freed = fleet.worker(worker).filter(|worker| !worker.is_draining)?.clone();
        tasks.iter().for_each(|(_, _, need, lease)| freed.release(need, lease));
        let is_enough = fleet.wanting.iter().any(|need| freed.fit(need).is_some());
        tasks.last().filter(|_| is_enough).map(|(at, task, ..)| (*at, *task))
    })
}
