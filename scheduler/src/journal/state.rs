//! How a server comes to have its state.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::ErrorKind;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::Handle;

use super::claim::{Claim, Found, Watch};
use super::disk::Disk;
use super::error::JournalError;
use super::hold::{Claimed, Hold, Moment};
use super::objects::Objects;
use super::place::{Place, blocking};
use super::{VERSION, identity, log, names};

/// What a server must not forget, for one server at a time.
#[derive(Clone, Debug)]
pub struct State {
    place: Arc<Place>,
    /// After which silence another server is followed. Nothing is never.
    takeover_after: Option<Duration>,
    /// For people: the server that wants it.
    who: String,
    ports: Vec<SocketAddr>,
    copied_from_bytes: u64,
}

impl State {
    /// In a folder, which is made if it is not there.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self::at(Place::Folder(folder.into()))
    }

    /// In an object store, below this prefix; `url` is what people call that. It must be able to write an object only
    /// if that is not there. Who ends unexpectedly is followed by others after a silence alone.
    ///
    /// To be called, and taken, within a runtime that lasts as long as the state is held.
    pub fn in_store(store: Arc<dyn ObjectStore>, prefix: Path, url: &str) -> Self {
        Self::at(Place::Store(Objects::new(store, prefix, url, Handle::current())))
    }

    fn at(place: Place) -> Self {
        let who = format!("process {}", std::process::id());
        let (place, copied_from_bytes) = (Arc::new(place), log::COPIED_FROM_BYTES);
        Self { place, takeover_after: None, who, ports: vec![], copied_from_bytes }
    }

    /// Taken over from a server that is there and has said nothing for so long; nothing is never.
    #[must_use]
    pub fn with_takeover_after(mut self, silence: Option<Duration>) -> Self {
        self.takeover_after = silence;
        self
    }

    /// How others are told who has it.
    #[must_use]
    pub fn with_who(mut self, who: &str) -> Self {
        self.who = format!("{who} (process {})", std::process::id());
        self
    }

    /// Not taken over from a server that is there as long as one of these is taken: its successor could not be
    /// reached.
    #[must_use]
    pub fn with_ports(mut self, ports: Vec<SocketAddr>) -> Self {
        self.ports = ports;
        self
    }

    /// With a journal that is not copied without what is not needed while it has fewer bytes.
    #[must_use]
    pub fn with_copied_from(mut self, bytes: u64) -> Self {
        self.copied_from_bytes = bytes;
        self
    }

    /// Waits until no other server has it: that is gone, or has said nothing for too long.
    ///
    /// # Errors
    /// If it cannot be used, or this server could not go on with the journal that is there.
    pub async fn take(self) -> Result<Hold, JournalError> {
        let mut taker = Taker {
            disk: self.place.disk(),
            watch: Watch::new(self.takeover_after),
            claim: Claim::new(&self.who, self.takeover_after),
            tried: None,
            told: Told::Nothing,
            is_checked: false,
            has_looked: false,
            state: self,
        };
        let pause = taker.state.pause();
        loop {
            let place = Arc::clone(&taker.state.place);
            let look = move || {
                let taken = taker.try_take();
                (taker, taken)
            };
            let (again, taken) = blocking(&place, look).await?;
            taker = again;
            if let Some(claimed) = taken? {
                let Taker { disk, state, claim, .. } = taker;
                let (id, term) = (claimed.id, claimed.term);
                tracing::info!("this server has the state {id} in {} (term {term})", state.place);
                let hold = Hold::start(state.place, disk, claim, claimed)?;
                return Ok(hold.with_copied_from(state.copied_from_bytes));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Between looks: silence counts only for who looks often enough while it lasts.
    fn pause(&self) -> Duration {
        let every = self.place.look_every();
        self.takeover_after.map_or(every, |silence| every.min(silence / LOOKS))
    }
}

/// How often a server looks at least in the silence after which it follows another one.
const LOOKS: u32 = 10;

/// A server that wants the state.
struct Taker {
    state: State,
    disk: Box<dyn Disk>,
    watch: Watch,
    /// The same for each term: it tells which claims are this server's.
    claim: Claim,
    /// What was claimed last. It may have come to it.
    tried: Option<Claimed>,
    told: Told,
    is_checked: bool,
    /// Whether the place could be used once.
    has_looked: bool,
}

/// What people were told last.
#[derive(PartialEq, Eq)]
enum Told {
    Nothing,
    Waits,
    PortsAreTaken,
    CannotLook,
}

impl Taker {
    /// What cannot be used at first is said to whoever has given it; later others rely on it that this server waits.
    fn try_take(&mut self) -> Result<Option<Claimed>, JournalError> {
        match self.try_once() {
            Err(error) if self.has_looked && error.kind() == ErrorKind::Unavailable => {
                if std::mem::replace(&mut self.told, Told::CannotLook) != Told::CannotLook {
                    tracing::warn!("{error}; it is tried again");
                }
                Ok(None)
            }
            taken => taken,
        }
    }

    fn failed(&self, error: &io::Error) -> JournalError {
        JournalError::of_io(&self.state.place, "use", error)
    }

    fn try_once(&mut self) -> Result<Option<Claimed>, JournalError> {
        let at = Moment::now();
        let found = self.look(at.clock).map_err(|error| self.failed(&error))?;
        self.has_looked = true;
        let (term, was_silent) = match found {
            Found::Free(term) => (term, false),
            Found::Taken(who) => return self.taken(&who, at),
            Found::Silent(who, silence, term) if self.follows(&who, silence) => (term, true),
            Found::Silent(..) => return Ok(None),
        };
        let place = self.state.place.to_string();
        log::check_readable(self.disk.as_ref(), &place, VERSION)?;
        let id = identity::find_or_make(self.disk.as_mut(), &place)?;
        let claimed = Claimed { id, term, at, was_silent };
        self.tried = Some(claimed);
        let is_claimed = self.disk.claim(&names::claim(term), &self.claim.bytes());
        if !is_claimed.map_err(|error| self.failed(&error))? {
            return Ok(None);
        }
        // Others may have come and gone since this one looked.
        let names = self.disk.list().map_err(|error| self.failed(&error))?;
        let is_newest = names::newest_claim(&names) == Some(term);
        Ok(is_newest.then_some(claimed))
    }

    fn look(&mut self, at: Instant) -> io::Result<Found> {
        self.state.place.make()?;
        if !self.is_checked {
            self.state.place.check()?;
            self.is_checked = true;
        }
        self.watch.look(self.disk.as_ref(), at)
    }

    /// It may be this server that has it, whose own claim was there before it was told so.
    fn taken(&mut self, who: &str, at: Moment) -> Result<Option<Claimed>, JournalError> {
        if let Some(claimed) = self.tried {
            let term = claimed.term;
            let (name, bytes) = (names::claim(term), self.claim.bytes());
            let is_claimed = self.disk.is_claimed(&name, &bytes).and_then(|is_claimed| {
                Ok(is_claimed && names::newest_claim(&self.disk.list()?) == Some(term))
            });
            if is_claimed.map_err(|error| self.failed(&error))? {
                return Ok(Some(Claimed { at, ..claimed }));
            }
        }
        if !matches!(self.told, Told::Waits | Told::PortsAreTaken) {
            self.told = Told::Waits;
            tracing::info!("{who} has {}; this server waits until that is gone", self.state.place);
        }
        Ok(None)
    }

    /// Whether this server can follow one who has said nothing for so long.
    fn follows(&mut self, who: &str, silence: Duration) -> bool {
        let (place, silence) = (&self.state.place, silence.as_secs());
        let Some((port, error)) = self.taken_port() else {
            tracing::warn!(
                "{who} has {place}, and has said nothing for {silence} s: this server takes over"
            );
            return true;
        };
        if std::mem::replace(&mut self.told, Told::PortsAreTaken) != Told::PortsAreTaken {
            tracing::warn!(
                "{who} has {place}, and has said nothing for {silence} s; this server cannot follow it, as it could \
                 not listen on {port} ({error}): end that process, or give this one another address"
            );
        }
        false
    }

    fn taken_port(&self) -> Option<(SocketAddr, io::Error)> {
        let ports = self.state.ports.iter();
        ports
            .filter(|port| port.port() != 0)
            .find_map(|port| Some((*port, TcpListener::bind(port).err()?)))
    }
}
