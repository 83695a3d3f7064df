//! The place as the log sees it, so that tests can stop the machine at any moment.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use tempfile::{NamedTempFile, PersistError};

use super::frame::HEAD_BYTES;

/// Of a file that is being made.
const UNFINISHED: &str = ".unfinished";

/// Files, some of which grow at their ends.
pub(super) trait Disk: Send {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// All bytes of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// The first bytes of a file: as many as a head has, or more.
    fn read_head(&self, name: &str) -> io::Result<Vec<u8>> {
        self.read(name)
    }
    /// Writes a file, in place of one that may have its name: it is there as a whole or not at all, and survives a
    /// loss of power.
    fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Writes at the end of a file, which is made if it is not there.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Waits until the bytes of a file survive a loss of power.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Writes a file that is not there yet, as a whole or not at all; says whether that is so. It survives a loss of
    /// power.
    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool>;
    /// The same. As long as this value lives, others may be able to see that somebody has it.
    fn claim(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool>;
    /// Whether a file is there by a call of [`Self::claim`] whose answer was lost, and is had here.
    fn is_claimed(&self, _name: &str, _bytes: &[u8]) -> io::Result<bool> {
        Ok(false)
    }
    /// Writes the file that was claimed here anew: as many bytes as it has.
    fn renew(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Whether nobody can have a file any more that was claimed. If that cannot be known, it is not so.
    fn is_let_go(&self, name: &str) -> io::Result<bool>;
    /// After how many calls of `append` a file is to be copied, whatever its size.
    fn appends_max(&self) -> u64 {
        u64::MAX
    }
}

/// A folder of the operating system's.
#[derive(Debug)]
pub(super) struct RealDisk {
    folder: PathBuf,
    open: HashMap<String, File>,
    /// The file that was claimed here, which is locked.
    claimed: Option<File>,
}

impl RealDisk {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, open: HashMap::new(), claimed: None }
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        if !self.open.contains_key(name) {
            let mut options = OpenOptions::new();
            let options = options.append(true).create(true).mode(0o600);
            let file = options.open(self.folder.join(name))?;
            self.open.insert(name.to_owned(), file);
        }
        self.open.get_mut(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Writes a file that is not there yet, with something to be done before anybody can see it. Nothing if it is there.
    fn write_new(
        &self,
        name: &str,
        bytes: &[u8],
        before: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<Option<File>> {
        let mut file = NamedTempFile::new_in(&self.folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        before(file.as_file())?;
        match file.persist_noclobber(self.folder.join(name)) {
            Ok(file) => {
                self.sync_names()?;
                Ok(Some(file))
            }
            Err(PersistError { error, .. }) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(None)
            }
            Err(PersistError { error, .. }) => Err(error),
        }
    }

    /// Lets the names in the folder survive a loss of power.
    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(name))
    }

    fn read_head(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut head = vec![];
        File::open(self.folder.join(name))?.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        Ok(head)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.folder.join(format!("{name}{UNFINISHED}"));
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        self.open.remove(name);
        fs::rename(unfinished, self.folder.join(name))?;
        self.sync_names()
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name);
        let removed = fs::remove_file(self.folder.join(name));
        self.sync_names()?;
        removed
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        Ok(self.write_new(name, bytes, |_| Ok(()))?.is_some())
    }

    fn claim(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        let lock = |file: &File| match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                Err(error)
            }
            Err(error) => {
                tracing::warn!(
                    "{} keeps no locks ({error}): should this process end unexpectedly, others notice that only \
                     when it has been silent for long enough",
                    self.folder.display()
                );
                Ok(())
            }
        };
        // If that fails nobody has it: its lock goes with the file.
        let Some(file) = self.write_new(name, bytes, lock)? else { return Ok(false) };
        self.claimed = Some(file);
        Ok(true)
    }

    fn renew(&mut self, _: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.claimed.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.write_all_at(bytes, 0)?;
        // Other machines see it now, if there are any.
        file.sync_data()
    }

    fn is_let_go(&self, name: &str) -> io::Result<bool> {
        let file = match File::options().read(true).write(true).open(self.folder.join(name)) {
            // Its place is taken.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(false)
            }
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
