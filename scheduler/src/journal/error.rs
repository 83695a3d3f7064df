//! Why a journal cannot be read or written, in a sentence that says what to do.

use std::fmt::Display;
use std::io;

use datafusion::common::DataFusionError;
use forebay_engine::{ErrorKind, RemoteError};
use thiserror::Error;

/// Why a journal is of no use.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JournalError {
    /// A call of the operating system failed.
    #[error(
        "cannot {doing} the scheduler's journal in {place}: {problem}; what it has confirmed is there: \
         make it {remedy} and start it again"
    )]
    Io {
        /// The folder or file.
        place: String,
        /// What was tried.
        doing: &'static str,
        /// What the operating system says.
        problem: String,
        /// What it must become.
        remedy: &'static str,
        /// Who can do something about it.
        kind: ErrorKind,
    },
    /// A record is not what was written, and others follow it.
    #[error(
        "the scheduler's journal {file} is damaged at byte {at}: records follow one that is not as it was \
         written, so this is no write that was cut off; restore the file, or give another --state"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where the first damaged record begins.
        at: usize,
    },
    /// The file's beginning is not that of a journal.
    #[error(
        "{file} does not begin as a scheduler's journal does; restore it, or give another --state"
    )]
    NoJournal {
        /// The file.
        file: String,
    },
    /// The file that says which state it is says nothing.
    #[error(
        "{file} does not have the id of a state, which is 32 hexadecimal digits: restore it; without it the state gets \
         another id, with which workers and sessions of the server before do not go on"
    )]
    NoId {
        /// The file.
        file: String,
    },
    /// Another release wrote it.
    #[error(
        "the scheduler's journal {file} was written by forebay {found} (format {format}), and its jobs can be \
         continued by that only: this is {own} (format {own_format}); start that release until its jobs have \
         ended, or give another --state"
    )]
    OtherVersion {
        /// The file.
        file: String,
        /// The release that wrote it.
        found: String,
        /// Its format.
        format: u32,
        /// This release.
        own: String,
        /// Its format.
        own_format: u32,
    },
    /// Another server has taken the state over.
    #[error(
        "{who} has taken over the state in {place} (term {term}), as this server had not been heard of for too \
         long: this one has lost its say, and ends"
    )]
    Fenced {
        /// Where the state is.
        place: String,
        /// Who has it now.
        who: String,
        /// Since when.
        term: u64,
    },
    /// This server needs it no more.
    #[error("this server ends, and has let go the state in {place}")]
    LetGo {
        /// Where the state is.
        place: String,
    },
    /// A record is larger than any may be.
    #[error("a record of {bytes} bytes under {key} is too large for the scheduler's journal")]
    TooLarge {
        /// Its key.
        key: String,
        /// Its size.
        bytes: usize,
    },
}

impl JournalError {
    pub(super) fn of_io(place: impl Display, doing: &'static str, error: &io::Error) -> Self {
        let (remedy, kind) = match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => ("have room", ErrorKind::ResourceExhausted),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ("writable", ErrorKind::FailedPrecondition)
            }
            _ => ("usable", ErrorKind::Unavailable),
        };
        let (place, problem) = (place.to_string(), error.to_string());
        Self::Io { place, doing, problem, remedy, kind }
    }

    /// Who can do something about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { kind, .. } => *kind,
            Self::Damaged { .. }
            | Self::NoJournal { .. }
            | Self::NoId { .. }
            | Self::OtherVersion { .. } => ErrorKind::FailedPrecondition,
            Self::Fenced { .. } | Self::LetGo { .. } => ErrorKind::Unavailable,
            Self::TooLarge { .. } => ErrorKind::ResourceExhausted,
        }
    }
}

impl From<JournalError> for RemoteError {
    fn from(error: JournalError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<JournalError> for DataFusionError {
    fn from(error: JournalError) -> Self {
        RemoteError::from(error).into()
    }
}
