//! Having the state: a thread shows that this process lives, and finds out whether another one has come in its
//! place.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::claim::{self, Claim};
use super::disk::Disk;
use super::error::JournalError;
use super::identity::StateId;
use super::log::COPIED_FROM_BYTES;
use super::names;
use super::place::Place;

/// The state is this process', until another one takes it over. Clones share; with the last one it is let go.
#[derive(Clone)]
pub struct Hold {
    held: Arc<Held>,
    copied_from_bytes: u64,
}

/// What those have in common who hold it; the thread has only what is below it.
struct Held {
    place: Arc<Place>,
    id: StateId,
    term: u64,
    was_silent: bool,
    /// For how long what was found out last is relied on. Nothing is for ever.
    fresh_for: Option<Duration>,
    shared: Arc<Shared>,
}

struct Shared {
    asked: Mutex<Asked>,
    /// The thread has something to do.
    called: Condvar,
    known: watch::Sender<Known>,
}

#[derive(Default)]
struct Asked {
    /// How often somebody has wanted to know.
    times: u64,
    is_closed: bool,
}

/// A moment, by two clocks: one stands still while a machine sleeps, and the other one may be set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) clock: Instant,
    pub(super) calendar: SystemTime,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { clock: Instant::now(), calendar: SystemTime::now() }
    }

    /// Whether it was less than so long ago by both.
    fn is_within(self, limit: Duration) -> bool {
        self.clock.elapsed() < limit && self.calendar.elapsed().is_ok_and(|passed| passed < limit)
    }
}

/// What a process has claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claimed {
    pub(super) id: StateId,
    pub(super) term: u64,
    /// Before that it was looked.
    pub(super) at: Moment,
    /// Whether from one who was silent.
    pub(super) was_silent: bool,
}

#[derive(Clone)]
struct Known {
    /// The state was this process' then, and others have seen it live.
    at: Moment,
    /// How many of those who wanted to know it have been answered.
    answered: u64,
    lost: Option<JournalError>,
    is_let_go: bool,
}

impl Hold {
    /// What was claimed on this disk.
    pub(super) fn start(
        place: Arc<Place>,
        disk: Box<dyn Disk>,
        claim: Claim,
        claimed: Claimed,
    ) -> Result<Self, JournalError> {
        let Claimed { id, term, at, was_silent } = claimed;
        let takeover_after = claim.takeover_after_ms.map(Duration::from_millis);
        let (known, _) = watch::channel(Known { at, answered: 0, lost: None, is_let_go: false });
        let shared = Arc::new(Shared { asked: Mutex::default(), called: Condvar::new(), known });
        let every = claim.every();
        let text = place.to_string();
        let (its, gives_up_after) = (Arc::clone(&shared), takeover_after);
        let mut beats = Beats { disk, claim, term, place: text.clone(), every, gives_up_after };
        let run = move || {
            beats.beat(&its);
            let place = beats.place.clone();
            // With it the lock.
            drop(beats);
            its.known.send_modify(|known| {
                known.is_let_go = true;
                known.lost.get_or_insert(JournalError::LetGo { place });
            });
        };
        let thread = thread::Builder::new().name("state".to_owned()).spawn(run);
        thread.map_err(|error| JournalError::of_io(text, "use", &error))?;
        let fresh_for = takeover_after.map(|limit| limit / 2);
        let held = Arc::new(Held { place, id, term, was_silent, fresh_for, shared });
        Ok(Self { held, copied_from_bytes: COPIED_FROM_BYTES })
    }

    /// The same, with a journal that is not copied while it has fewer bytes.
    pub(super) fn with_copied_from(self, bytes: u64) -> Self {
        Self { copied_from_bytes: bytes, ..self }
    }

    pub(super) fn copied_from_bytes(&self) -> u64 {
        self.copied_from_bytes
    }

    pub(super) fn place(&self) -> &Arc<Place> {
        &self.held.place
    }

    /// Which state it is: the same for all who have it in turn.
    pub fn id(&self) -> StateId {
        self.held.id
    }

    /// Greater than that of any who had the state before.
    pub fn term(&self) -> u64 {
        self.held.term
    }

    /// Whether the server before was there, and silent: others may not have noticed that it is gone.
    pub fn was_silent(&self) -> bool {
        self.held.was_silent
    }

