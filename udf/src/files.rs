//! Files that others see whole or not at all: each is written under a name of its own, reaches the disk, and
//! then gets its name.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

/// Unfinished files begin with this, and so with a dot, which hides them.
const UNFINISHED: &str = ".new-";

/// Writes a file in place of the one that is there, if there is one; what was there stays if this fails. Only
/// its owner can read it. The folder must be there.
///
/// # Errors
/// Those of the file system.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    unfinished(path, bytes)?.persist(path)?;
    sync_folder(path)
}

/// Writes a file unless one is there, also if another process makes one at the same moment; tells whether it did.
/// Otherwise as [`replace`].
///
/// # Errors
/// Those of the file system.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match unfinished(path, bytes)?.persist_noclobber(path) {
        Ok(_) => sync_folder(path).map(|()| true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}

fn unfinished(path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder(path))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// The new name outlives a crash only when the folder is on disk, too.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder(path))?.sync_all()
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_there_whole_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(create(&path, b"first").unwrap());
        assert!(!create(&path, b"second").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"first");
        replace(&path, b"third").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no unfinished file is left");
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        replace(&folder, b"").unwrap_err();
        replace(&dir.path().join("not/there"), b"").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
