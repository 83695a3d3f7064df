//! The file of those who may connect: names, roles, and hashes of their secrets.
//!
//! ```toml
//! [users.ada]
//! role = "admin"
//! password = "$argon2id$…"
//!
//! [tokens.dashboard]
//! role = "read"
//! sha256 = "…"
//! ```
//!
//! Passwords are hashed with Argon2id, since people choose them. Tokens are 256 random bits, for
//! which SHA-256 is enough.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use argon2::Argon2;
use argon2::password_hash::rand_core::{OsRng, RngCore};
use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use forebay_udf::files;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a client may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Run queries on tables and models, and set options of its session.
    Read,
    /// Create tables and views, write into tables and files.
    Write,
    /// Create, alter and drop models.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        })
    }
}

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::flight) struct Identity {
    pub(in crate::flight) name: String,
    pub(in crate::flight) role: Role,
    /// Of what is known of it: another one if its password or its token is.
    pub(super) mark: u64,
}

impl Identity {
    fn new(name: &str, role: Role, secret: &str) -> Self {
        let digest = Sha256::digest(format!("{role}:{secret}"));
        let mark = digest.iter().take(8).fold(0, |mark, byte| mark << 8 | u64::from(*byte));
        Self { name: name.to_owned(), role, mark }
    }

    /// Of somebody who had this name, and is not here.
    pub(in crate::flight) fn of_nobody(name: &str) -> Self {
        Self { name: name.to_owned(), role: Role::Read, mark: 0 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    role: Role,
    password: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    role: Role,
    sha256: String,
}

/// Those who may connect.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {
    #[serde(default)]
    users: BTreeMap<String, User>,
    #[serde(default)]
    tokens: BTreeMap<String, Token>,
}

impl Users {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is no such file.
    pub fn open(path: &Path) -> Result<Self> {
        let said = |problem: &dyn fmt::Display| {
            exec_datafusion_err!("users file {}: {problem}", path.display())
        };
        let text = fs::read_to_string(path).map_err(|error| said(&error))?;
        let users: Self = toml::from_str(&text).map_err(|error| said(&error.message().trim()))?;
        for (name, user) in &users.users {
            PasswordHash::new(&user.password).map_err(|error| {
                said(&format!("the password of '{name}' is not an Argon2 hash: {error}"))
            })?;
        }
        Ok(users)
    }

    /// The same, or nobody if there is no such file yet.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn open_or_new(path: &Path) -> Result<Self> {
        if path.exists() { Self::open(path) } else { Ok(Self::default()) }
    }

    /// Nobody but whoever shows this token, and may do everything.
    pub fn with_token(token: &str) -> Self {
        let owner = Token { role: Role::Admin, sha256: hash(token) };
        let tokens = BTreeMap::from([("owner".to_owned(), owner)]);
        Self { users: BTreeMap::new(), tokens }
    }

    /// Writes the file, for nobody else to read.
    ///
    /// # Errors
    /// If it cannot be written; what was there stays.
    pub fn save(&self, path: &Path) -> Result<()> {
        let write = || -> io::Result<()> {
            let text = toml::to_string(self).map_err(io::Error::other)?;
            files::replace(path, text.as_bytes())
        };
        write().map_err(|error| exec_datafusion_err!("users file {}: {error}", path.display()))
    }

    /// Adds a user, or changes one.
    ///
    /// # Errors
    /// If the name or the password is empty.
    pub fn set_user(&mut self, name: &str, role: Role, password: &str) -> Result<()> {
        if password.is_empty() {
            return exec_err!("the password of '{name}' is empty");
        }
        self.check_name(name)?;
        let salt = SaltString::generate(&mut OsRng);
        let password = Argon2::default()
            .hash_password(password.as_bytes(), &salt)
            .map_err(|error| exec_datafusion_err!("the password of '{name}': {error}"))?
            .to_string();
        self.users.insert(name.to_owned(), User { role, password });
        Ok(())
    }

    /// Adds a token, or replaces one; gives it back, for it is not kept.
    ///
    /// # Errors
    /// If the name is empty.
    pub fn set_token(&mut self, name: &str, role: Role) -> Result<String> {
        self.check_name(name)?;
        let mut secret = [0; 32];
        OsRng.fill_bytes(&mut secret);
        let token = format!("forebay-{}", hex::encode(secret));
        self.tokens.insert(name.to_owned(), Token { role, sha256: hash(&token) });
        Ok(token)
    }

    fn check_name(&self, name: &str) -> Result<()> {
        if name.is_empty() || name.contains(':') {
            return exec_err!("'{name}' is not a valid name: it is empty, or has a colon in it");
        }
        Ok(())
    }

