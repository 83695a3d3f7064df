//! SQL names → models, in a folder with one TOML file per model.
//!
//! Files are read at each call (they are tiny) and written by renaming a finished file, so several
//! processes share a folder: each sees a model of another whole or not at all. Who changes something
//! holds a lock from reading to writing, so that of two changes none is lost.
//!
//! - `entry.rs`: what is under a name
//! - `storage.rs`: a folder, or memory
//! - `files.rs`: the folder's files

mod entry;
mod files;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

pub use self::entry::{CatalogEntry, IfExists};
use self::storage::{Storage, insert};
use super::learned::Learned;
use crate::error::{ModelError, nearest_hint};

/// The models that SQL can name. Names match exactly: folding case is the parser's business.
#[derive(Debug)]
pub struct Catalog {
    storage: Arc<Storage>,
    /// Models of this process or session only; they hide stored ones of the same name.
    temporary: Mutex<BTreeMap<String, CatalogEntry>>,
    learned: Arc<Learned>,
}

impl Catalog {
    /// A catalog kept in a folder, which is created when the first model is.
    ///
    /// # Errors
    /// [`ModelError::Catalog`] if the path is there but not a folder.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Arc<Self>, ModelError> {
        let dir = dir.into();
        if dir.exists() && !dir.is_dir() {
            return Err(ModelError::Catalog {
                path: dir.display().to_string(),
                problem: "not a folder; name another one".to_owned(),
            });
        }
        Ok(Arc::new(Self::with_storage(Storage::Directory(dir, Mutex::default()))))
    }

    /// A catalog that lives as long as this value.
    pub fn in_memory() -> Arc<Self> {
        Arc::new(Self::with_storage(Storage::Memory(Mutex::default())))
    }

    fn with_storage(storage: Storage) -> Self {
        let learned = match &storage {
            Storage::Directory(dir, _) => Learned::in_folder(dir.join("learned")),
            Storage::Memory(_) => Learned::default(),
        };
        let (storage, learned) = (Arc::new(storage), Arc::new(learned));
        Self { storage, temporary: Mutex::default(), learned }
    }

    /// The same models for one of several sessions, whose temporary models are its own.
    #[must_use]
    pub fn for_session(&self) -> Arc<Self> {
        Arc::new(Self {
            storage: Arc::clone(&self.storage),
            temporary: Mutex::new(self.temporary.lock().clone()),
            learned: Arc::clone(&self.learned),
        })
    }

    /// What running its models has taught.
    pub fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// The model of this name.
    ///
    /// # Errors
    /// [`ModelError::UnknownModel`] with the nearest name, or [`ModelError::Catalog`].
    pub fn get(&self, name: &str) -> Result<CatalogEntry, ModelError> {
        if let Some(entry) = self.temporary.lock().get(name) {
            return Ok(entry.clone());
        }
        match self.storage.read(name)? {
            Some(entry) => Ok(entry),
            None => Err(self.unknown(name)),
        }
    }

    /// All models, by name. A damaged entry is left out with a warning in the log; see
    /// [`Self::damaged`].
    ///
    /// # Errors
    /// [`ModelError::Catalog`] if the folder cannot be read.
    pub fn list(&self) -> Result<Vec<CatalogEntry>, ModelError> {
        let (stored, damaged) = self.storage.read_all()?;
        for error in damaged {
            tracing::warn!("{error}");
        }
        let mut entries: BTreeMap<String, CatalogEntry> =
            stored.into_iter().map(|entry| (entry.name().to_owned(), entry)).collect();
        entries.extend(self.temporary.lock().clone());
        Ok(entries.into_values().collect())
    }

    /// The entries that cannot be read, each as the error that [`Self::get`] gives.
    ///
    /// # Errors
    /// [`ModelError::Catalog`] if the folder cannot be read.
    pub fn damaged(&self) -> Result<Vec<ModelError>, ModelError> {
        Ok(self.storage.read_all()?.1)
    }

    /// Adds a model; tells whether it is there now because of this call.
    ///
    /// # Errors
    /// [`ModelError::ModelExists`] or [`ModelError::Catalog`].
    pub fn create(&self, entry: CatalogEntry, if_exists: IfExists) -> Result<bool, ModelError> {
        if if_exists == IfExists::Replace {
            self.learned.forget(&entry.declaration.content_hash);
        }
        if entry.temporary {
            return insert(&mut self.temporary.lock(), entry, if_exists);
        }
        self.storage.write(entry, if_exists)
    }

    /// Removes a model, a temporary one first; tells whether there was one. Removes a damaged
    /// entry too.
    ///
    /// # Errors
    /// [`ModelError::Catalog`].
    pub fn remove(&self, name: &str) -> Result<bool, ModelError> {
        if self.temporary.lock().remove(name).is_some() {
            return Ok(true);
        }
        self.storage.remove(name)
    }

    /// Sets options of a model; returns it as it is now.
    ///
    /// # Errors
    /// [`ModelError::UnknownModel`], [`ModelError::UnknownOption`], [`ModelError::InvalidValue`]
    /// or [`ModelError::Catalog`].
    pub fn alter<K: AsRef<str>, V: AsRef<str>>(
        &self,
        name: &str,
        pairs: &[(K, V)],
    ) -> Result<CatalogEntry, ModelError> {
        let change = |entry: CatalogEntry| entry.with_options(pairs);
        if let Some(entry) = self.temporary.lock().get_mut(name) {
            *entry = change(entry.clone())?;
            return Ok(entry.clone());
        }
        self.storage.alter(name, change)?.ok_or_else(|| self.unknown(name))
    }

    /// Gives a model another name.
    ///
    /// # Errors
    /// [`ModelError::UnknownModel`], [`ModelError::ModelExists`] or [`ModelError::Catalog`].
    pub fn rename(&self, name: &str, to: &str) -> Result<(), ModelError> {
        let mut temporary = self.temporary.lock();
        if temporary.contains_key(to) {
            return Err(ModelError::ModelExists { name: to.to_owned() });
        }
        if let Some(mut entry) = temporary.remove(name) {
            entry.declaration.name = to.to_owned();
            temporary.insert(to.to_owned(), entry);
            return Ok(());
        }
        drop(temporary);
        if self.storage.rename(name, to)? { Ok(()) } else { Err(self.unknown(name)) }
    }

    fn unknown(&self, name: &str) -> ModelError {
        let names = self.list().unwrap_or_default();
        ModelError::UnknownModel {
            name: name.to_owned(),
            hint: nearest_hint(name, names.iter().map(CatalogEntry::name)),
        }
    }
}
