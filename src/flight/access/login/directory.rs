//! Who may connect, as a file says at the moment.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use datafusion::common::Result;
use parking_lot::Mutex;

use crate::flight::access::users::Users;

/// Users and tokens, read again when their file has changed.
#[derive(Clone)]
pub(in crate::flight) struct Directory {
    file: Option<PathBuf>,
    seen: Arc<Mutex<Seen>>,
}

struct Seen {
    users: Arc<Users>,
    stamp: Option<Stamp>,
}

/// By what a file is told from the one that it replaces.
#[derive(PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { modified: found.modified().ok(), bytes: found.len(), inode: found.ino() })
    }
}

impl Directory {
    /// These users for as long as the server runs: no file changes them.
    pub(in crate::flight) fn of(users: Users) -> Self {
        let seen = Seen { users: Arc::new(users), stamp: None };
        Self { file: None, seen: Arc::new(Mutex::new(seen)) }
    }

    /// Those of a file.
    ///
    /// # Errors
    /// If it cannot be read or is no such file.
    pub(in crate::flight) fn open(path: &Path) -> Result<Self> {
        // In this order: what changes meanwhile is read again.
        let stamp = Stamp::of(path).ok();
        let seen = Seen { users: Arc::new(Users::open(path)?), stamp };
        Ok(Self { file: Some(path.to_owned()), seen: Arc::new(Mutex::new(seen)) })
    }

    /// Who may connect now. While the file is damaged or gone, it is those whom it named before.
    pub(in crate::flight) fn now(&self) -> Arc<Users> {
        let mut seen = self.seen.lock();
        if let Some(path) = &self.file {
            seen.look(path);
        }
        Arc::clone(&seen.users)
    }
}

impl Seen {
    fn look(&mut self, path: &Path) {
        let stamp = Stamp::of(path).ok();
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match Users::open(path) {
            Ok(users) => {
                tracing::info!("users file {} was read again", path.display());
                self.users = Arc::new(users);
            }
            Err(error) => tracing::warn!(
                "{}; those whom it named before may still connect",
                crate::errors::readable(&error)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::access::users::Role;

    #[test]
    fn a_file_is_read_again_when_it_has_changed_and_kept_in_mind_while_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        let mut users = Users::default();
        let token = users.set_token("dashboard", Role::Read).unwrap();
        users.save(&path).unwrap();
        let directory = Directory::open(&path).unwrap();
        let who = directory.now().by_token(&token).unwrap();
        fs::write(&path, "[tokens.dashboard").unwrap();
        assert!(directory.now().knows(&who));
        fs::remove_file(&path).unwrap();
        assert!(directory.now().knows(&who));
        users.remove("dashboard");
        users.save(&path).unwrap();
        assert!(!directory.now().knows(&who) && directory.now().by_token(&token).is_none());
        let other = users.set_token("dashboard", Role::Read).unwrap();
        users.save(&path).unwrap();
        let now = directory.now();
        assert!(
            !now.knows(&who) && now.by_token(&token).is_none() && now.by_token(&other).is_some()
        );
    }
}
