//! Errors, as gRPC has them.

use arrow_flight::error::FlightError;
use datafusion::error::DataFusionError;
use tonic::Status;

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
        DataFusionError::External(source) if source.is::<Denied>() => {
            Status::permission_denied(text)
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
