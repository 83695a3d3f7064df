//! How a server comes to have its state.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::Handle;

use super::claim::{Claim, Found, Watch};
use super::disk::Disk;
use super::error::JournalError;
use super::hold::Hold;
use super::names;
use super::objects::Objects;
use super::place::{Place, blocking};

/// What a server must not forget, for one server at a time.
#[derive(Clone, Debug)]
pub struct State {
    place: Arc<Place>,
    /// After which silence another server is followed. Nothing is never.
    takeover_after: Option<Duration>,
    /// For people: the server that wants it.
    who: String,
    ports: Vec<SocketAddr>,
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
        Self { place: Arc::new(place), takeover_after: None, who, ports: vec![] }
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

    /// Waits until no other server has it: that is gone, or has said nothing for too long.
    ///
    /// # Errors
    /// If it cannot be used.
    pub async fn take(self) -> Result<Hold, JournalError> {
        let mut taker = Taker {
            disk: self.place.disk(),
            watch: Watch::new(self.takeover_after),
            told: Told::Nothing,
            is_checked: false,
            state: self,
        };
        loop {
            let pause = taker.state.place.look_every();
            let place = Arc::clone(&taker.state.place);
            let look = move || {
                let taken = taker.try_take();
                (taker, taken)
            };
            let (again, taken) = blocking(&place, look).await?;
            taker = again;
            if let Some(Taken { claim, term, at, was_silent }) = taken? {
                let Taker { disk, state, .. } = taker;
                return Hold::start(state.place, disk, claim, term, at, was_silent);
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// A server that wants the state.
struct Taker {
    state: State,
    disk: Box<dyn Disk>,
    watch: Watch,
    told: Told,
    is_checked: bool,
}

/// What was claimed, before which it was looked, and whether from one who was silent.
struct Taken {
    claim: Claim,
    term: u64,
    at: Instant,
    was_silent: bool,
}

/// What people were told last.
#[derive(PartialEq, Eq)]
enum Told {
    Nothing,
    Waits,
    PortsAreTaken,
}

impl Taker {
    fn try_take(&mut self) -> Result<Option<Taken>, JournalError> {
        self.try_once().map_err(|error| JournalError::of_io(&self.state.place, "use", &error))
    }

    fn try_once(&mut self) -> io::Result<Option<Taken>> {
        self.state.place.make()?;
        if !std::mem::replace(&mut self.is_checked, true) {
            self.state.place.check()?;
        }
        let at = Instant::now();
        let place = &self.state.place;
        let (term, was_silent) = match self.watch.look(self.disk.as_ref(), at)? {
            Found::Free(term) => (term, false),
            Found::Taken(who) => {
                if std::mem::replace(&mut self.told, Told::Waits) == Told::Nothing {
                    tracing::info!("{who} has {place}; this server waits until that is gone");
                }
                return Ok(None);
            }
            Found::Silent(who, silence, term) => match self.taken_port() {
                Some((port, error)) => {
                    if std::mem::replace(&mut self.told, Told::PortsAreTaken) != Told::PortsAreTaken
                    {
                        tracing::warn!(
                            "{who} has {place}, and has said nothing for {} s; this server cannot follow it, as \
                             it could not listen on {port} ({error}): end that process, or give this one another \
                             address",
                            silence.as_secs()
                        );
                    }
                    return Ok(None);
                }
                None => {
                    tracing::warn!(
                        "{who} has {place}, and has said nothing for {} s: this server takes over",
                        silence.as_secs()
                    );
                    (term, true)
                }
            },
        };
        let claim = Claim::new(&self.state.who, self.state.takeover_after);
        if !self.disk.claim(&names::claim(term), &claim.bytes())? {
            return Ok(None);
        }
        // Others may have come and gone since this one looked.
        let is_newest = names::newest_claim(&self.disk.list()?) == Some(term);
        Ok(is_newest.then_some(Taken { claim, term, at, was_silent }))
    }

    fn taken_port(&self) -> Option<(SocketAddr, io::Error)> {
        let ports = self.state.ports.iter();
        ports
            .filter(|port| port.port() != 0)
            .find_map(|port| Some((*port, TcpListener::bind(port).err()?)))
    }
}
