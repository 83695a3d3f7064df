//! The tasks of a worker: which of them the scheduler wants stopped, and what a scheduler is told that knows
//! nothing of them: what runs, what it has sealed, and the ends that may not have been written down.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ballista_core::serde::protobuf::TaskStatus;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::protocol::control_stream::ToScheduler;
use crate::protocol::messages::{Sealed, TaskName, from_worker};

/// A scheduler that has heard of an end writes it down, or this worker has noticed that it is gone, within this time.
const WRITTEN_WITHIN: Duration = Duration::from_secs(30);

/// As many tasks that have not come yet are remembered to be unwanted.
const UNWANTED_MAX: usize = 4096;

/// The tasks of a worker, as far as its scheduler, or a successor, speaks of them.
#[derive(Debug)]
pub(crate) struct Account {
    to_scheduler: ToScheduler,
    /// Whether there is a scheduler.
    attached: watch::Sender<bool>,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    running: BTreeMap<TaskName, Running>,
    /// Those that were canceled before they came, and when: what starts and what stops tasks comes on two ways.
    unwanted: BTreeMap<TaskName, Instant>,
    /// The last ones, and when they ended.
    ended: VecDeque<(Instant, TaskStatus)>,
}

impl Tasks {
    /// A task that has not come is not wanted. Of too many, the one is forgotten that was canceled first.
    fn refuse(&mut self, task: TaskName) {
        self.unwanted.insert(task, Instant::now());
        if self.unwanted.len() > UNWANTED_MAX {
            let first = self.unwanted.iter().min_by_key(|(_, canceled)| **canceled);
            if let Some(first) = first.map(|(task, _)| task.clone()) {
                self.unwanted.remove(&first);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Running {
    canceled: CancellationToken,
    sealed: Vec<Sealed>,
}

impl Account {
    /// No tasks, and no scheduler yet.
    pub(crate) fn new(to_scheduler: ToScheduler) -> Self {
        let (attached, _) = watch::channel(false);
        Self { to_scheduler, attached, tasks: Mutex::default() }
    }

    /// A task has come. The answer says when it is to stop; without one it was canceled before, and must not begin:
    /// others may have been given what it would take.
    pub(crate) fn begins(&self, task: TaskName) -> Option<CancellationToken> {
        let mut tasks = self.tasks.lock();
        let is_wanted = tasks.unwanted.remove(&task).is_none();
        let running = Running::default();
        let canceled = running.canceled.clone();
        tasks.running.insert(task, running);
        is_wanted.then_some(canceled)
    }

    /// The scheduler wants a task to stop, whether it runs, has ended or is still to come. One that has not come may
    /// never do so, and would be waited for in vain: the scheduler is told.
    pub(crate) fn cancels(&self, task: TaskName) {
        {
            let mut tasks = self.tasks.lock();
            if let Some(running) = tasks.running.get(&task) {
                running.canceled.cancel();
                return;
            }
            // Its end is on its way.
            if tasks.ended.iter().any(|(_, status)| name_of(status) == task) {
                return;
            }
            tasks.refuse(task.clone());
        }
        self.to_scheduler.say(from_worker::Say::Absent(task));
    }

    /// A task has sealed a block, of which the scheduler is told.
    pub(crate) fn seals(&self, sealed: Sealed) {
        let (stage, task) = (sealed.id.stage, sealed.id.task);
        let name = TaskName { job: sealed.job.clone(), stage, task };
        if let Some(running) = self.tasks.lock().running.get_mut(&name) {
            running.sealed.push(sealed.clone());
        }
        self.to_scheduler.say(from_worker::Say::Sealed(sealed));
    }

    /// A task has ended so, which will be reported.
    pub(crate) fn ends(&self, status: &TaskStatus) {
        let now = Instant::now();
        let mut tasks = self.tasks.lock();
        // Without a scheduler nothing is written down.
        while *self.attached.borrow()
            && tasks.ended.front().is_some_and(|(at, _)| now - *at > WRITTEN_WITHIN)
        {
            tasks.ended.pop_front();
        }
        tasks.running.remove(&name_of(status));
        tasks.unwanted.remove(&name_of(status));
        tasks.ended.push_back((now, status.clone()));
    }

    /// The tasks that run, and those that have ended.
    pub(crate) fn names(&self) -> (Vec<TaskName>, Vec<TaskName>) {
        let tasks = self.tasks.lock();
        let ended = tasks.ended.iter().map(|(_, status)| name_of(status));
        (tasks.running.keys().cloned().collect(), ended.collect())
    }

    /// There is no scheduler.
    pub(crate) fn detached(&self) {
        self.attached.send_replace(false);
    }

    /// There is one. If it is another one, it is told what the one before it may not have written down; the
    /// ends that are to be reported are given back.
    pub(crate) fn attached(&self) -> Vec<TaskStatus> {
        let (sealed, ended) = {
            let tasks = self.tasks.lock();
            let sealed = tasks.running.values().flat_map(|running| &running.sealed);
            let sealed: Vec<_> = sealed.cloned().collect();
            let ended: Vec<_> = tasks.ended.iter().map(|(_, status)| status.clone()).collect();
            (sealed, ended)
        };
        sealed.into_iter().for_each(|one| self.to_scheduler.say(from_worker::Say::Sealed(one)));
        self.attached.send_replace(true);
        ended
    }

    /// Waits until there is a scheduler.
    pub(crate) async fn until_attached(&self) {
        let mut attached = self.attached.subscribe();
        // The sender is held here.
        attached.wait_for(|attached| *attached).await.ok();
    }

    pub(crate) fn to_scheduler(&self) -> &ToScheduler {
        &self.to_scheduler
    }
}

fn name_of(status: &TaskStatus) -> TaskName {
    TaskName { job: status.job_id.clone(), stage: status.stage_id, task: status.task_id }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control_stream::to_scheduler;
    use crate::protocol::location::FileId;

    fn name(task: u32) -> TaskName {
        TaskName { job: "j".to_owned(), stage: 1, task }
    }

    fn end(task: u32) -> TaskStatus {
        let (job_id, stage_id, task_id) = ("j".to_owned(), 1, task);
        TaskStatus { job_id, stage_id, task_id, ..TaskStatus::default() }
    }

    fn sealed(task: u32, seq: u32) -> Sealed {
        let id = FileId { stage: 1, task, seq };
        Sealed { job: "j".to_owned(), id, bytes: 1, rows: 1, checksum: 1 }
    }

    #[test]
    fn another_scheduler_is_told_what_runs_with_its_blocks_and_how_the_last_tasks_ended() {
        let (out, mut first) = to_scheduler();
        let account = Account::new(out);
        assert_eq!(account.attached(), []);
        for task in 0..3 {
            account.begins(name(task));
        }
        account.seals(sealed(0, 0));
        account.seals(sealed(1, 0));
        account.ends(&end(1));
        let mut heard = 0;
        while first.try_recv().is_ok() {
            heard += 1;
        }
        assert_eq!(heard, 2);
        drop(first);
        account.detached();
        account.seals(sealed(0, 1));
        account.ends(&end(2));
        assert_eq!(account.names(), (vec![name(0)], vec![name(1), name(2)]));
        let mut second = account.to_scheduler().renewed();
        assert_eq!(account.attached(), [end(1), end(2)]);
        let told: Vec<_> = std::iter::from_fn(|| second.try_recv().ok()).collect();
        let expected = [sealed(0, 0), sealed(0, 1)].map(from_worker::Say::Sealed);
        assert_eq!(told.into_iter().filter_map(|m| m.say).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_task_is_stopped_whether_its_cancel_comes_before_it_or_after() {
        let (out, mut told) = to_scheduler();
        let account = Account::new(out);
        let mut absent = || told.try_recv().ok().and_then(|message| message.say);
        let running = account.begins(name(0)).unwrap();
        assert!(!running.is_cancelled());
        account.cancels(name(0));
        assert!(running.is_cancelled());
        assert_eq!(absent(), None, "it will end");
        account.cancels(name(1));
        assert_eq!(absent(), Some(from_worker::Say::Absent(name(1))));
        assert!(account.begins(name(1)).is_none());
        // What has ended is not waited for.
        account.ends(&end(1));
        account.cancels(name(1));
        assert!(account.tasks.lock().unwanted.is_empty());
        assert_eq!(absent(), None, "its end is told");
        // The scheduler before may have given to others what it would take.
        account.cancels(name(2));
        account.detached();
        assert!(account.begins(name(2)).is_none());
        account.ends(&end(2));
        let many = u32::try_from(UNWANTED_MAX).unwrap() + 10;
        (3..3 + many).for_each(|task| account.cancels(name(task)));
        assert_eq!(account.tasks.lock().unwanted.len(), UNWANTED_MAX);
        assert!(account.begins(name(2 + many)).is_none(), "the last one is remembered");
        assert!(account.begins(name(3)).is_some(), "the first one is not");
    }
}
