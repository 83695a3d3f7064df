//! Who can do something about an error, in one word that travels: from a task on a worker through
//! the scheduler to the client, who decides by it and parses no message.

use std::error::Error;
use std::fmt;
use std::io;

use arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use datafusion::parquet::errors::ParquetError;
use forebay_udf::{ErrorClass, ModelError, RuntimeError};

use crate::EngineError;
use crate::delta::DeltaError;

/// What kind of error it is, by who can do something about it. The names are those of gRPC's codes
/// where one says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The author of the statement: it is wrong, or computes with values for which its functions are
    /// not defined.
    InvalidArgument,
    /// The owner of the data or the model: rows that the model cannot take, a file that is damaged.
    /// The same statement works once they are mended.
    FailedPrecondition,
    /// Nobody, with this version.
    Unimplemented,
    /// Whoever names it: a file or an object is not there.
    NotFound,
    /// Whoever owns the machines, or asks for less: memory, disk or devices do not suffice.
    ResourceExhausted,
    /// Time: the same statement may succeed later.
    Unavailable,
    /// Whoever canceled it, by asking again.
    Canceled,
    /// The authors of Forebay, DataFusion or Ballista.
    Internal,
}

impl ErrorKind {
    const ALL: [Self; 8] = [
        Self::InvalidArgument,
        Self::FailedPrecondition,
        Self::Unimplemented,
        Self::NotFound,
        Self::ResourceExhausted,
        Self::Unavailable,
        Self::Canceled,
        Self::Internal,
    ];

    /// The kind of an error, however deep its cause lies.
    pub fn of(error: &DataFusionError) -> Self {
        chain(error).find_map(Self::of_cause).unwrap_or(Self::Internal)
    }

    /// As it travels between processes and as clients are told: a word in snake case that stays.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::NotFound => "not_found",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Unavailable => "unavailable",
            Self::Canceled => "canceled",
            Self::Internal => "internal",
        }
    }

    /// Of this name; internal, as nobody else can help, if there is none.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Self::Internal)
    }

    /// What one link of an error's chain says. Nothing of wrappers.
    fn of_cause(cause: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(remote) = cause.downcast_ref::<RemoteError>() {
            return Some(remote.kind);
        }
        if let Some(error) = cause.downcast_ref::<EngineError>() {
            return Some(Self::of_engine(error));
        }
        if let Some(error) = cause.downcast_ref::<DeltaError>() {
            return Some(Self::of_delta(error));
        }
        if let Some(error) = cause.downcast_ref::<ArrowError>() {
            return Self::of_arrow(error);
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return Some(Self::of_io(error.kind()));
        }
        if let Some(error) = cause.downcast_ref::<object_store::Error>() {
            return Some(Self::of_store(error));
        }
        cause.downcast_ref::<DataFusionError>().and_then(Self::of_datafusion)
    }

    fn of_datafusion(error: &DataFusionError) -> Option<Self> {
        Some(match error {
            // Functions say so of values, and of what they were asked for.
            DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::Configuration(_)
            | DataFusionError::Execution(_) => Self::InvalidArgument,
            DataFusionError::NotImplemented(_) => Self::Unimplemented,
            DataFusionError::ResourcesExhausted(_) => Self::ResourceExhausted,
            DataFusionError::ParquetError(error) if !is_external(error) => Self::FailedPrecondition,
            DataFusionError::ObjectStore(error) => Self::of_store(error),
            DataFusionError::Internal(_) => Self::Internal,
            _ => return None,
        })
    }

    fn of_engine(error: &EngineError) -> Self {
        match error {
            EngineError::Model(ModelError::Unreachable { .. }) | EngineError::NoProgress { .. } => {
                Self::Unavailable
            }
            EngineError::Model(_) | EngineError::Unplaceable { .. } => Self::InvalidArgument,
            EngineError::Placement { .. } => Self::ResourceExhausted,
            EngineError::Runtime(error) => Self::of_runtime(error),
            EngineError::Batch { source, .. } => Self::of_runtime(source),
            EngineError::TooManyErrors { .. } => Self::FailedPrecondition,
            EngineError::Arrow(_) | EngineError::Panic { .. } => Self::Internal,
        }
    }

    fn of_delta(error: &DeltaError) -> Self {
        match error {
            DeltaError::NotATable { .. } => Self::NotFound,
            DeltaError::Unsupported { .. } => Self::Unimplemented,
            DeltaError::Broken { .. } | DeltaError::Refused { .. } => Self::FailedPrecondition,
            DeltaError::Conflict { .. } | DeltaError::Unknown { .. } => Self::Unavailable,
        }
    }

    fn of_runtime(error: &RuntimeError) -> Self {
        match (error, error.class()) {
            (RuntimeError::OutOfMemory { .. } | RuntimeError::NoRoom { .. }, _) => {
                Self::ResourceExhausted
            }
            (_, ErrorClass::Model | ErrorClass::Data) => Self::FailedPrecondition,
            (_, ErrorClass::Passing | ErrorClass::Device) => Self::Unavailable,
        }
    }

    /// What is computed fails for its values; what is moved and held for the machine.
    fn of_arrow(error: &ArrowError) -> Option<Self> {
        Some(match error {
            ArrowError::CastError(_)
            | ArrowError::ParseError(_)
            | ArrowError::ComputeError(_)
            | ArrowError::InvalidArgumentError(_)
            | ArrowError::DivideByZero
            | ArrowError::ArithmeticOverflow(_)
            | ArrowError::OffsetOverflowError(_)
            | ArrowError::CsvError(_)
            | ArrowError::JsonError(_) => Self::InvalidArgument,
            ArrowError::NotYetImplemented(_) => Self::Unimplemented,
            ArrowError::ExternalError(_) | ArrowError::IoError(..) => return None,
            _ => Self::Internal,
        })
    }

    fn of_io(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::OutOfMemory => Self::ResourceExhausted,
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem => Self::FailedPrecondition,
            _ => Self::Unavailable,
        }
    }

    fn of_store(error: &object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. }
            | object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. } => Self::FailedPrecondition,
            object_store::Error::NotImplemented { .. }
            | object_store::Error::NotSupported { .. } => Self::Unimplemented,
            object_store::Error::InvalidPath { .. }
            | object_store::Error::UnknownConfigurationKey { .. } => Self::InvalidArgument,
            _ if is_full(error) => Self::ResourceExhausted,
            _ => Self::Unavailable,
        }
    }
}

