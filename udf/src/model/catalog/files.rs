//! The files of a catalog's folder: one per model, and a lock.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::entry::{CatalogEntry, IfExists};
use crate::error::{ModelError, message_text};
use crate::files;
use crate::model::hashes::hash_bytes;

const SUFFIX: &str = ".toml";
/// The file in the folder that is locked by whoever changes something.
pub(super) const LOCK: &str = ".lock";
/// File systems allow 255 bytes; longer names are shortened and told apart by a hash.
const FILE_STEM_BYTES_MAX: usize = 200;

/// Keeps other processes from changing a folder, for as long as it lives.
pub(super) struct Alone(#[expect(dead_code, reason = "closing it unlocks it")] Option<File>);

impl Alone {
    /// Waits until no other process changes the folder, which is made if it is not there.
    pub(super) fn in_folder(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join(LOCK);
        let lock = || -> io::Result<Option<File>> {
            fs::create_dir_all(dir)?;
            let file = File::options().create(true).append(true).open(&path)?;
            match file.lock() {
                Ok(()) => Ok(Some(file)),
                // Some network file systems have no locks: there, processes take turns by chance.
                Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(None),
                Err(e) => Err(e),
            }
        };
        lock().map(Self).map_err(|e| problem(&path, &e))
    }
}

pub(super) fn remove_entry(dir: &Path, name: &str) -> Result<bool, ModelError> {
    let path = dir.join(file_name(name));
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(problem(&path, &e)),
    }
}

pub(super) fn problem(path: &Path, error: &dyn std::fmt::Display) -> ModelError {
    ModelError::Catalog { path: path.display().to_string(), problem: error.to_string() }
}

/// The entry files of a folder in the order of their names; none if the folder is not there.
pub(super) fn entry_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut paths = listing.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
    // Unfinished files begin with a dot.
    let is_entry = |name: &str| name.ends_with(SUFFIX) && !name.starts_with('.');
    paths.retain(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_entry));
    paths.sort();
    Ok(paths)
}

pub(super) fn read_entry(path: &Path) -> Result<Option<CatalogEntry>, ModelError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(problem(path, &e)),
    };
    toml::from_str(&text).map(Some).map_err(|e| {
        let reason = e.message().trim().replace('\n', ", ");
        let reason = message_text(&reason);
        problem(path, &format!("damaged ({reason}); run DROP MODEL and create the model again"))
    })
}

pub(super) fn write_entry(
    dir: &Path,
    entry: &CatalogEntry,
    if_exists: IfExists,
) -> Result<bool, ModelError> {
    let name = entry.name().to_owned();
    let path = dir.join(file_name(&name));
    let text = toml::to_string(entry).map_err(|e| problem(&path, &e))?;
    let write = || -> io::Result<bool> {
        fs::create_dir_all(dir)?;
        match if_exists {
            IfExists::Replace => files::replace(&path, text.as_bytes()).map(|()| true),
            IfExists::Fail | IfExists::Keep => files::create(&path, text.as_bytes()),
        }
    };
    match (write().map_err(|e| problem(&path, &e))?, if_exists) {
        (false, IfExists::Fail) => Err(ModelError::ModelExists { name }),
        (created, _) => Ok(created),
    }
}

/// A file name that differs whenever the model's name does, also where file systems fold case.
pub(super) fn file_name(name: &str) -> String {
    let mut stem = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => stem.push(char::from(byte)),
            _ => stem.push_str(&format!("%{byte:02x}")),
        }
    }
    if stem.len() > FILE_STEM_BYTES_MAX || stem.is_empty() {
        let digest = hash_bytes(name.as_bytes());
        stem.truncate(40);
        // '~' is in no other stem.
        stem = format!("{stem}~{digest}");
    }
    stem + SUFFIX
}
