//! The folder as the log sees it, so that tests can stop the machine at any moment.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// A folder of files that grow at their ends.
pub(super) trait Disk: Send {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// All bytes of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Writes at the end of a file, which is made if it is not there.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Waits until the bytes of a file survive a loss of power.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Gives a file another name, in place of one that may have it, and waits until that survives.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A folder of the operating system's.
#[derive(Debug)]
pub(super) struct RealDisk {
    folder: PathBuf,
    open: HashMap<String, File>,
}

impl RealDisk {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, open: HashMap::new() }
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
}

impl Disk for RealDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(name))
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))?;
        if let Some(file) = self.open.remove(from) {
            self.open.insert(to.to_owned(), file);
        }
        File::open(&self.folder)?.sync_all()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name);
        fs::remove_file(self.folder.join(name))
    }
}
