//! All clients: which one a call comes from, and how long it is remembered.
//!
//! A call belongs to a session by the cookie that the server gave with an answer, by the token that
//! a handshake gave, or else by its connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use datafusion::common::runtime::SpawnedTask;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::metadata::MetadataMap;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::{Extensions, Status};
use uuid::Uuid;

use super::opaque::Opaque;
use super::rights::{self, Roots};
use super::seal::Seal;
use super::session::Session;
use super::stream::{Definition, Stream, Streams};
use super::users::{Identity, Role, Users};
use super::{Limits, status};
use crate::ForebayContext;

/// The cookie that says which session a call belongs to. Clients that keep cookies send it back.
const COOKIE: &str = "forebay_session";

/// Who is asked nothing.
const ANYONE: &str = "anonymous";

/// Of a user and a password. RFC 7617 wants padding, and Go's client of Flight SQL sends none.
const CREDENTIALS: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// For how long the token of a handshake is good.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// All clients.
pub(super) struct Sessions {
    /// What every session starts as.
    template: Opaque<ForebayContext>,
    users: Option<Users>,
    roots: Roots,
    limits: Limits,
    pub(super) seal: Seal,
    pub(super) streams: Streams,
    slots: Arc<Semaphore>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    sessions: HashMap<Uuid, Arc<Session>>,
    /// By connection, or by the token of a handshake.
    by_key: HashMap<String, Uuid>,
}

impl Sessions {
    pub(super) fn new(
        template: ForebayContext,
        users: Option<Users>,
        roots: Roots,
        limits: Limits,
    ) -> Self {
        Self {
            template: Opaque::new(template),
            users,
            roots,
            slots: Arc::new(Semaphore::new(limits.queries_max)),
            limits,
            seal: Seal::new(),
            streams: Streams::default(),
            open: Mutex::default(),
        }
    }

