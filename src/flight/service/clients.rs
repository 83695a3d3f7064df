//! All clients: which one a call comes from, and how long it is remembered.
//!
//! A call belongs to a session by the cookie that the server gave with an answer, by the token that
//! a handshake gave, or else by its connection.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::DataFusionError;
use forebay_engine::write::{CommitFence, Fence};
use forebay_scheduler::Owner;
use forebay_scheduler::journal::Hold;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Status};
use uuid::Uuid;

use super::client::Client;
use crate::ForebayContext;
use crate::flight::access::login::{Caller, Directory, Login, address};
use crate::flight::access::rights::Roots;
use crate::flight::access::seal::Seal;
use crate::flight::access::users::{Identity, Role};
use crate::flight::jobs::registry::Jobs;
use crate::flight::jobs::saved::Saved;
use crate::flight::jobs::table::Shown;
use crate::flight::limits::Limits;
use crate::flight::limits::slots::Slots;
use crate::flight::opaque::Opaque;
use crate::flight::statements::session::Session;
use crate::flight::status;
use crate::flight::stream::{Definition, Stream, Streams};

/// The cookie that says which session a call belongs to. Clients that keep cookies send it back.
const COOKIE: &str = "forebay_session";

/// Nothing is committed by a server that another one has followed: that may have committed it.
#[derive(Debug)]
struct StillHeld(Hold);

impl Fence for StillHeld {
    fn check(&self) -> BoxFuture<'_, Result<(), DataFusionError>> {
        Box::pin(async { Ok(self.0.check().await?) })
    }
}

/// All clients, and what they share.
pub(in crate::flight) struct Clients {
    /// What every session starts as.
    template: Opaque<ForebayContext>,
    pub(super) login: Arc<Login>,
    roots: Roots,
    limits: Limits,
    pub(super) seal: Seal,
    pub(super) streams: Streams,
    pub(in crate::flight) slots: Arc<Slots>,
    pub(in crate::flight) jobs: Arc<Jobs>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// By their sessions.
    clients: HashMap<Uuid, Arc<Client>>,
    /// By connection, or by the token of a handshake.
    by_key: HashMap<String, Uuid>,
}

impl Clients {
    /// No clients yet. Jobs that can be resumed are kept in the `state`.
    ///
    /// # Errors
    /// If that cannot be used.
    pub(in crate::flight) async fn new(
        template: ForebayContext,
        directory: Option<Directory>,
        roots: Roots,
        limits: Limits,
        state: Option<&Hold>,
    ) -> datafusion::common::Result<Self> {
        let config = template.session().copied_config();
        let saved = state.map(|state| Saved::open(state, config.options())).transpose()?;
        let jobs = Jobs::new(limits, saved).await?;
        if let Some(state) = state {
            let fence = CommitFence(Arc::new(StillHeld(state.clone())));
            template.session().state_ref().write().config_mut().set_extension(Arc::new(fence));
        }
        template.show_detached(Shown::new(&jobs))?;
        Ok(Self {
            template: Opaque::new(template),
            login: Login::new(directory),
            roots,
            slots: Slots::new(limits),
            limits,
            seal: Seal::new(),
            streams: Streams::default(),
            jobs,
            open: Mutex::default(),
        })
    }

