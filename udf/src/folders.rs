//! Where Forebay keeps what it can make or fetch again.

use std::env;
use std::path::{Path, PathBuf};

/// `$FOREBAY_CACHE`, or `~/.cache/forebay`; none for a user without a home.
pub fn cache() -> Option<PathBuf> {
    let named = env::var_os("FOREBAY_CACHE").filter(|value| !value.is_empty());
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache/forebay"));
    named.map(PathBuf::from).or_else(home)
}