    /// The session that a call belongs to; a new one if there is none yet.
    pub(super) async fn of(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<Arc<Session>, Status> {
        let (who, token) = self.identify(metadata).await?;
        let cookie = cookie(metadata);
        let key = token.or_else(|| connection(extensions));
        if let Some(session) = self.find(cookie, key.as_deref(), &who) {
            session.touch();
            return Ok(session);
        }
        if cookie.is_some() && key.is_none() {
            return Err(Status::unauthenticated("this session has ended"));
        }
        self.open(who, key)
    }

    fn find(
        &self,
        cookie: Option<Uuid>,
        key: Option<&str>,
        who: &Identity,
    ) -> Option<Arc<Session>> {
        let open = self.open.lock();
        let by_cookie = cookie.and_then(|id| open.sessions.get(&id));
        let by_key = || key.and_then(|key| open.sessions.get(open.by_key.get(key)?));
        by_cookie.or_else(by_key).filter(|session| session.who == *who).cloned()
    }

    /// What a client starts with.
    fn new_session(&self, who: Identity) -> Result<Session, Status> {
        let context = self.template.new_session().map_err(|error| status::of(&error))?;
        let confined = rights::confine(context.session(), &who, &self.roots);
        confined.map_err(|error| status::of(&error))?;
        let slots = Arc::clone(&self.slots);
        Ok(Session::new(who, context, self.roots.clone(), self.limits, slots))
    }

    fn open(&self, who: Identity, key: Option<String>) -> Result<Arc<Session>, Status> {
        let session = Arc::new(self.new_session(who)?);
        let mut open = self.open.lock();
        if open.sessions.len() >= self.limits.sessions_max {
            let idle = open.sessions.values().filter(|session| session.is_idle(Duration::ZERO));
            let Some(oldest) = idle.min_by_key(|session| session.last_used()).map(|s| s.id) else {
                return Err(Status::resource_exhausted(format!(
                    "this server has {} sessions, as many as it may, and all of them run queries",
                    self.limits.sessions_max
                )));
            };
            open.close(oldest);
        }
        open.sessions.insert(session.id, Arc::clone(&session));
        if let Some(key) = key {
            open.by_key.insert(key, session.id);
        }
        tracing::info!("session {} of '{}' begins", session.id, session.who.name);
        Ok(session)
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

    /// The session of this id, for a client that is the same.
    pub(super) fn by_id(&self, id: Uuid, who: &Identity) -> Option<Arc<Session>> {
        self.open.lock().sessions.get(&id).filter(|session| session.who == *who).cloned()
    }

    /// Ends a session, and its queries.
    pub(super) fn close(&self, id: Uuid) -> bool {
        self.open.lock().close(id)
    }

    /// Ends sessions that have not been used for long, and drops what nobody asks for any more.
    pub(super) fn sweep(&self) {
        let sessions: Vec<_> = self.open.lock().sessions.values().cloned().collect();
        for session in sessions {
            session.sweep(self.limits.statement_timeout);
            if session.is_idle(self.limits.session_timeout) {
                self.close(session.id);
            }
        }
        self.streams.sweep(self.limits.session_timeout);
    }

    /// Who calls, and the key of the session if the token has one.
    async fn identify(
        self: &Arc<Self>,
        metadata: &MetadataMap,
    ) -> Result<(Identity, Option<String>), Status> {
        let header = metadata.get("authorization").and_then(|value| value.to_str().ok());
        let bearer = header.and_then(|header| scheme(header, "bearer"));
        if let Some(token) = bearer {
            if let Some(found) = self.by_session_token(token) {
                return found;
            }
            if let Some(who) = self.users.as_ref().and_then(|users| users.by_token(token)) {
                return Ok((who, None));
            }
        }
        let basic = header.and_then(|header| scheme(header, "basic"));
        match (&self.users, basic) {
            (None, _) => Ok((anyone(), None)),
            (Some(_), Some(basic)) => Ok((self.by_password(basic).await?, None)),
            (Some(_), None) if bearer.is_some() => {
                Err(Status::unauthenticated("the token is wrong, or good no more"))
            }
            (Some(_), None) => Err(Status::unauthenticated(
                "this server wants to know who you are: give a user and a password, or a token",
            )),
        }
    }

    async fn by_password(self: &Arc<Self>, basic: &str) -> Result<Identity, Status> {
        let wrong = || Status::unauthenticated("the user or the password is wrong");
        let decoded = CREDENTIALS.decode(basic).map_err(|_| wrong())?;
        let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
        let sessions = Arc::clone(self);
        // Hashing a password takes long, on purpose.
        let checked = SpawnedTask::spawn_blocking(move || {
            let (name, password) = decoded.split_once(':')?;
            sessions.users.as_ref()?.by_password(name, password)
        });
        checked.join().await.ok().flatten().ok_or_else(wrong)
    }

    /// A handshake: a token for a session of its own.
    pub(super) async fn greet(self: &Arc<Self>, metadata: &MetadataMap) -> Result<String, Status> {
        let (who, _) = self.identify(metadata).await?;
        let expires = now_s() + TOKEN_LIFETIME.as_secs();
        let text = format!("{expires}:{}:{}:{}", Uuid::new_v4(), who.role, who.name);
        Ok(BASE64_URL_SAFE_NO_PAD.encode(self.seal.sign(text.as_bytes())))
    }

    /// What a token of [`Self::greet`] says; nothing if it is none.
    #[allow(clippy::type_complexity, reason = "as identify")]
    fn by_session_token(&self, token: &str) -> Option<Result<(Identity, Option<String>), Status>> {
        let signed = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let text = String::from_utf8(self.seal.verify(&signed)?.to_vec()).ok()?;
        let mut parts = text.splitn(4, ':');
        let expires: u64 = parts.next()?.parse().ok()?;
        let key = parts.next()?.to_owned();
        let role: Role = parts.next()?.parse().ok()?;
        let name = parts.next()?.to_owned();
        if expires < now_s() {
            return Some(Err(Status::unauthenticated("the token has expired; log in again")));
        }
        Some(Ok((Identity { name, role }, Some(key))))
    }
}

impl Open {
    fn close(&mut self, id: Uuid) -> bool {
        self.by_key.retain(|_, session| *session != id);
        let Some(session) = self.sessions.remove(&id) else { return false };
        session.closed.cancel();
        tracing::info!("session {id} of '{}' ends", session.who.name);
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

/// The address of the other end.
fn connection(extensions: &Extensions) -> Option<String> {
    let plain = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    let tls = || extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?.get_ref().remote_addr();
    plain.or_else(tls).map(|address| address.to_string())
}

fn scheme<'a>(header: &'a str, scheme: &str) -> Option<&'a str> {
    let (found, rest) = header.split_once(' ')?;
    found.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

fn anyone() -> Identity {
    Identity { name: ANYONE.to_owned(), role: Role::Admin }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
