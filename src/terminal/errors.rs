//! Errors on standard error.

use std::io;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
pub(crate) use forebay::errors::readable;

use super::escape;

/// `error: …` on stderr.
pub(crate) fn print(error: &DataFusionError) {
    print_at("", error);
}

/// `error: place: …`. A message may quote values, which may hold anything.
pub(crate) fn print_at(place: &str, error: &DataFusionError) {
    eprintln!("error: {}", escape::message(&format!("{place}{}", readable(error))));
}

/// Whether whoever read our output has gone.
pub(crate) fn is_closed_pipe(error: &DataFusionError) -> bool {
    let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match error {
        DataFusionError::IoError(error) => is_closed(error),
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::IoError(_, error) => is_closed(error),
            _ => false,
        },
        _ => false,
    }
}
