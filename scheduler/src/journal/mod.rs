//! What a scheduler must not forget, in a folder: an append-only log of records, each under a key.
//!
//! Somebody else's record ends with its key: what is known of a job is a list of records under the
//! job's key, and gone when the job is. What a record says is not known here, but whether it is [needed](NEEDED), and
//! whether it is a **step**: one of many, for which fewer records can stand that are made of them ([`Fold`]).
//!
//! # What is promised
//!
//! - Records come back in the order in which they were appended, those of a key that are no steps before its steps, without
//!   a gap: what is there when it is opened again is a beginning of what was appended, and contains all that was
//!   [flushed](Journal::flushed). In place of some may be what stands for them.
//! - A record that was being written when the machine stopped is cut off, with a warning. Anything else that is
//!   wrong with a file is an error, and nothing is changed.
//! - Who must start something before it is on the disk can bound how much of it gets lost
//!   ([`Journal::flushed_but`]).
//! - One process has the state at a time ([`State::take`], [`Hold`]). The others wait until it is gone, which a lock
//!   tells, or until it has not been heard of for too long. Whoever has the state later has a greater **term**; the
//!   one before, should it go on, finds that out before it says that anything is written, and can be asked
//!   ([`Hold::check`]) before something else is done that another one may do by now.
//!
//! # Files
//!
//! `<term>-<number>.journal` has all records, in groups, each of which was on the disk before the next one was
//! begun. When most of it is of keys that have ended, or steps, the rest is copied to a new file, which is there as a whole
//! or not at all, with what stands for the steps: so its size is at most twice what is needed, and 16 MiB, and what comes
//! while it is copied. What stands for them is made on a thread of its own, of what is in the file by then; who writes does
//! not wait for it. At the start all is copied as it is.
//! `<term>.term` is the claim of the process that has this term: locked, and written anew as long as it lives
//! (`claim` says why that is enough). `state.id` has the id of the state, which is the same for all terms ([`StateId`]).
//!
//! In an object store a journal is a folder, and each group of records an object in it; it is also copied when these
//! have become many. There are no locks: who has ended unexpectedly is silent. A claim is an object that is written
//! only if it is not there ([`State::in_store`]).
//!
//! What could not be written is not tried again: after a failed `fsync` nobody knows what is there. The journal
//! has failed then, and whoever has it open must end.

mod claim;
mod copy;
mod disk;
mod documents;
mod error;
mod frame;
mod hold;
mod identity;
mod log;
mod names;
mod objects;
mod place;
mod state;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use documents::Documents;
pub use error::JournalError;
pub use hold::Hold;
pub use identity::StateId;
pub use state::State;
pub use writer::Journal;

use log::Log;

/// The version of this process, which must read what it wrote.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Records under keys that begin so are needed until they end: no other version can go on without them. Others are of
/// use to the version that wrote them.
pub const NEEDED: &str = "job/";

/// What is known of a key, in the order in which it was appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRecords {
    /// What stays until the key ends.
    pub stays: Vec<Vec<u8>>,
    /// Its steps since that was made.
    pub steps: Vec<Vec<u8>>,
}

/// The records of each key that has not ended.
pub type Records = BTreeMap<String, KeyRecords>;

/// Makes of what stays of a key, and of its steps since, what stays from now on. None if all of it is to be left as it is.
pub type Fold = fn(key: &str, stays: &[&[u8]], steps: &[&[u8]]) -> Option<Vec<Vec<u8>>>;

impl Hold {
    /// Reads the journal that is there, and goes on behind it. To be done once.
    ///
    /// # Errors
    /// If what is there is broken or of another version, or cannot be read or written.
    pub async fn open(&self, fold: Fold) -> Result<(Journal, Records), JournalError> {
        let (place, term) = (Arc::clone(self.place()), self.term());
        let open = move || Log::open(place.disk(), place.to_string(), VERSION, term);
        let (log, records) = place::blocking(self.place(), open).await??;
        let log = log.copied_from(self.copied_from_bytes());
        Ok((Journal::start(log, self.clone(), fold)?, records))
    }

    /// Documents of this name, beside the journal.
    ///
    /// # Errors
    /// If they cannot be kept there.
    pub fn documents(&self, name: &str) -> std::io::Result<Documents> {
        Documents::open(self.place().below(name))
    }
}
