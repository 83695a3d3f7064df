//! Where a state is.

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;

use super::disk::{Disk, RealDisk};
use super::error::JournalError;
use super::objects::{ObjectDisk, Objects};

/// How often a process looks whether it can have the state: in a folder, and in a store.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Where a state is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Folder(PathBuf),
    Store(Objects),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{}", path.display()),
            Self::Store(objects) => write!(f, "{objects}"),
        }
    }
}

impl Place {
    /// The files of this place.
    pub(super) fn disk(&self) -> Box<dyn Disk> {
        match self {
            Self::Folder(path) => Box::new(RealDisk::new(path.clone())),
            Self::Store(objects) => Box::new(ObjectDisk::new(objects.clone())),
        }
    }

    /// A part of it.
    pub(super) fn below(&self, name: &str) -> Self {
        match self {
            Self::Folder(path) => Self::Folder(path.join(name)),
            Self::Store(objects) => Self::Store(objects.below(name)),
        }
    }

    /// Makes what must be there before anything can be written.
    pub(super) fn make(&self) -> io::Result<()> {
        match self {
            // Plans and statements have values of their users.
            Self::Folder(path) => DirBuilder::new().recursive(true).mode(0o700).create(path),
            Self::Store(_) => Ok(()),
        }
    }

    /// Finds out whether one process can keep the others away here.
    pub(super) fn check(&self) -> io::Result<()> {
        match self {
            Self::Folder(_) => Ok(()),
            Self::Store(objects) => objects.check(),
        }
    }

    pub(super) fn look_every(&self) -> Duration {
        match self {
            Self::Folder(_) => LOOK_EVERY,
            Self::Store(_) => ASK_EVERY,
        }
    }
}

/// Does what waits for the disk where nobody else waits for it.
pub(super) async fn blocking<T: Send + 'static>(
    place: &Place,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JournalError> {
    let done = SpawnedTask::spawn_blocking(work).join().await;
    done.map_err(|error| JournalError::of_io(place, "use", &io::Error::other(error)))
}
