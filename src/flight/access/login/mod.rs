//! Who calls: a user with a password, or a token.
//!
//! - `directory`: who may connect, as a file says at the moment
//! - `attempts`: who has guessed wrong, and must wait
//! - `remembered`: passwords that were right a moment ago
//!
//! Checking a password takes a core and 19 MiB for a while, on purpose, and anybody may ask for it:
//! few are checked at a time, and those who guess are not even heard.

mod attempts;
mod directory;
mod remembered;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use datafusion::common::runtime::SpawnedTask;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::metadata::MetadataMap;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tonic::{Extensions, Status};
use uuid::Uuid;

use super::seal::{Seal, Sealed, SessionToken};
use super::users::{Identity, Role, Users};
use attempts::{Attempt, Attempts};
pub(in crate::flight) use directory::Directory;
use remembered::Remembered;

/// Who is asked nothing.
const ANYONE: &str = "anonymous";

/// Of a user and a password. RFC 7617 wants padding, and Go's client of Flight SQL sends none.
const CREDENTIALS: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// For how long the token of a handshake is good.
const TOKEN_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Passwords that are checked at a time.
const CHECKS_MAX: usize = 2;

/// Whom a call comes from.
pub(in crate::flight) struct Caller {
    pub(in crate::flight) who: Identity,
    /// By which its session is found, if its token is one of a handshake.
    pub(in crate::flight) session_key: Option<String>,
}

impl From<Identity> for Caller {
    fn from(who: Identity) -> Self {
        Self { who, session_key: None }
    }
}

/// Finds out who calls, by what the call brings along.
pub(in crate::flight) struct Login {
    /// Without it, everyone may do everything.
    directory: Option<Directory>,
    seal: Seal,
    attempts: Arc<Attempts>,
    remembered: Remembered,
    checks: Arc<Semaphore>,
}

impl Login {
    pub(in crate::flight) fn new(directory: Option<Directory>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            seal: Seal::new(),
            attempts: Arc::default(),
            remembered: Remembered::default(),
            checks: Arc::new(Semaphore::new(CHECKS_MAX)),
        })
    }

    /// Whether callers are asked who they are.
    pub(in crate::flight) fn asks(&self) -> bool {
        self.directory.is_some()
    }

    /// Whether someone still is who he was: neither removed since, nor changed.
    pub(in crate::flight) fn knows(&self, who: &Identity) -> bool {
        self.directory.as_ref().is_none_or(|directory| directory.now().knows(who))
    }

    /// Forgets what is too old to matter.
    pub(in crate::flight) fn sweep(&self) {
        self.attempts.sweep();
        self.remembered.sweep();
    }

    pub(in crate::flight) async fn identify(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<Caller, Status> {
        let Some(directory) = &self.directory else { return Ok(anyone().into()) };
        let header = metadata.get("authorization").and_then(|value| value.to_str().ok());
        if let Some(token) = header.and_then(|header| scheme(header, "bearer")) {
            let users = directory.now();
            if let Some(caller) = self.by_session_token(&users, token)? {
                return Ok(caller);
            }
            let wrong = || Status::unauthenticated("the token is wrong, or good no more");
            return users.by_token(token).map(Caller::from).ok_or_else(wrong);
        }
        if let Some(basic) = header.and_then(|header| scheme(header, "basic")) {
            let from = address(extensions).map(|address| address.ip());
            let from = from.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            return Ok(self.by_password(directory.now(), basic, from).await?.into());
        }
        Err(Status::unauthenticated(
            "this server wants to know who you are: give a user and a password, or a token",
        ))
    }

    async fn by_password(
        self: &Arc<Self>,
        users: Arc<Users>,
        basic: &str,
        from: IpAddr,
    ) -> Result<Identity, Status> {
        let (name, password) = decoded(basic).ok_or_else(wrong)?;
        if let Some(who) = self.remembered.find(&users, &name, &password) {
            return Ok(who);
        }
        let attempt = self.attempts.begin(&name, from)?;
        let turn = Arc::clone(&self.checks).acquire_owned().await;
        let turn = turn.map_err(|_| Status::unavailable("the server is ending"))?;
        // While this one waited, others may have said the same, or guessed.
        if let Some(who) = self.remembered.find(&users, &name, &password) {
            return Ok(who);
        }
        attempt.check()?;
        let login = Arc::clone(self);
        // Whoever hangs up meanwhile has guessed all the same.
        let checked = SpawnedTask::spawn_blocking(move || {
            login.check(&users, &name, &password, attempt, turn)
        });
        checked.join().await.ok().flatten().ok_or_else(wrong)
    }

    fn check(
        &self,
        users: &Users,
        name: &str,
        password: &str,
        attempt: Attempt,
        _turn: OwnedSemaphorePermit,
    ) -> Option<Identity> {
        let found = users.by_password(name, password);
        attempt.ends(found.is_some());
        if found.is_some() {
            self.remembered.add(users, name, password);
        }
        found
    }

    /// A handshake: a token for a session of its own.
    pub(in crate::flight) async fn greet(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        extensions: &Extensions,
    ) -> Result<String, Status> {
        let who = self.identify(metadata, extensions).await?.who;
        let token = SessionToken {
            expires_s: now_s() + TOKEN_LIFETIME.as_secs(),
            session_key: Uuid::new_v4().to_string(),
            name: who.name,
            role: who.role.to_string(),
            mark: who.mark,
        };
        Ok(BASE64_URL_SAFE_NO_PAD.encode(self.seal.close(Sealed::Token(token))))
    }

    /// Who has a token of [`Self::greet`]; nobody if it is none.
    ///
    /// # Errors
    /// If it is one, and good no more.
    fn by_session_token(&self, users: &Users, token: &str) -> Result<Option<Caller>, Status> {
        let Some((expires, caller)) = self.read(token) else { return Ok(None) };
        if expires < now_s() {
            return Err(Status::unauthenticated("the token has expired; log in again"));
        }
        if !users.knows(&caller.who) {
            return Err(Status::unauthenticated(format!(
                "'{}' was removed or changed since this token was given; log in again",
                caller.who.name
            )));
        }
        Ok(Some(caller))
    }

    /// What a token of [`Self::greet`] says: until when it is good, and whose it is.
    fn read(&self, token: &str) -> Option<(u64, Caller)> {
        let signed = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let Sealed::Token(token) = self.seal.open(&signed)? else { return None };
        let who = Identity { name: token.name, role: token.role.parse().ok()?, mark: token.mark };
        let caller = Caller { who, session_key: Some(token.session_key) };
        Some((token.expires_s, caller))
    }
}

/// The address of the other end.
pub(in crate::flight) fn address(extensions: &Extensions) -> Option<SocketAddr> {
    let plain = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    let tls = || extensions.get::<TlsConnectInfo<TcpConnectInfo>>()?.get_ref().remote_addr();
    plain.or_else(tls)
}

fn wrong() -> Status {
    Status::unauthenticated("the user or the password is wrong")
}

fn decoded(basic: &str) -> Option<(String, String)> {
    let text = String::from_utf8(CREDENTIALS.decode(basic).ok()?).ok()?;
    let (name, password) = text.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn scheme<'a>(header: &'a str, scheme: &str) -> Option<&'a str> {
    let (found, rest) = header.split_once(' ')?;
    found.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

fn anyone() -> Identity {
    Identity { name: ANYONE.to_owned(), role: Role::Admin, mark: 0 }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
