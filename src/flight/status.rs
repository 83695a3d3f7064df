//! Errors, as gRPC has them.

use std::error::Error;
use std::num::{ParseFloatError, ParseIntError};
use std::str::ParseBoolError;

use arrow_flight::error::FlightError;
use datafusion::error::DataFusionError;
use forebay_engine::ErrorKind;
use tonic::{Code, Status};

use super::access::rights::Denied;
use crate::errors::readable;

/// An error of DataFusion or Forebay, with the code by which clients tell what they may do.
pub(super) fn of(error: &DataFusionError) -> Status {
    let text = readable(error);
    match error.find_root() {
        DataFusionError::External(source) if source.is::<Denied>() => {
            Status::permission_denied(text)
        }
        DataFusionError::External(source) if let Some(status) = source.downcast_ref::<Status>() => {
            Status::new(status.code(), status.message())
        }
        _ => Status::new(code_of(ErrorKind::of(error)), text),
    }
}

fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::Unimplemented => Code::Unimplemented,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::ResourceExhausted => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Canceled => Code::Cancelled,
        ErrorKind::Internal => Code::Internal,
    }
}

/// The same the other way round, for what passes through DataFusion: [`of`] gives it back.
pub(super) fn as_error(status: Status) -> DataFusionError {
    DataFusionError::External(Box::new(status))
}

/// An error while a statement is planned or a definition made: nothing runs then that could fail
/// for another reason than what the client asked for. DataFusion's options say so as errors of what
/// parses numbers, and a file that is damaged is one that should not have been named.
pub(super) fn of_definition(error: &DataFusionError) -> Status {
    let root = error.find_root();
    let is_no_value = |source: &(dyn Error + Send + Sync + 'static)| {
        source.is::<ParseIntError>()
            || source.is::<ParseFloatError>()
            || source.is::<ParseBoolError>()
    };
    match root {
        DataFusionError::ParquetError(_) => Status::invalid_argument(readable(error)),
        DataFusionError::External(source) if is_no_value(source.as_ref()) => {
            Status::invalid_argument(readable(error))
        }
        _ => of(error),
    }
}

/// An error while rows are encoded.
pub(super) fn of_flight(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        FlightError::ExternalError(source) => match source.downcast::<DataFusionError>() {
            Ok(error) => of(&error),
            Err(source) => Status::internal(source.to_string()),
        },
        other => Status::internal(other.to_string()),
    }
}
