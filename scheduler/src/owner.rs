//! On whose behalf a session runs.

/// A user, as an extension of its sessions' configuration and of its jobs'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The name under which it logged in.
    pub name: String,
    /// Whether it sees what others run.
    pub sees_all: bool,
}

impl Owner {
    /// One that sees what is its own.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), sees_all: false }
    }
}
