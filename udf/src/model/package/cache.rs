//! The folder of downloaded packages, within a number of bytes: the least recently used goes first.
//!
//! Several processes share it. Each holds a lock on what it uses, and what is locked stays.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;

use crate::error::ModelError;
use crate::model::manifest::MANIFEST;

/// Of the variable below, if it is not set.
const LIMIT: ByteSize = ByteSize::gib(100);

/// Says how many bytes downloaded packages may take.
const LIMIT_VARIABLE: &str = "FOREBAY_CACHE_LIMIT";

/// Downloads begin with this.
pub(super) const PARTIAL: &str = ".partial-";

/// A download of this age belongs to a process that was killed.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Keeps a package in the cache as long as somebody uses it.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    _locked: Arc<File>,
}

/// Whether a package is held says nothing about the package.
impl PartialEq for Hold {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Holds the package in `dir`, if it is there, and notes that it is used.
pub(super) fn hold(dir: &Path) -> io::Result<Option<Hold>> {
    let path = dir.join(MANIFEST);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    file.lock_shared()?;
    // Removed while this waited for the lock.
    if !path.exists() {
        return Ok(None);
    }
    // Another user's cache can be read, and is not ours to keep tidy.
    file.set_modified(SystemTime::now()).ok();
    Ok(Some(Hold { _locked: Arc::new(file) }))
}

/// Bytes that downloaded packages may take.
pub(super) fn limit() -> Result<u64, ModelError> {
    let Some(text) = std::env::var(LIMIT_VARIABLE).ok().filter(|text| !text.is_empty()) else {
        return Ok(LIMIT.as_u64());
    };
    let limit = text.parse::<ByteSize>().map_err(|_| ModelError::InvalidValue {
        option: LIMIT_VARIABLE.to_owned(),
        value: text,
        expected: "a size such as '20 GiB'".to_owned(),
    })?;
    Ok(limit.as_u64())
}

/// Removes packages that nobody holds until the others take no more than `limit` bytes.
pub(super) fn make_room(packages: &Path, limit: u64) -> io::Result<()> {
    let mut kept = vec![];
    for entry in fs::read_dir(packages)?.flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            remove_if_abandoned(&path)
        } else {
            kept.extend(Kept::find(path))
        }
    }
    kept.sort_by_key(|package| package.used);
    let mut bytes: u64 = kept.iter().map(|package| package.bytes).sum();
    for package in kept {
        if bytes <= limit {
            return Ok(());
        }
        if package.remove() {
            bytes -= package.bytes;
        }
    }
    if bytes > limit {
        tracing::warn!(
            "the packages in {} take {bytes} bytes, all of them are in use, and {LIMIT_VARIABLE} \
             is {limit}",
            packages.display()
        );
    }
    Ok(())
}

/// A package in the cache.
struct Kept {
    dir: PathBuf,
    used: SystemTime,
    bytes: u64,
}

impl Kept {
    fn find(dir: PathBuf) -> Option<Self> {
        let used = fs::metadata(dir.join(MANIFEST)).ok()?.modified().ok()?;
        let bytes = size(&dir);
        Some(Self { dir, used, bytes })
    }

    /// Whether nobody held it.
    fn remove(&self) -> bool {
        let manifest = self.dir.join(MANIFEST);
        let Ok(file) = File::open(&manifest) else { return false };
        if file.try_lock().is_err() {
            return false;
        }
        // The file under the lock goes first: who waits for it sees that it is gone.
        let removed = fs::remove_file(manifest).and_then(|()| fs::remove_dir_all(&self.dir));
        if let Err(error) = &removed {
            tracing::warn!("the package in {} cannot be removed: {error}", self.dir.display());
        }
        removed.is_ok()
    }
}

fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

fn remove_if_abandoned(partial: &Path) {
    let modified = fs::metadata(partial).and_then(|found| found.modified());
    let age = modified.ok().and_then(|modified| modified.elapsed().ok());
    if age.is_some_and(|age| age > ABANDONED_AFTER) {
        fs::remove_dir_all(partial).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(packages: &Path, name: &str, used_s: u64) -> PathBuf {
        let dir = packages.join(name);
        fs::create_dir_all(dir.join("deep")).unwrap();
        fs::write(dir.join("deep/weights"), vec![0; 1000]).unwrap();
        let manifest = File::create(dir.join(MANIFEST)).unwrap();
        manifest.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(used_s)).unwrap();
        dir
    }

    #[test]
    fn what_nobody_holds_goes_the_oldest_first() {
        let packages = tempfile::tempdir().unwrap();
        let [old, held, new] = [("old", 1), ("held", 0), ("new", 2)]
            .map(|(name, used)| package(packages.path(), name, used));
        let hold = super::hold(&held).unwrap().unwrap();
        make_room(packages.path(), 3000).unwrap();
        assert!(old.exists() && held.exists() && new.exists());
        make_room(packages.path(), 2999).unwrap();
        assert!(!old.exists() && held.exists() && new.exists());
        make_room(packages.path(), 0).unwrap();
        assert!(held.exists() && !new.exists());
        drop(hold);
        make_room(packages.path(), 0).unwrap();
        assert!(!held.exists());
        assert_eq!(super::hold(&held).unwrap(), None);
    }

    #[test]
    fn a_download_goes_on_unless_it_is_a_day_old() {
        let packages = tempfile::tempdir().unwrap();
        let [running, abandoned] =
            ["a", "b"].map(|name| packages.path().join(format!("{PARTIAL}{name}")));
        fs::create_dir(&running).unwrap();
        fs::create_dir(&abandoned).unwrap();
        File::open(&abandoned).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        make_room(packages.path(), 0).unwrap();
        assert!(running.exists() && !abandoned.exists());
    }
}
