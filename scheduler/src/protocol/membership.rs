//! Who attends: the workers whose control streams are open, what they say, and what they are told.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::messages::{
    FromWorker, Holds, Sealed, TaskName, ToWorker, Welcome, Worker, from_worker, to_worker,
};
use crate::journal::Hold;

/// Messages that may wait for one worker.
const MESSAGES_MAX: usize = 65_536;

/// What workers say, and that they came or went.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A worker attends: its control stream is open. If it has worked for another scheduler of the same
    /// journal, it has this of its jobs.
    Came(String, Option<Holds>),
    /// A worker's line broke: its process is gone, or unreachable.
    Lost(String),
    /// A worker takes no more tasks.
    Drains(String),
    /// A worker has completed a block.
    Sealed(String, Sealed),
    /// A worker has no room for blocks.
    Full(String),
    /// A task that is to stop has not come to a worker.
    Absent(String, TaskName),
}

/// Told all news, in the order of each worker; must not wait.
pub type Listener = Arc<dyn Fn(News) + Send + Sync>;

/// The workers that attend.
#[derive(Clone, Default)]
pub struct Membership {
    workers: Arc<RwLock<BTreeMap<String, Member>>>,
    changes: Arc<AtomicU64>,
    listener: Arc<RwLock<Option<Listener>>>,
    /// What another scheduler may take over.
    hold: Option<Hold>,
}

/// One that attends.
struct Member {
    worker: Worker,
    out: mpsc::Sender<Told>,
}

impl Member {
    fn tell(&self, say: to_worker::Say) {
        if let Err(error) = self.out.try_send(Ok(ToWorker { say: Some(say) })) {
            tracing::warn!(worker = %self.worker.id, "does not listen: {error}");
        }
    }
}

impl Membership {
    /// Nobody attends yet. Clones share.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same of a scheduler that may have a successor.
    pub(crate) fn of(hold: Option<Hold>) -> Self {
        Self { hold, ..Self::default() }
    }

    /// Whether this scheduler has no successor, as far as can be known without asking.
    pub(crate) fn has_a_say(&self) -> bool {
        self.hold.as_ref().is_none_or(Hold::is_fresh)
    }

    /// Waits until it is known that this scheduler has no successor.
    ///
    /// # Errors
    /// If it has: whoever is told so asks that one.
    pub(crate) async fn confirm(&self) -> Result<(), Status> {
        match &self.hold {
            Some(hold) => {
                hold.confirm().await.map_err(|lost| Status::unavailable(lost.to_string()))
            }
            None => Ok(()),
        }
    }

    /// Tells `listener` all news from now on.
    pub fn listen(&self, listener: Listener) {
        *self.listener.write() = Some(listener);
    }

    /// Who attends, in the order of their ids.
    pub fn workers(&self) -> Vec<Worker> {
        self.workers.read().values().map(|attending| attending.worker.clone()).collect()
    }

    /// How often it has changed who attends, and who takes tasks. Read before what it counts.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether nobody attends, not even a worker that drains.
    pub fn is_empty(&self) -> bool {
        self.workers.read().is_empty()
    }

    /// Whether this worker attends.
    pub fn attends(&self, worker: &str) -> bool {
        self.workers.read().contains_key(worker)
    }

    /// The ids of those that take no more tasks.
    pub fn draining(&self) -> Vec<String> {
        let workers = self.workers.read();
        let draining = workers.values().filter(|attending| attending.worker.draining);
        draining.map(|attending| attending.worker.id.clone()).collect()
    }

    /// Tells all workers something, as [`Self::tell`] does.
    pub fn tell_all(&self, say: &to_worker::Say) {
        if !self.has_a_say() {
            return;
        }
        self.workers.read().values().for_each(|attending| attending.tell(say.clone()));
    }

    /// Tells a worker something. One that is gone, or too slow to listen, does not hear it: what
    /// it holds in vain goes at the end of the job, and what is to stop is told again. Nor does any if this scheduler may
    /// have a successor.
    pub fn tell(&self, worker: &str, say: to_worker::Say) {
        if self.has_a_say()
            && let Some(attending) = self.workers.read().get(worker)
        {
            attending.tell(say);
        }
    }

    /// Hangs up on a worker that counts as lost. If it still lives it learns so, and ends: under
    /// its name it holds nothing that anybody would ask for.
    pub fn dismiss(&self, worker: &str, why: &str) {
        let Some(attending) = self.workers.write().remove(worker) else { return };
        self.changed();
        attending.out.try_send(Err(Status::aborted(why))).ok();
    }

    /// Puts a worker on the list for as long as its presence is kept. What it is told from now on is received.
    pub(super) fn enter(
        &self,
        worker: Worker,
        holds: Option<Holds>,
        welcome: Welcome,
    ) -> (Presence, mpsc::Receiver<Told>) {
        let (out, told) = mpsc::channel(MESSAGES_MAX);
        let (id, line) = (worker.id.clone(), out.downgrade());
        let attending = Member { worker, out };
        attending.tell(to_worker::Say::Welcome(welcome));
        self.workers.write().insert(id.clone(), attending);
        self.changed();
        let presence = Presence { membership: self.clone(), id: id.clone(), line };
        self.news(News::Came(id, holds));
        (presence, told)
    }

    fn handle(&self, id: &str, message: FromWorker) {
        match message.say {
            Some(from_worker::Say::Draining(_)) => {
                if let Some(attending) = self.workers.write().get_mut(id) {
                    attending.worker.draining = true;
                }
                self.changed();
                self.news(News::Drains(id.to_owned()));
            }
            Some(from_worker::Say::Sealed(sealed)) => {
                self.news(News::Sealed(id.to_owned(), sealed));
            }
            Some(from_worker::Say::Busy(busy)) => {
                if let Some(attending) = self.workers.write().get_mut(id) {
                    attending.worker.busy_milli = busy.milli;
                }
            }
            Some(from_worker::Say::Full(_)) => self.news(News::Full(id.to_owned())),
            Some(from_worker::Say::Absent(task)) => {
                self.news(News::Absent(id.to_owned(), task));
            }
            Some(from_worker::Say::Hello(_)) | None => {}
        }
    }

    /// The line of a worker has ended. It may have another one by now.
    fn leave(&self, id: &str, line: &Line) {
        {
            let mut workers = self.workers.write();
            let is_its_line = |attending: &Member| {
                line.upgrade().is_some_and(|line| line.same_channel(&attending.out))
            };
            if !workers.get(id).is_some_and(is_its_line) {
                return;
            }
            workers.remove(id);
        }
        self.changed();
        self.news(News::Lost(id.to_owned()));
    }

    fn news(&self, news: News) {
        let listener = self.listener.read().clone();
        if let Some(listener) = listener {
            listener(news);
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("workers", &self.workers()).finish_non_exhaustive()
    }
}

/// What a worker is told, or why it is told nothing more.
type Told = Result<ToWorker, Status>;

/// What is told a worker, as long as anybody can.
type Line = mpsc::WeakSender<Told>;

/// Takes a worker off the list when its line ends, however it ends.
pub(super) struct Presence {
    membership: Membership,
    id: String,
    line: Line,
}

impl Presence {
    /// Hears what the worker says until its line ends.
    pub(super) async fn listen(self, mut messages: Streaming<FromWorker>) {
        while let Ok(Some(message)) = messages.message().await {
            self.membership.handle(&self.id, message);
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.membership.leave(&self.id, &self.line);
    }
}