    /// The client that a call comes from; a new one if there is none yet.
    pub(super) async fn of(
        &self,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<Arc<Client>, Status> {
        let Caller { who, session_key } = self.login.identify(metadata, extensions).await?;
        let cookie = cookie(metadata);
        // The address of the other end is the connection.
        let key = session_key.or_else(|| address(extensions).map(|address| address.to_string()));
        if let Some(client) = self.find(cookie, key.as_deref(), &who) {
            client.session.touch();
            return Ok(client);
        }
        if cookie.is_some() && key.is_none() {
            return Err(Status::unauthenticated("this session has ended"));
        }
        self.open(who, key)
    }

    fn find(&self, cookie: Option<Uuid>, key: Option<&str>, who: &Identity) -> Option<Arc<Client>> {
        let open = self.open.lock();
        let by_cookie = cookie.and_then(|id| open.clients.get(&id));
        let by_key = || key.and_then(|key| open.clients.get(open.by_key.get(key)?));
        by_cookie.or_else(by_key).filter(|client| client.session.who == *who).cloned()
    }

    /// What a client starts with.
    fn new_session(&self, who: Identity) -> Result<Session, Status> {
        let context = self.template.new_session().map_err(|error| status::of(&error))?;
        let user = self.login.asks().then_some(who.name.as_str());
        if let Some(user) = user {
            let owner = Owner { name: user.to_owned(), sees_all: who.role == Role::Admin };
            context.session().state_ref().write().config_mut().set_extension(Arc::new(owner));
        }
        let slots = self.slots.share(user);
        let (roots, jobs) = (self.roots.clone(), Arc::clone(&self.jobs));
        let session = Session::new(who, context, roots, self.limits, slots, jobs);
        session.map_err(|error| status::of(&error))
    }

    fn open(&self, who: Identity, key: Option<String>) -> Result<Arc<Client>, Status> {
        let client = Arc::new(Client::new(self.new_session(who)?));
        let mut open = self.open.lock();
        if open.clients.len() >= self.limits.sessions_max {
            let Some(dispensable) = open.dispensable() else {
                return Err(Status::resource_exhausted(format!(
                    "this server has {} sessions, as many as it may, and all of them run queries",
                    self.limits.sessions_max
                )));
            };
            open.close(dispensable);
        }
        let session = &client.session;
        open.clients.insert(session.id, Arc::clone(&client));
        if let Some(key) = key {
            open.by_key.insert(key, session.id);
        }
        tracing::info!("session {} of '{}' begins", session.id, session.who.name);
        Ok(client)
    }

    /// The stream that a reader wants, which its first reader makes. It has a session of its own, so
    /// that it outlives that reader.
    pub(super) async fn stream(
        &self,
        who: &Identity,
        definition: &Definition,
    ) -> Result<Arc<Stream>, Status> {
        if let Some(stream) = self.streams.find(who, definition)? {
            return Ok(stream);
        }
        let session = self.new_session(who.clone())?;
        self.streams.add(Stream::new(session, definition).await?)
    }

    /// The client of this session, if that is who calls.
    pub(super) fn by_id(&self, id: Uuid, who: &Identity) -> Option<Arc<Client>> {
        self.open.lock().clients.get(&id).filter(|client| client.session.who == *who).cloned()
    }

    /// Ends a session, and its queries.
    pub(super) fn close(&self, id: Uuid) -> bool {
        self.open.lock().close(id)
    }

    /// Ends sessions that have not been used for long, or whose user is not one any more, and drops
    /// what nobody asks for.
    pub(in crate::flight) fn sweep(&self) {
        let clients: Vec<_> = self.open.lock().clients.values().cloned().collect();
        for client in clients {
            client.sweep();
            let session = &client.session;
            if session.is_idle(self.limits.session_timeout) || !self.login.knows(&session.who) {
                self.close(session.id);
            }
        }
        self.streams.sweep(self.limits.session_timeout, |who| self.login.knows(who));
        self.jobs.sweep(|who| self.login.knows(who));
        self.login.sweep();
    }
}

impl Open {
    /// The session that goes when there are too many: the one that was not used for longest, of
    /// whoever has most.
    fn dispensable(&self) -> Option<Uuid> {
        let mut of_users = HashMap::<_, usize>::new();
        let sessions = || self.clients.values().map(|client| &client.session);
        for session in sessions() {
            *of_users.entry(session.who.name.as_str()).or_default() += 1;
        }
        let idle = sessions().filter(|session| session.is_idle(Duration::ZERO));
        let sessions_of = |session: &Session| of_users.get(session.who.name.as_str()).copied();
        let least = idle.max_by_key(|session| (sessions_of(session), Reverse(session.last_used())));
        least.map(|session| session.id)
    }

    fn close(&mut self, id: Uuid) -> bool {
        self.by_key.retain(|_, session| *session != id);
        let Some(client) = self.clients.remove(&id) else { return false };
        client.session.closed.cancel();
        tracing::info!("session {id} of '{}' ends", client.session.who.name);
        true
    }
}

/// The header by which a client that keeps cookies stays in its session.
pub(super) fn set_cookie(session: &Session) -> String {
    format!("{COOKIE}={}; HttpOnly; SameSite=Strict", session.id)
}

fn cookie(metadata: &MetadataMap) -> Option<Uuid> {
    let headers = metadata.get_all("cookie").into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = headers.flat_map(|header| header.split(';'));
    pairs.find_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == COOKIE).then(|| Uuid::parse_str(value.trim_matches('"')).ok())?
    })
}