    /// Whether nobody can have taken the state over by now, without looking: this process was heard of so shortly
    /// ago that nobody takes it for silent.
    pub fn is_fresh(&self) -> bool {
        let known = self.held.shared.known.borrow();
        known.lost.is_none()
            && self.held.fresh_for.is_none_or(|fresh_for| known.at.is_within(fresh_for))
    }

    /// Waits until it is known that nobody has taken the state over: what is said after that, is said by who has it.
    ///
    /// # Errors
    /// If somebody has.
    pub async fn confirm(&self) -> Result<(), JournalError> {
        if self.is_fresh() { Ok(()) } else { self.check().await }
    }

    /// Looks whether somebody has taken the state over.
    ///
    /// # Errors
    /// If so.
    pub async fn check(&self) -> Result<(), JournalError> {
        let shared = &self.held.shared;
        let asked = {
            let mut asked = shared.asked.lock();
            asked.times += 1;
            shared.called.notify_one();
            asked.times
        };
        let mut known = shared.known.subscribe();
        let is_done = |known: &Known| known.lost.is_some() || known.answered >= asked;
        // The sender is held here.
        match known.wait_for(is_done).await.map(|known| known.lost.clone()) {
            Ok(Some(lost)) => Err(lost),
            _ => Ok(()),
        }
    }

    /// Waits until somebody has taken the state over, or nobody can see any more that this process lives.
    pub async fn lost(&self) -> JournalError {
        let mut known = self.held.shared.known.subscribe();
        let lost = known.wait_for(|known| known.lost.is_some()).await;
        match lost.ok().and_then(|known| known.lost.clone()) {
            Some(lost) => lost,
            // The sender is held here: this does not happen.
            None => std::future::pending().await,
        }
    }

    /// Lets the state go, whoever else still has a clone of this, and waits until others can see that.
    pub async fn let_go(self) {
        self.held.shared.close();
        let mut known = self.held.shared.known.subscribe();
        known.wait_for(|known| known.is_let_go).await.ok();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("term", &self.held.term).finish_non_exhaustive()
    }
}

impl Shared {
    fn close(&self) {
        self.asked.lock().is_closed = true;
        self.called.notify_one();
    }

    /// Waits for so long, or until somebody wants to know. How many have been by then; nothing at the end.
    fn wait(&self, every: Duration, answered: u64) -> Option<u64> {
        let mut asked = self.asked.lock();
        let is_idle = |asked: &mut Asked| !asked.is_closed && asked.times <= answered;
        self.called.wait_while_for(&mut asked, is_idle, every);
        (!asked.is_closed).then_some(asked.times)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// What the thread has.
struct Beats {
    disk: Box<dyn Disk>,
    claim: Claim,
    term: u64,
    place: String,
    every: Duration,
    /// For how long it may fail to show that this process lives.
    gives_up_after: Option<Duration>,
}

impl Beats {
    /// Shows that this process lives, until it is closed or has lost the state.
    fn beat(&mut self, shared: &Shared) {
        let (mut seen, mut shown) = (0, Instant::now());
        while let Some(asked) = shared.wait(self.every, seen) {
            let began = Moment::now();
            let lost = match self.show() {
                Ok(None) => {
                    shown = began.clock;
                    shared.known.send_modify(|known| {
                        known.at = began;
                        known.answered = asked;
                    });
                    None
                }
                Ok(lost) => lost,
                Err(error) => {
                    // Whoever asked is answered the next time.
                    tracing::warn!(
                        "it cannot be seen in {} that this server lives: {error}; it is tried again",
                        self.place
                    );
                    let is_hopeless =
                        self.gives_up_after.is_some_and(|limit| shown.elapsed() >= limit);
                    is_hopeless.then(|| JournalError::of_io(&self.place, "use", &error))
                }
            };
            if lost.is_some() {
                shared.known.send_modify(|known| known.lost = lost);
                return;
            }
            seen = asked;
        }
        let claim = Claim { is_over: true, ..self.claim.clone() };
        self.disk.renew(&names::claim(self.term), &claim.bytes()).ok();
    }

    /// Why this process has no say any more, if it has none; otherwise it has shown that it lives.
    fn show(&mut self) -> io::Result<Option<JournalError>> {
        let names = self.disk.list()?;
        let lost = claim::superseded(self.disk.as_ref(), &names, &self.place, self.term);
        if lost.is_none() {
            self.claim.beats += 1;
            self.disk.renew(&names::claim(self.term), &self.claim.bytes())?;
        }
        Ok(lost)
    }
}
