//! What else outlives a server: documents, each of which is there as a whole or not at all.

use std::fmt;
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::disk::Disk;
use super::place::Place;

/// Documents, by their names. All calls wait for the disk: they are for threads on which nobody else waits.
pub struct Documents {
    place: Place,
    disk: Mutex<Box<dyn Disk>>,
}

impl Documents {
    /// Those in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn in_folder(folder: impl Into<PathBuf>) -> io::Result<Self> {
        Self::open(Place::Folder(folder.into()))
    }

    pub(super) fn open(place: Place) -> io::Result<Self> {
        place.make()?;
        let disk = Mutex::new(place.disk());
        Ok(Self { place, disk })
    }

    /// Their names, and those of whatever else is there.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn names(&self) -> io::Result<Vec<String>> {
        self.disk.lock().list()
    }

    /// The bytes of a document, if there is one.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match self.disk.lock().read(name) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a document, in place of one that may be there. It survives a loss of power afterwards.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.disk.lock().put(name, bytes)
    }

    /// Removes a document, if it is there. No loss of power brings it back afterwards.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match self.disk.lock().remove(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Where a document is, for people.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }
}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("place", &self.place).finish_non_exhaustive()
    }
}
