//! Errors, as gRPC has them.

use std::error::Error;
use std::num::{ParseFloatError, ParseIntError};
use std::str::ParseBoolError;

use arrow::error::ArrowError;
use arrow_flight::error::FlightError;
use datafusion::error::DataFusionError;
use tonic::{Code, Status};

use super::rights::Denied;
use crate::errors::readable;

/// An error of DataFusion or Forebay, with the code by which clients tell what they may do.
pub(super) fn of(error: &DataFusionError) -> Status {
    let text = readable(error);
    match error.find_root() {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_) => Status::invalid_argument(text),
        DataFusionError::ArrowError(error, _) => Status::new(code_of(error), text),
        DataFusionError::External(source) if source.is::<Denied>() => {
            Status::permission_denied(text)
        }
        DataFusionError::External(source) if let Some(status) = source.downcast_ref::<Status>() => {
            Status::new(status.code(), status.message())
        }
        DataFusionError::NotImplemented(_) => Status::unimplemented(text),
        DataFusionError::ResourcesExhausted(_) => Status::resource_exhausted(text),
        DataFusionError::ObjectStore(source)
            if matches!(source.as_ref(), object_store::Error::NotFound { .. }) =>
        {
            Status::not_found(text)
        }
        _ => Status::internal(text),
    }
}

/// An error while a statement is planned or a definition made: nothing runs then that could fail
/// for another reason than what the client asked for. DataFusion's catalogs and functions say so as
/// errors of execution, its options as those of what parses numbers.
pub(super) fn of_definition(error: &DataFusionError) -> Status {
    let root = error.find_root();
    let is_no_value = |source: &(dyn Error + Send + Sync + 'static)| {
        source.is::<ParseIntError>()
            || source.is::<ParseFloatError>()
            || source.is::<ParseBoolError>()
    };
    match root {
        DataFusionError::Execution(_) | DataFusionError::ParquetError(_) => {
            Status::invalid_argument(readable(error))
        }
        DataFusionError::External(source) if is_no_value(source.as_ref()) => {
            Status::invalid_argument(readable(error))
        }
        _ => of(error),
    }
}

/// What is computed fails for its values; what is moved and held for the machine.
fn code_of(error: &ArrowError) -> Code {
    match error {
        ArrowError::CastError(_)
        | ArrowError::ParseError(_)
        | ArrowError::ComputeError(_)
        | ArrowError::InvalidArgumentError(_)
        | ArrowError::DivideByZero
        | ArrowError::ArithmeticOverflow(_)
        | ArrowError::OffsetOverflowError(_)
        | ArrowError::CsvError(_)
        | ArrowError::JsonError(_) => Code::InvalidArgument,
        ArrowError::NotYetImplemented(_) => Code::Unimplemented,
        _ => Code::Internal,
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
