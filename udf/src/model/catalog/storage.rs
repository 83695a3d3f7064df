//! Where a catalog's entries are: in a folder or in memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::entry::{CatalogEntry, IfExists};
use super::files::{Alone, entry_files, file_name, problem, read_entry, remove_entry, write_entry};
use crate::error::ModelError;

#[derive(Debug)]
pub(super) enum Storage {
    /// The lock orders the writers of this process.
    Directory(PathBuf, Mutex<()>),
    Memory(Mutex<BTreeMap<String, CatalogEntry>>),
}

pub(super) fn insert(
    entries: &mut BTreeMap<String, CatalogEntry>,
    entry: CatalogEntry,
    if_exists: IfExists,
) -> Result<bool, ModelError> {
    let name = entry.name().to_owned();
    match (entries.contains_key(&name), if_exists) {
        (true, IfExists::Fail) => Err(ModelError::ModelExists { name }),
        (true, IfExists::Keep) => Ok(false),
        _ => {
            entries.insert(name, entry);
            Ok(true)
        }
    }
}

impl Storage {
    pub(super) fn read(&self, name: &str) -> Result<Option<CatalogEntry>, ModelError> {
        match self {
            Self::Memory(entries) => Ok(entries.lock().get(name).cloned()),
            Self::Directory(dir, _) => {
                let path = dir.join(file_name(name));
                match read_entry(&path)? {
                    Some(entry) if entry.name() != name => Err(ModelError::Catalog {
                        path: path.display().to_string(),
                        problem: format!("it describes model '{}'; remove the file", entry.name()),
                    }),
                    entry => Ok(entry),
                }
            }
        }
    }

    pub(super) fn read_all(&self) -> Result<(Vec<CatalogEntry>, Vec<ModelError>), ModelError> {
        let (mut entries, mut damaged) = (Vec::new(), Vec::new());
        match self {
            Self::Memory(stored) => entries.extend(stored.lock().values().cloned()),
            Self::Directory(dir, _) => {
                for path in entry_files(dir).map_err(|e| problem(dir, &e))? {
                    match read_entry(&path) {
                        Ok(entry) => entries.extend(entry),
                        Err(error) => damaged.push(error),
                    }
                }
            }
        }
        Ok((entries, damaged))
    }

    pub(super) fn write(
        &self,
        entry: CatalogEntry,
        if_exists: IfExists,
    ) -> Result<bool, ModelError> {
        match self {
            Self::Memory(entries) => insert(&mut entries.lock(), entry, if_exists),
            Self::Directory(dir, writers) => {
                let _ordered = writers.lock();
                let _alone = Alone::in_folder(dir)?;
                write_entry(dir, &entry, if_exists)
            }
        }
    }

    /// The model as it is after the change; nothing if there is none of this name.
    pub(super) fn alter(
        &self,
        name: &str,
        change: impl FnOnce(CatalogEntry) -> Result<CatalogEntry, ModelError>,
    ) -> Result<Option<CatalogEntry>, ModelError> {
        match self {
            Self::Memory(entries) => {
                let mut entries = entries.lock();
                let Some(entry) = entries.get_mut(name) else { return Ok(None) };
                *entry = change(entry.clone())?;
                Ok(Some(entry.clone()))
            }
            Self::Directory(dir, writers) => {
                if self.read(name)?.is_none() {
                    // Nothing to lock either: the folder may not be there.
                    return Ok(None);
                }
                let _ordered = writers.lock();
                let _alone = Alone::in_folder(dir)?;
                let Some(entry) = self.read(name)? else { return Ok(None) };
                let entry = change(entry)?;
                write_entry(dir, &entry, IfExists::Replace)?;
                Ok(Some(entry))
            }
        }
    }

    /// Whether there was a model of this name.
    pub(super) fn rename(&self, name: &str, to: &str) -> Result<bool, ModelError> {
        match self {
            Self::Memory(entries) => {
                let mut entries = entries.lock();
                let Some(mut entry) = entries.get(name).cloned() else { return Ok(false) };
                entry.declaration.name = to.to_owned();
                insert(&mut entries, entry, IfExists::Fail)?;
                entries.remove(name);
            }
            Self::Directory(dir, writers) => {
                if self.read(name)?.is_none() {
                    return Ok(false);
                }
                let _ordered = writers.lock();
                let _alone = Alone::in_folder(dir)?;
                let Some(mut entry) = self.read(name)? else { return Ok(false) };
                entry.declaration.name = to.to_owned();
                // There under both names for a moment rather than under none.
                write_entry(dir, &entry, IfExists::Fail)?;
                remove_entry(dir, name)?;
            }
        }
        Ok(true)
    }

    pub(super) fn remove(&self, name: &str) -> Result<bool, ModelError> {
        match self {
            Self::Memory(entries) => Ok(entries.lock().remove(name).is_some()),
            Self::Directory(dir, writers) => {
                if !dir.is_dir() {
                    return Ok(false);
                }
                let _ordered = writers.lock();
                let _alone = Alone::in_folder(dir)?;
                remove_entry(dir, name)
            }
        }
    }
}
