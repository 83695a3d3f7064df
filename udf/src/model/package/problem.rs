//! What is wrong with a package, as errors that say what to do.

use std::io;
use std::path::Path;

use crate::error::ModelError;
use crate::model::hashes::short;
use crate::model::manifest::MANIFEST;

/// Far more than any description has; what is longer is none.
pub(super) const MANIFEST_BYTES_MAX: u64 = 16 << 20;

pub(super) fn too_long() -> String {
    format!("it has more than {MANIFEST_BYTES_MAX} bytes, the most that a description may have")
}

pub(super) fn io_problem(path: &Path, what: &str, error: &io::Error) -> ModelError {
    ModelError::Package {
        location: path.display().to_string(),
        problem: format!("{what}: {error}"),
        remedy: "check its permissions and its disk".to_owned(),
    }
}

pub(super) fn changed(location: &str, name: &str, expected: &str, found: &str) -> ModelError {
    ModelError::Package {
        location: location.to_owned(),
        problem: format!(
            "{name} has changed (SHA-256 is {}, expected {})",
            short(found),
            short(expected)
        ),
        remedy: if name == MANIFEST {
            "restore it, or run CREATE OR REPLACE MODEL to accept the new package"
        } else {
            "restore the file, or export the package again and run CREATE OR REPLACE MODEL"
        }
        .to_owned(),
    }
}

/// The same error under the location that the user knows.
pub(super) fn relocated(error: ModelError, location: &str) -> ModelError {
    match error {
        ModelError::Package { problem, remedy, .. } => {
            ModelError::Package { location: location.to_owned(), problem, remedy }
        }
        other => other,
    }
}
