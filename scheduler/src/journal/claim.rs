//! Claims: who has the state, as others see it.
//!
//! `<term>.term` is made by the process that has this term, if nobody has made it before, and written anew as
//! long as that process lives. The highest one counts. Whoever has it has looked for a claim of a later term
//! *after* it wrote something, before it says that it is written; and whoever claims a later term reads what is
//! there after that. So of what was said to be written the later one knows.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::error::JournalError;
use super::names;

/// All claims have so many bytes, so that one is written over the other at once.
const BYTES: usize = 1024;

/// Bytes of what people are told of a process.
const WHO_MAX: usize = 512;

/// How often a process shows that it lives: ten times in the silence after which it would be followed, but neither
/// more nor less often than so.
const BEATS: u32 = 10;
const BEAT_MIN: Duration = Duration::from_millis(100);
const BEAT_MAX: Duration = Duration::from_secs(3);

/// So many beats of another machine's server must be missing until it is believed that its lock is gone with it: some
/// file systems keep locks for each machine apart.
const MISSED: u32 = 4;

/// Tells the kernel that keeps locks for this process from those of other machines.
const KERNEL: &str = "/proc/sys/kernel/random/boot_id";

/// Somebody of whom nothing can be read.
pub(super) const SOMEBODY: &str = "another server";

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// For people.
    pub(super) who: String,
    /// Tells it from all others.
    pub(super) id: String,
    /// For how long it may be silent. Nothing is for ever.
    pub(super) takeover_after_ms: Option<u64>,
    /// Another number each time.
    pub(super) beats: u64,
    /// It needs the state no more.
    pub(super) is_over: bool,
    /// Where its lock is kept, as far as it knows.
    #[serde(default)]
    pub(super) kernel: Option<String>,
}

impl Claim {
    pub(super) fn new(who: &str, takeover_after: Option<Duration>) -> Self {
        let end = who.floor_char_boundary(WHO_MAX);
        let ms = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Self {
            who: who[..end].to_owned(),
            id: uuid::Uuid::new_v4().simple().to_string(),
            takeover_after_ms: takeover_after.map(ms),
            beats: 0,
            is_over: false,
            kernel: kernel(),
        }
    }

    /// How often it is written anew.
    pub(super) fn every(&self) -> Duration {
        let silence = self.takeover_after_ms.map(Duration::from_millis);
        silence.map_or(BEAT_MAX, |silence| silence / BEATS).clamp(BEAT_MIN, BEAT_MAX)
    }

    #[expect(clippy::expect_used, reason = "words and numbers")]
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a claim has a form in JSON");
        bytes.resize(BYTES.max(bytes.len()), b' ');
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

fn kernel() -> Option<String> {
    fs::read_to_string(KERNEL).ok().map(|id| id.trim().to_owned())
}

/// Why a process with this term has no say any more, if it has none.
pub(super) fn superseded(
    disk: &dyn Disk,
    names: &[String],
    place: &str,
    own: u64,
) -> Option<JournalError> {
    let newest = names::newest_claim(names).filter(|newest| *newest > own)?;
    // It may be on its way, or have been followed by another one.
    let claim = disk.read(&names::claim(newest)).ok().and_then(|bytes| Claim::read(&bytes));
    let who = claim.map_or_else(|| SOMEBODY.to_owned(), |claim| claim.who);
    Some(JournalError::Fenced { place: place.to_owned(), who, term: newest })
}

/// What a process finds that wants the state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody has it; this is the next term.
    Free(u64),
    /// This one has it, and lives as far as anybody knows.
    Taken(String),
    /// This one has it, and has said nothing for so long; this is the next term.
    Silent(String, Duration, u64),
}

/// Watches who has the state. Times are those of this process' own clock alone.
#[derive(Debug)]
pub(super) struct Watch {
    /// After which silence the one who has it is followed, if he has not asked for more. Nothing is never.
    takeover_after: Option<Duration>,
    kernel: Option<String>,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    term: u64,
    bytes: Vec<u8>,
    since: Instant,
    last: Instant,
}

impl Watch {
    pub(super) fn new(takeover_after: Option<Duration>) -> Self {
        Self { takeover_after, kernel: kernel(), seen: None }
    }

    pub(super) fn look(&mut self, disk: &dyn Disk, now: Instant) -> io::Result<Found> {
        let names = disk.list()?;
        let next = names::next_term(&names);
        let Some(term) = names::newest_claim(&names) else { return Ok(Found::Free(next)) };
        let name = names::claim(term);
        let is_let_go = disk.is_let_go(&name)?;
        let bytes = match disk.read(&name) {
            // Another one has just come in its place.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Found::Taken(SOMEBODY.to_owned()));
            }
            bytes => bytes?,
        };
        let claim = Claim::read(&bytes);
        let is_near = claim.as_ref().is_some_and(|claim| claim.kernel == self.kernel);
        if claim.as_ref().is_some_and(|claim| claim.is_over) || (is_let_go && is_near) {
            return Ok(Found::Free(next));
        }
        let every = claim.as_ref().map_or(BEAT_MAX, Claim::every);
        // What cannot be read is followed as one that says nothing.
        let (who, its) = match claim {
            Some(claim) => (claim.who, claim.takeover_after_ms.map(Duration::from_millis)),
            None => (SOMEBODY.to_owned(), Some(Duration::ZERO)),
        };
        let limit = self.takeover_after.zip(its).map(|(own, its)| own.max(its));
        let silent = self.silent_for(term, bytes, now, limit);
        Ok(match limit {
            _ if is_let_go && silent >= every * MISSED => Found::Free(next),
            Some(limit) if silent >= limit => Found::Silent(who, silent, next),
            _ => Found::Taken(who),
        })
    }

    /// For how long the same was seen. Only what was looked at time and again counts: if this process was stopped, or
    /// could not look, nobody knows who could not write.
    fn silent_for(
        &mut self,
        term: u64,
        bytes: Vec<u8>,
        now: Instant,
        limit: Option<Duration>,
    ) -> Duration {
        let before = self.seen.take().filter(|seen| {
            let gap = now.duration_since(seen.last);
            seen.term == term && seen.bytes == bytes && limit.is_none_or(|limit| gap < limit / 2)
        });
        let since = before.map_or(now, |seen| seen.since);
        self.seen = Some(Seen { term, bytes, since, last: now });
        now.duration_since(since)
    }
}
