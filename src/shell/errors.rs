//! Errors on standard error.

use std::io;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
pub(crate) use forebay::errors::readable;

/// `error: …` on stderr.
pub(crate) fn print(error: &DataFusionError) {
    eprintln!("error: {}", readable(error));
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
