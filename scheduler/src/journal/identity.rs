//! Which state it is: others that are unrelated have terms, too.
//!
//! A state has an id from its first claim on. It stands beside the journal, so that it stays the same whatever release
//! goes on with it, and is written once: of several who write it at a time, all have the one that is there.

use std::fmt;
use std::io;

use super::disk::Disk;
use super::error::JournalError;

/// The file.
const FILE: &str = "state.id";

/// Stores say that an object is there also where several write it at a time, of whom none may have come to.
const TRIES: usize = 10;

/// The id of a state: another one for each, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId(u128);

impl StateId {
    /// Of a new one.
    pub(crate) fn new() -> Self {
        Self(uuid::Uuid::new_v4().as_u128())
    }

    fn bytes(self) -> Vec<u8> {
        format!("{self}\n").into_bytes()
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end();
        let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| is_id).map(Self)
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The id of the state on this disk, if it has one.
fn find(disk: &dyn Disk, place: &str) -> Result<Option<StateId>, JournalError> {
    let bytes = match disk.read(FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.map_err(|error| JournalError::of_io(place, "use", &error))?,
    };
    match StateId::of_bytes(&bytes) {
        None => Err(JournalError::NoId { file: format!("{place}/{FILE}") }),
        id => Ok(id),
    }
}

/// The id of the state on this disk, which gets one if it has none.
pub(super) fn find_or_make(disk: &mut dyn Disk, place: &str) -> Result<StateId, JournalError> {
    let failed = |error| JournalError::of_io(place, "use", &error);
    for _ in 0..TRIES {
        if let Some(id) = find(disk, place)? {
            return Ok(id);
        }
        // It may be there by a try whose answer was lost, or another one's: what is there counts.
        disk.create(FILE, &StateId::new().bytes()).map_err(failed)?;
    }
    let problem = format!("{FILE} is said to be there when it is written, and not when it is read");
    Err(failed(io::Error::other(problem)))
}
