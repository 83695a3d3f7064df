//! Where Forebay keeps things, unless told otherwise.

use std::env;
use std::path::PathBuf;

/// The catalog's folder: `FOREBAY_CATALOG`, or `forebay/catalog` in the user's data folder.
pub fn catalog() -> PathBuf {
    named("FOREBAY_CATALOG")
        .unwrap_or_else(|| data_home().unwrap_or_else(|| PathBuf::from(".forebay")).join("catalog"))
}

/// The file of the shell's history; neither it nor its folder need be there.
pub fn history() -> PathBuf {
    data_home().unwrap_or_else(|| PathBuf::from(".forebay")).join("history")
}

fn data_home() -> Option<PathBuf> {
    named("XDG_DATA_HOME")
        .or_else(|| Some(named("HOME")?.join(".local/share")))
        .map(|folder| folder.join("forebay"))
}

fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
