//! Passwords that were right a moment ago: some clients send theirs with each call.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::flight::access::seal::{Seal, Signature};
use crate::flight::access::users::{Identity, Users};

/// For how long a password need not be checked again.
const REMEMBERED_FOR: Duration = Duration::from_secs(5 * 60);

/// What was right, under a key of this process; no password can be read from it. There is no more than
/// one for each user and password that it has had.
pub(super) struct Remembered {
    seal: Seal,
    proofs: Mutex<HashMap<Signature, Instant>>,
}

impl Default for Remembered {
    fn default() -> Self {
        Self { seal: Seal::new(), proofs: Mutex::default() }
    }
}

impl Remembered {
    /// Who this is, if that was found out lately and the user has not been changed since.
    pub(super) fn find(&self, users: &Users, name: &str, password: &str) -> Option<Identity> {
        let proof = self.proof(users, name, password)?;
        let since = self.proofs.lock().get(&proof).copied()?;
        (since.elapsed() < REMEMBERED_FOR).then(|| users.user(name))?
    }

    pub(super) fn add(&self, users: &Users, name: &str, password: &str) {
        if let Some(proof) = self.proof(users, name, password) {
            self.proofs.lock().insert(proof, Instant::now());
        }
    }

    pub(super) fn sweep(&self) {
        self.proofs.lock().retain(|_, since| since.elapsed() < REMEMBERED_FOR);
    }

    fn proof(&self, users: &Users, name: &str, password: &str) -> Option<Signature> {
        let hashed = users.hash_of(name)?;
        Some(self.seal.signature_of(&[name, hashed, password].map(str::as_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::access::users::Role;

    #[test]
    fn only_what_was_right_is_remembered_until_the_user_changes() {
        let mut users = Users::default();
        users.set_user("ada", Role::Read, "lovelace").unwrap();
        let remembered = Remembered::default();
        assert!(remembered.find(&users, "ada", "lovelace").is_none());
        remembered.add(&users, "ada", "lovelace");
        assert_eq!(remembered.find(&users, "ada", "lovelace"), users.user("ada"));
        assert!(remembered.find(&users, "ada", "byron").is_none());
        assert!(remembered.find(&users, "eve", "lovelace").is_none());
        users.set_user("ada", Role::Read, "lovelace").unwrap();
        assert!(remembered.find(&users, "ada", "lovelace").is_none(), "it was hashed anew");
    }
}