    /// Removes a user or a token; tells whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.users.remove(name).is_some() | self.tokens.remove(name).is_some()
    }

    /// Names and roles of all, and whether they have a password.
    pub fn list(&self) -> Vec<(&str, Role, bool)> {
        let users = self.users.iter().map(|(name, user)| (name.as_str(), user.role, true));
        let tokens = self.tokens.iter().map(|(name, token)| (name.as_str(), token.role, false));
        users.chain(tokens).collect()
    }

    /// The user of this name, whoever says so.
    pub(in crate::flight) fn user(&self, name: &str) -> Option<Identity> {
        let user = self.users.get(name)?;
        Some(Identity::new(name, user.role, &user.password))
    }

    /// What is kept of a user's password.
    pub(super) fn hash_of(&self, name: &str) -> Option<&str> {
        self.users.get(name).map(|user| user.password.as_str())
    }

    /// Whether this is one of them, with the role and the secret that it has now.
    pub(in crate::flight) fn knows(&self, who: &Identity) -> bool {
        let token = || {
            let token = self.tokens.get(&who.name)?;
            Some(Identity::new(&who.name, token.role, &token.sha256))
        };
        self.user(&who.name).as_ref() == Some(who) || token().as_ref() == Some(who)
    }

    /// Who has this name and password. Takes about as long whether there is such a user or not.
    pub(super) fn by_password(&self, name: &str, password: &str) -> Option<Identity> {
        let nobody = self.users.values().next();
        let user = self.users.get(name);
        let hashed = PasswordHash::new(&user.or(nobody)?.password).ok()?;
        let is_right = Argon2::default().verify_password(password.as_bytes(), &hashed).is_ok();
        self.user(name).filter(|_| is_right)
    }

    /// Who has this token.
    pub(super) fn by_token(&self, token: &str) -> Option<Identity> {
        // Hashes are compared: how long that takes says nothing of a token.
        let hash = hash(token);
        let (name, found) = self.tokens.iter().find(|(_, known)| known.sha256 == hash)?;
        Some(Identity::new(name, found.role, &found.sha256))
    }
}

fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

impl std::str::FromStr for Role {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            "admin" => Ok(Self::Admin),
            _ => exec_err!("'{text}' is not a valid role: expected read, write or admin"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_tokens_are_known_by_their_secrets_which_no_file_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        let mut users = Users::open_or_new(&path).unwrap();
        users.set_user("ada", Role::Admin, "lovelace").unwrap();
        let token = users.set_token("dashboard", Role::Read).unwrap();
        users.save(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("lovelace") && !text.contains(&token), "{text}");
        let users = Users::open(&path).unwrap();
        let ada = users.by_password("ada", "lovelace").unwrap();
        assert_eq!((ada.name.as_str(), ada.role), ("ada", Role::Admin));
        assert!(users.knows(&ada));
        assert_eq!(users.by_password("ada", "byron"), None);
        assert_eq!(users.by_password("eve", "lovelace"), None);
        assert_eq!(users.by_token(&token).map(|who| who.role), Some(Role::Read));
        assert_eq!(users.by_token("forebay-0"), None);
    }

    #[test]
    fn whoever_is_removed_or_changed_is_not_known() {
        let mut users = Users::default();
        users.set_user("ada", Role::Read, "lovelace").unwrap();
        let token = users.set_token("dashboard", Role::Read).unwrap();
        let ada = users.by_password("ada", "lovelace").unwrap();
        let dashboard = users.by_token(&token).unwrap();
        for change in [
            |users: &mut Users| users.set_user("ada", Role::Read, "byron"),
            |users: &mut Users| users.set_user("ada", Role::Write, "lovelace"),
            |users: &mut Users| {
                assert!(users.remove("ada"));
                Ok(())
            },
        ] {
            let mut users = users.clone();
            assert!(users.knows(&ada) && users.knows(&dashboard));
            change(&mut users).unwrap();
            assert!(!users.knows(&ada) && users.knows(&dashboard));
        }
        users.set_token("dashboard", Role::Read).unwrap();
        assert!(users.knows(&ada) && !users.knows(&dashboard));
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users.toml");
        for (text, part) in [
            ("[users.ada]\nrole = 'god'\npassword = ''", "unknown variant `god`"),
            ("[users.ada]\nrole = 'read'\npassword = 'plain'", "not an Argon2 hash"),
            ("[usres.ada]", "unknown field"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Users::open(&path).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("users.toml"), "{error}");
        }
    }
}
