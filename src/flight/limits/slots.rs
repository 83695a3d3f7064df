//! How many queries may run at a time, those of one user in all its sessions and those of all, and on which
//! threads.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use forebay_scheduler::{Gate, Inside};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::Limits;
use super::threads::Threads;

/// What all sessions share.
pub(in crate::flight) struct Slots {
    limits: Limits,
    of_all: Arc<Semaphore>,
    /// Of those who have a session.
    of_users: Mutex<HashMap<String, Weak<Own>>>,
    /// Closed when the server ends.
    running: Gate,
}

/// What all sessions of a user share.
struct Own {
    slots: Arc<Semaphore>,
    threads: Threads,
}

impl Own {
    fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self { slots: Arc::new(Semaphore::new(slots)), threads: Threads::next() })
    }
}

/// What one session may take.
pub(in crate::flight) struct Share {
    all: Arc<Slots>,
    own: Arc<Own>,
    /// The user, and how many slots it may have.
    user: Option<String>,
    most: usize,
    running: Gate,
}

/// The right to run one query.
pub(in crate::flight) struct Slot {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
    _running: [Inside; 2],
}

impl Slots {
    pub(in crate::flight) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            of_all: Arc::new(Semaphore::new(limits.queries_max)),
            of_users: Mutex::default(),
            running: Gate::default(),
            limits,
        })
    }

    /// What a session of this user may take. Where nobody is asked who he is, each session has a
    /// share of its own.
    pub(in crate::flight) fn share(self: &Arc<Self>, user: Option<&str>) -> Share {
        let most = self.limits.queries_per_client_max;
        let most = match user {
            // One is left for the others, however many log-ins one user has.
            Some(_) => most.min(self.limits.queries_max.saturating_sub(1)).max(1),
            None => most,
        };
        let own = match user {
            Some(user) => self.of_user(user, most),
            None => Own::new(most),
        };
        let (all, user) = (Arc::clone(self), user.map(str::to_owned));
        Share { all, own, user, most, running: Gate::default() }
    }

    fn of_user(&self, user: &str, most: usize) -> Arc<Own> {
        let mut users = self.of_users.lock();
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        users.retain(|_, own| own.strong_count() > 0);
        let own = Own::new(most);
        users.insert(user.to_owned(), Arc::downgrade(&own));
        own
    }

    /// Gives no more slots, and waits until all are given back.
    pub(in crate::flight) async fn drain(&self) {
        self.running.drain().await;
    }
}

impl Share {
    /// The right to run a query for as long as it is held.
    pub(in crate::flight) fn take(&self) -> Result<Slot, Status> {
        let own = Arc::clone(&self.own.slots).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(match &self.user {
                Some(user) => format!(
                    "'{user}' runs {} queries, as many as one user may; read or cancel one",
                    self.most
                ),
                None => format!(
                    "this client runs {} queries, as many as it may; read or cancel one",
                    self.most
                ),
            })
        })?;
        let of_all = Arc::clone(&self.all.of_all).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "this server runs {} queries, as many as it may; try again later",
                self.all.limits.queries_max
            ))
        })?;
        let running = [self.all.running.enter(), self.running.enter()];
        let [Some(of_server), Some(of_session)] = running else { return Err(ending()) };
        Ok(Slot { _own: own, _of_all: of_all, _running: [of_server, of_session] })
    }

    /// What another session of the same client may take: of the same, and on the same threads.
    pub(in crate::flight) fn for_another(&self) -> Self {
        Self {
            all: Arc::clone(&self.all),
            own: Arc::clone(&self.own),
            user: self.user.clone(),
            most: self.most,
            running: Gate::default(),
        }
    }

    /// Whose it is, where everyone is asked who he is.
    pub(in crate::flight) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Where its user's queries run.
    pub(in crate::flight) fn threads(&self) -> &Threads {
        &self.own.threads
    }

    /// How many streams its user may have, if one is known: as many as queries.
    pub(in crate::flight) fn streams_max(&self) -> Option<usize> {
        self.user.as_ref().map(|_| self.most)
    }

    /// Fails if nothing may begin any more.
    pub(in crate::flight) fn check_open(&self) -> Result<(), Status> {
        if self.all.running.is_closed() { Err(ending()) } else { Ok(()) }
    }

    /// Whether this session runs nothing.
    pub(in crate::flight) fn is_free(&self) -> bool {
        self.running.is_empty()
    }
}

/// What is said of whatever begins when the server ends.
pub(in crate::flight) fn ending() -> Status {
    Status::unavailable("the server is ending: it finishes what runs, and begins nothing more")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn slots(queries_max: usize, queries_per_client_max: usize) -> Arc<Slots> {
        Slots::new(Limits { queries_max, queries_per_client_max, ..Limits::default() })
    }

    #[test]
    fn all_sessions_of_a_user_share_its_slots_and_leave_one_to_others() {
        let slots = slots(4, 16);
        let (first, second) = (slots.share(Some("rita")), slots.share(Some("rita")));
        let taken = [first.take().unwrap(), second.take().unwrap(), first.take().unwrap()];
        let refused = second.take().err().unwrap();
        assert_eq!(refused.message().split(',').next(), Some("'rita' runs 3 queries"));
        let other = slots.share(Some("will")).take().unwrap();
        let refused = slots.share(Some("ada")).take().err().unwrap();
        assert!(refused.message().starts_with("this server runs 4 queries"), "{refused}");
        assert!(!first.is_free() && !second.is_free());
        drop((taken, other));
        assert!(first.is_free() && second.take().is_ok());
    }

    #[test]
    fn who_is_nobody_in_particular_has_slots_by_session() {
        let slots = slots(4, 2);
        let (first, second) = (slots.share(None), slots.share(None));
        let _taken = [first.take().unwrap(), first.take().unwrap()];
        assert_eq!(first.take().err().unwrap().code(), Code::ResourceExhausted);
        assert!(second.take().is_ok());
    }

    #[tokio::test]
    async fn a_server_that_ends_gives_no_slots() {
        let slots = slots(4, 2);
        let share = slots.share(None);
        slots.drain().await;
        assert_eq!(share.take().err().unwrap().code(), Code::Unavailable);
        assert_eq!(share.check_open().unwrap_err().code(), Code::Unavailable);
    }
}