/// Whether a disk is, as the system said: a store of local files has no error of its own for that.
fn is_full(error: &object_store::Error) -> bool {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let mut said = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    said.any(|error| ErrorKind::of_io(error.kind()) == ErrorKind::ResourceExhausted)
}

/// Not the file is at fault, but what it is read from.
fn is_external(error: &ParquetError) -> bool {
    matches!(error, ParquetError::External(_))
}

/// An error and its causes, through the wrappers of DataFusion and arrow.
pub fn chain(error: &DataFusionError) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |cause| {
        let cause = *cause;
        match cause.downcast_ref::<DataFusionError>() {
            Some(DataFusionError::Shared(inner)) => Some(inner.as_ref() as _),
            Some(DataFusionError::External(inner)) => Some(inner.as_ref() as _),
            Some(DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner)) => {
                Some(inner.as_ref() as _)
            }
            Some(DataFusionError::ArrowError(inner, _)) => Some(inner.as_ref() as _),
            Some(DataFusionError::IoError(inner)) => Some(inner as _),
            Some(DataFusionError::ParquetError(inner)) => match inner.as_ref() {
                ParquetError::External(inner) => Some(inner.as_ref() as _),
                _ => None,
            },
            Some(DataFusionError::Collection(errors)) => errors.first().map(|first| first as _),
            Some(_) => None,
            None => match cause.downcast_ref::<ArrowError>() {
                Some(ArrowError::ExternalError(inner)) => Some(inner.as_ref() as _),
                Some(ArrowError::IoError(_, inner)) => Some(inner as _),
                _ => cause.source(),
            },
        }
    })
}

/// An error of another process, with its kind. A Rust client finds it in [`DataFusionError::External`],
/// or asks [`ErrorKind::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteError {
    /// Who can do something about it.
    pub kind: ErrorKind,
    /// What was said there.
    pub message: String,
}

impl RemoteError {
    /// An error of this kind; `message` is shown to people as it is.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// As this process tells others of `error`.
    pub fn of(error: &DataFusionError) -> Self {
        Self::new(ErrorKind::of(error), error.strip_backtrace())
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for RemoteError {}

impl From<RemoteError> for DataFusionError {
    fn from(error: RemoteError) -> Self {
        Self::External(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn kinds_keep_their_names() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::named(kind.name()), kind);
        }
        assert_eq!(ErrorKind::named("of a later version"), ErrorKind::Internal);
    }

    #[test]
    fn a_kind_is_found_however_deep() {
        let deep = |error: DataFusionError| {
            let arrow = ArrowError::ExternalError(Box::new(error.context("reading")));
            DataFusionError::Shared(Arc::new(DataFusionError::ArrowError(Box::new(arrow), None)))
        };
        let remote = RemoteError::new(ErrorKind::Unavailable, "no worker");
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let store = |source: io::Error| {
            let source = Box::new(source);
            object_store::Error::Generic { store: "LocalFileSystem", source }.into()
        };
        let cases = [
            (remote.into(), ErrorKind::Unavailable),
            (full().into(), ErrorKind::ResourceExhausted),
            (store(full()), ErrorKind::ResourceExhausted),
            (store(io::ErrorKind::ConnectionReset.into()), ErrorKind::Unavailable),
            (ArrowError::DivideByZero.into(), ErrorKind::InvalidArgument),
            (DataFusionError::Internal("bug".to_owned()), ErrorKind::Internal),
            (DataFusionError::Plan("no column".to_owned()), ErrorKind::InvalidArgument),
        ];
        for (error, kind) in cases {
            assert_eq!(ErrorKind::of(&error), kind, "{error}");
            assert_eq!(ErrorKind::of(&deep(error)), kind);
        }
    }

    #[test]
    fn devices_that_lack_something_are_no_fault_of_the_statement() {
        let (model, problem, remedy) = (|| "m".to_owned(), || "p".to_owned(), || "r".to_owned());
        let lacks = EngineError::Placement { model: model(), problem: problem(), remedy: remedy() };
        let wrong =
            EngineError::Unplaceable { model: model(), problem: problem(), remedy: remedy() };
        assert_eq!(ErrorKind::of(&lacks.into()), ErrorKind::ResourceExhausted);
        assert_eq!(ErrorKind::of(&wrong.into()), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_model_that_fails_is_no_fault_of_the_server() {
        let program = RuntimeError::Program {
            model: "m".to_owned(),
            rows: 3,
            problem: "no such shape".to_owned(),
        };
        let error = EngineError::Batch {
            model: "m".to_owned(),
            device: "cpu".to_owned(),
            rows: 3,
            source: Box::new(program),
        };
        assert_eq!(ErrorKind::of(&error.into()), ErrorKind::FailedPrecondition);
    }
}
