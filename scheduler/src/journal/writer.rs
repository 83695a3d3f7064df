//! The thread that writes: what has gathered while it wrote is written together.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::Fold;
use super::copy::Copying;
use super::error::JournalError;
use super::frame::{Kind, Record};
use super::hold::Hold;
use super::log::Log;

/// How long a record may wait for others that nobody waits for either.
const GATHER_FOR: Duration = Duration::from_millis(20);

/// A journal that is open. Clones share; the last one that is dropped closes it.
#[derive(Clone)]
pub struct Journal(Arc<Open>);

/// What those who append have in common; the thread has the hold, too, and what is below.
struct Open {
    hold: Hold,
    shared: Arc<Shared>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// The thread has something to do.
    called: Condvar,
    written: watch::Sender<Written>,
}

#[derive(Default)]
struct Waiting {
    records: Vec<Record>,
    /// How many have been appended since it was opened, those that wait included.
    appended: u64,
    /// Somebody waits.
    is_urgent: bool,
    is_closed: bool,
    /// What a copy has, once that is known.
    copied: Option<Result<Vec<Record>, JournalError>>,
}

/// What the thread does next.
struct Next {
    records: Vec<Record>,
    /// How many have been appended with these.
    upto: u64,
    copied: Option<Result<Vec<Record>, JournalError>>,
}

#[derive(Clone, Default)]
struct Written {
    /// How many of those that were appended are on the disk.
    records: u64,
    failure: Option<JournalError>,
}

impl Journal {
    /// Writes to `log` for as long as it is held, and keeps the state until all of it is written.
    pub(super) fn start(log: Log, hold: Hold, fold: Fold) -> Result<Self, JournalError> {
        let (written, _) = watch::channel(Written::default());
        let (waiting, called) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { waiting, called, written });
        let (its, its_hold) = (Arc::clone(&shared), hold.clone());
        let run = move || {
            write(&its, log, fold);
            drop(its_hold);
        };
        let thread = thread::Builder::new().name("journal".to_owned()).spawn(run);
        thread.map_err(|error| JournalError::of_io(hold.place(), "write", &error))?;
        Ok(Self(Arc::new(Open { hold, shared })))
    }

    /// What keeps others away from it.
    pub fn hold(&self) -> &Hold {
        &self.0.hold
    }

    /// Appends a record. It is on the disk when [`Self::flushed`] says so, or a little later.
    pub fn append(&self, key: &str, data: Vec<u8>) {
        self.push(Record { key: key.to_owned(), kind: Kind::Stays, data });
    }

    /// Appends one of many records of a key, for which others can stand that are made of them.
    pub fn append_step(&self, key: &str, data: Vec<u8>) {
        self.push(Record { key: key.to_owned(), kind: Kind::Step, data });
    }

    /// Drops all records of a key.
    pub fn end(&self, key: &str) {
        self.push(Record { key: key.to_owned(), kind: Kind::End, data: vec![] });
    }

    fn push(&self, record: Record) {
        let shared = &self.0.shared;
        if shared.written.borrow().failure.is_some() {
            return;
        }
        let mut waiting = shared.waiting.lock();
        let is_first = waiting.records.is_empty();
        waiting.records.push(record);
        waiting.appended += 1;
        // While others gather, the thread need not wake up for each.
        if is_first {
            shared.called.notify_one();
        }
    }

    /// Waits until all that was appended before is on the disk, and the state is known to be this process' yet.
    ///
    /// # Errors
    /// If it could not be written: nothing will be any more.
    pub async fn flushed(&self) -> Result<(), JournalError> {
        self.flushed_but(0).await
    }

    /// The same of all but the last records, of which so many may be on their way to the disk: if there are no more,
    /// nobody waits for it.
    ///
    /// # Errors
    /// As [`Self::flushed`].
    pub async fn flushed_but(&self, last: u64) -> Result<(), JournalError> {
        let shared = &self.0.shared;
        let mut written = shared.written.subscribe();
        let needed = {
            let mut waiting = shared.waiting.lock();
            let needed = waiting.appended.saturating_sub(last);
            if written.borrow().records < needed {
                waiting.is_urgent = true;
                shared.called.notify_one();
            }
            needed
        };
        let is_done = |written: &Written| written.failure.is_some() || written.records >= needed;
        // The sender is held here.
        let written = written.wait_for(is_done).await.map(|found| found.clone());
        match written.unwrap_or_default().failure {
            Some(failure) => Err(failure),
            None => self.0.hold.confirm().await,
        }
    }

    /// Waits until something could not be written, or the state is lost.
    pub async fn failed(&self) -> JournalError {
        tokio::select! {
            failure = self.unwritten() => failure,
            lost = self.0.hold.lost() => lost,
        }
    }

    async fn unwritten(&self) -> JournalError {
        let mut written = self.0.shared.written.subscribe();
        let failed = written.wait_for(|written| written.failure.is_some()).await;
        match failed.ok().and_then(|written| written.failure.clone()) {
            Some(failure) => failure,
            // The sender is held here: this does not happen.
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("hold", &self.0.hold).finish_non_exhaustive()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.waiting.lock().is_closed = true;
        self.shared.called.notify_one();
    }
}

/// Writes until it is closed and nothing waits, or something fails.
fn write(shared: &Arc<Shared>, mut log: Log, fold: Fold) {
    while let Some(next) = next(shared) {
        if let Err(failure) = write_next(shared, &mut log, fold, next) {
            shared.written.send_modify(|written| written.failure = Some(failure));
            return;
        }
    }
}

fn write_next(
    shared: &Arc<Shared>,
    log: &mut Log,
    fold: Fold,
    next: Next,
) -> Result<(), JournalError> {
    if !next.records.is_empty() {
        log.commit(&next.records)?;
        shared.written.send_modify(|written| written.records = next.upto);
    }
    if let Some(copied) = next.copied {
        log.end_copy(&copied?)?;
    }
    match log.begin_copy(fold)? {
        Some(copying) => copy(shared, copying),
        None => Ok(()),
    }
}

/// Finds out what a copy has, while others are written.
fn copy(shared: &Arc<Shared>, copying: Copying) -> Result<(), JournalError> {
    let (its, file) = (Arc::clone(shared), copying.file.clone());
    let run = move || {
        let copied = copying.run();
        its.waiting.lock().copied = Some(copied);
        its.called.notify_one();
    };
    let thread = thread::Builder::new().name("journal copy".to_owned()).spawn(run);
    thread.map(drop).map_err(|error| JournalError::of_io(file, "copy", &error))
}

/// What is to be done, once there is something. Nothing at the end.
fn next(shared: &Shared) -> Option<Next> {
    let mut waiting = shared.waiting.lock();
    while waiting.records.is_empty() && waiting.copied.is_none() {
        // Whoever waits for what is written already has been told.
        waiting.is_urgent = false;
        if waiting.is_closed {
            return None;
        }
        shared.called.wait(&mut waiting);
    }
    if !waiting.is_urgent && !waiting.is_closed && waiting.copied.is_none() {
        let until = |waiting: &mut Waiting| !waiting.is_urgent && !waiting.is_closed;
        shared.called.wait_while_for(&mut waiting, until, GATHER_FOR);
    }
    waiting.is_urgent = false;
    let (records, upto) = (std::mem::take(&mut waiting.records), waiting.appended);
    Some(Next { records, upto, copied: waiting.copied.take() })
}
