//! SHA-256 of files, computed once per process while a file looks unchanged.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Enough of a hash to tell two apart.
pub(super) fn short(hash: &str) -> String {
    format!("{}…", hash.get(..12).unwrap_or(hash))
}

/// What a file looks like from outside. Equal stamps mean an unchanged file.
#[derive(Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    status_changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            status_changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Hashes that this process has computed: weights are hashed once, not for every query.
static HASHED: LazyLock<Mutex<HashMap<PathBuf, (Stamp, String)>>> = LazyLock::new(Mutex::default);

/// The SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// Those of reading it.
pub fn hash_file(path: &Path) -> io::Result<String> {
    let stamp = Stamp::of(&fs::metadata(path)?);
    if let Some((known, hash)) = HASHED.lock().get(path)
        && *known == stamp
    {
        return Ok(hash.clone());
    }
    let mut file = open_regular(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    let hash = hex::encode(hasher.finalize());
    // Not remembered if it was written to meanwhile.
    if Stamp::of(&fs::metadata(path)?) == stamp {
        HASHED.lock().insert(path.to_owned(), (stamp, hash.clone()));
    }
    Ok(hash)
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub fn hash_bytes(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Opens a file to read it, wherever links lead. A device may have no end, and a pipe no beginning:
/// nobody is asked to wait for them.
pub(super) fn open_regular(path: &Path) -> io::Result<fs::File> {
    if fs::metadata(path)?.is_file() {
        fs::File::open(path)
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_hashed_once_while_it_is_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.pt");
        fs::write(&path, "weights").unwrap();
        let first = hash_file(&path).unwrap();
        HASHED.lock().get_mut(&path).unwrap().1 = "remembered".to_owned();
        assert_eq!(hash_file(&path).unwrap(), "remembered");
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(hash_file(&path).unwrap(), first);
    }
}
