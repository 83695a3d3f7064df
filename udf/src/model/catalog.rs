//! SQL names → models, in a folder with one TOML file per model.
//!
//! Files are read at each call (they are tiny) and written by renaming a finished file, so several
//! processes share a folder: each sees a model of another whole or not at all. Who changes something
//! holds a lock from reading to writing, so that of two changes none is lost.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::declaration::ModelDeclaration;
use super::hashes::hex;
use super::learned::Learned;
use super::options::ModelOptions;
use crate::error::{ModelError, nearest_hint};

const SUFFIX: &str = ".toml";
/// The file in the folder that is locked by whoever changes something.
const LOCK: &str = ".lock";
/// File systems allow 255 bytes; longer names are shortened and told apart by a hash.
const FILE_STEM_BYTES_MAX: usize = 200;

/// A model as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogEntry {
    /// The text after `COMMENT`, or the package's description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// License of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Where the weights come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether it lives in this process only.
    #[serde(skip)]
    pub temporary: bool,
    /// Options as given in `WITH` and `ALTER MODEL`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The package's values with the options applied.
    pub declaration: ModelDeclaration,
}

impl CatalogEntry {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.declaration.name
    }

    /// This entry with more options, which override earlier ones.
    ///
    /// # Errors
    /// [`ModelError::UnknownOption`] or [`ModelError::InvalidValue`].
    pub fn with_options<K: AsRef<str>, V: AsRef<str>>(
        mut self,
        pairs: &[(K, V)],
    ) -> Result<Self, ModelError> {
        let options = ModelOptions::try_from_pairs(pairs.iter().map(|(key, value)| (key, value)))?;
        self.declaration = self.declaration.with_options(&options)?;
        let key = |key: &K| key.as_ref().trim().to_lowercase();
        self.options.extend(pairs.iter().map(|(k, value)| (key(k), value.as_ref().to_owned())));
        Ok(self)
    }
}

/// What `CREATE MODEL` does when the name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// `CREATE MODEL`: an error.
    Fail,
    /// `CREATE OR REPLACE MODEL`.
    Replace,
    /// `CREATE MODEL IF NOT EXISTS`: the model there is stays.
    Keep,
}

/// The models that SQL can name. Names match exactly: folding case is the parser's business.
#[derive(Debug)]
pub struct Catalog {
    storage: Arc<Storage>,
    /// Models of this process or session only; they hide stored ones of the same name.
    temporary: Mutex<BTreeMap<String, CatalogEntry>>,
    learned: Arc<Learned>,
}

#[derive(Debug)]
enum Storage {
    /// The lock orders the writers of this process.
    Directory(PathBuf, Mutex<()>),
    Memory(Mutex<BTreeMap<String, CatalogEntry>>),
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
        match self.storage.rename(name, to)? {
            true => Ok(()),
            false => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> ModelError {
        let names = self.list().unwrap_or_default();
        ModelError::UnknownModel {
            name: name.to_owned(),
            hint: nearest_hint(name, names.iter().map(CatalogEntry::name)),
        }
    }
}

fn insert(
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
    fn read(&self, name: &str) -> Result<Option<CatalogEntry>, ModelError> {
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

    fn read_all(&self) -> Result<(Vec<CatalogEntry>, Vec<ModelError>), ModelError> {
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

    fn write(&self, entry: CatalogEntry, if_exists: IfExists) -> Result<bool, ModelError> {
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
    fn alter(
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
    fn rename(&self, name: &str, to: &str) -> Result<bool, ModelError> {
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

    fn remove(&self, name: &str) -> Result<bool, ModelError> {
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

/// Keeps other processes from changing a folder, for as long as it lives.
struct Alone(#[expect(dead_code, reason = "closing it unlocks it")] Option<File>);

impl Alone {
    /// Waits until no other process changes the folder, which is made if it is not there.
    fn in_folder(dir: &Path) -> Result<Self, ModelError> {
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

fn remove_entry(dir: &Path, name: &str) -> Result<bool, ModelError> {
    let path = dir.join(file_name(name));
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(problem(&path, &e)),
    }
}

fn problem(path: &Path, error: &dyn std::fmt::Display) -> ModelError {
    ModelError::Catalog { path: path.display().to_string(), problem: error.to_string() }
}

/// The entry files of a folder in the order of their names; none if the folder is not there.
fn entry_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
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

fn read_entry(path: &Path) -> Result<Option<CatalogEntry>, ModelError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(problem(path, &e)),
    };
    toml::from_str(&text).map(Some).map_err(|e| {
        let reason = e.message().trim().replace('\n', ", ");
        problem(path, &format!("damaged ({reason}); run DROP MODEL and create the model again"))
    })
}

fn write_entry(dir: &Path, entry: &CatalogEntry, if_exists: IfExists) -> Result<bool, ModelError> {
    let name = entry.name().to_owned();
    let path = dir.join(file_name(&name));
    let text = toml::to_string(entry).map_err(|e| problem(&path, &e))?;
    let write = || -> io::Result<bool> {
        fs::create_dir_all(dir)?;
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        match if_exists {
            IfExists::Replace => drop(file.persist(&path)?),
            // Fails if another process has made the name its own in the meantime.
            IfExists::Fail | IfExists::Keep => match file.persist_noclobber(&path) {
                Ok(_) => {}
                Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
                Err(e) => return Err(e.error),
            },
        }
        // The new name outlives a crash only when the folder is on disk too.
        File::open(dir)?.sync_all()?;
        Ok(true)
    };
    match (write().map_err(|e| problem(&path, &e))?, if_exists) {
        (false, IfExists::Fail) => Err(ModelError::ModelExists { name }),
        (created, _) => Ok(created),
    }
}

/// A file name that differs whenever the model's name does, also where file systems fold case.
fn file_name(name: &str) -> String {
    let mut stem = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => stem.push(char::from(byte)),
            _ => stem.push_str(&format!("%{byte:02x}")),
        }
    }
    if stem.len() > FILE_STEM_BYTES_MAX || stem.is_empty() {
        let digest = hex(&Sha256::digest(name.as_bytes()));
        stem.truncate(40);
        // '~' is in no other stem.
        stem = format!("{stem}~{digest}");
    }
    stem + SUFFIX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Folder, tensors};
    use crate::model::{Precision, Share};

    const EMULATED: &str = "kind = \"emulated\"\nservice_ms = 1";

    fn entry(name: &str) -> CatalogEntry {
        let folder = Folder::new(&tensors(&[("a", "FLOAT[2]")], &[("b", "FLOAT")], EMULATED), &[]);
        let (mut declaration, _) = crate::fixture::open(folder.path());
        declaration.name = name.to_owned();
        CatalogEntry {
            comment: Some("it's \"quoted\"\nand long".to_owned()),
            license: None,
            source: None,
            temporary: false,
            options: BTreeMap::new(),
            declaration,
        }
    }

    fn names(catalog: &Catalog) -> Vec<String> {
        catalog.list().unwrap().iter().map(|entry| entry.name().to_owned()).collect()
    }

    #[test]
    fn two_handles_of_a_folder_see_each_others_models() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not/there/yet");
        let (one, other) = (Catalog::open(&path).unwrap(), Catalog::open(&path).unwrap());
        assert!(names(&one).is_empty() && !path.exists());
        let created = entry("minilm").with_options(&[("max_replicas", "2")]).unwrap();
        assert!(one.create(created.clone(), IfExists::Fail).unwrap());
        assert_eq!(other.get("minilm").unwrap(), created);
        assert!(other.remove("minilm").unwrap());
        assert!(!one.remove("minilm").unwrap());
        assert!(matches!(one.get("minilm"), Err(ModelError::UnknownModel { .. })));
    }

    #[test]
    fn a_taken_name_is_kept_replaced_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        for catalog in [Catalog::open(dir.path()).unwrap(), Catalog::in_memory()] {
            let first = entry("m");
            assert!(catalog.create(first.clone(), IfExists::Keep).unwrap());
            let other = entry("m").with_options(&[("precision", "bf16")]).unwrap();
            assert!(!catalog.create(other.clone(), IfExists::Keep).unwrap());
            let error = catalog.create(other.clone(), IfExists::Fail).unwrap_err();
            assert!(matches!(error, ModelError::ModelExists { .. }), "{error}");
            assert_eq!(catalog.get("m").unwrap(), first);
            assert!(catalog.create(other.clone(), IfExists::Replace).unwrap());
            assert_eq!(catalog.get("m").unwrap(), other);
        }
        let mut files: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        files.sort_unstable();
        assert_eq!(files, [LOCK, "m.toml"], "no unfinished files are left");
    }

    #[test]
    fn of_many_creators_one_wins_and_readers_see_whole_entries() {
        let dir = tempfile::tempdir().unwrap();
        let created = std::thread::scope(|scope| {
            let work = |i: usize| {
                let catalog = Catalog::open(dir.path()).unwrap();
                let created = catalog.create(entry("m"), IfExists::Keep).unwrap();
                for _ in 0..50 {
                    let value = i.to_string();
                    let changed = entry("m").with_options(&[("output_prefix", &value)]).unwrap();
                    catalog.create(changed, IfExists::Replace).unwrap();
                    catalog.get("m").unwrap();
                }
                created
            };
            let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || work(i))).collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
        });
        assert_eq!(created, 1);
        assert!(Catalog::open(dir.path()).unwrap().damaged().unwrap().is_empty());
    }

    #[test]
    fn temporary_models_hide_stored_ones() {
        let catalog = Catalog::in_memory();
        catalog.create(entry("m"), IfExists::Fail).unwrap();
        catalog.create(entry("a"), IfExists::Fail).unwrap();
        let temporary = CatalogEntry { temporary: true, ..entry("m") };
        assert!(catalog.create(temporary.clone(), IfExists::Fail).unwrap());
        assert!(catalog.create(temporary, IfExists::Fail).is_err());
        assert!(catalog.get("m").unwrap().temporary);
        assert_eq!(names(&catalog), ["a", "m"]);
        assert!(catalog.remove("m").unwrap());
        assert!(!catalog.get("m").unwrap().temporary);
    }

    #[test]
    fn altering_adds_options_and_applies_them() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        catalog
            .create(entry("m").with_options(&[("gpus", "0.5")]).unwrap(), IfExists::Fail)
            .unwrap();
        catalog.alter("m", &[("PRECISION", "bf16"), ("max_batch_rows", "7")]).unwrap();
        let altered = catalog.get("m").unwrap();
        assert_eq!(altered.declaration.precision, Precision::Bf16);
        assert_eq!(altered.declaration.batch.max_rows, 7);
        assert_eq!(altered.declaration.resources.gpus, "0.5".parse::<Share>().unwrap());
        assert_eq!(
            altered.options.keys().collect::<Vec<_>>(),
            ["gpus", "max_batch_rows", "precision"]
        );
        let error = catalog.alter("m", &[("presicion", "bf16")]).unwrap_err();
        assert!(error.to_string().contains("did you mean 'precision'?"), "{error}");
        assert_eq!(catalog.get("m").unwrap(), altered);
    }

    /// Each sets an option of its own, in sessions of one process and in processes (which see nothing
    /// of each other but the folder).
    #[test]
    fn of_changes_at_the_same_time_none_is_lost() {
        const OPTIONS: [(&str, &str); 4] = [
            ("gpus", "0.5"),
            ("precision", "bf16"),
            ("max_batch_rows", "7"),
            ("on_error", "route"),
        ];
        let dir = tempfile::tempdir().unwrap();
        let stored = Catalog::open(dir.path()).unwrap();
        let memory = Catalog::in_memory();
        let of_a_process = |_: usize| Catalog::open(dir.path()).unwrap();
        let of_a_session = |_: usize| stored.for_session();
        let in_memory = |_: usize| memory.for_session();
        let places: [&(dyn Fn(usize) -> Arc<Catalog> + Sync); 3] =
            [&of_a_process, &of_a_session, &in_memory];
        for catalog in places {
            for round in 0..20 {
                catalog(0).create(entry("m"), IfExists::Replace).unwrap();
                std::thread::scope(|scope| {
                    for (at, option) in OPTIONS.iter().enumerate() {
                        scope.spawn(move || catalog(at).alter("m", &[*option]).unwrap());
                    }
                });
                let options = catalog(0).get("m").unwrap().options;
                let set: Vec<_> = options.iter().map(|(key, value)| (&**key, &**value)).collect();
                let mut all = OPTIONS.to_vec();
                all.sort_unstable();
                assert_eq!(set, all, "round {round}");
            }
        }
    }

    #[test]
    fn what_running_a_model_has_taught_outlives_a_change_and_not_another_model() {
        let dir = tempfile::tempdir().unwrap();
        for catalog in [Catalog::open(dir.path()).unwrap(), Catalog::in_memory()] {
            let stored = entry("m");
            let temporary = CatalogEntry { temporary: true, ..entry("t") };
            let model = stored.declaration.clone();
            for entry in [stored.clone(), temporary] {
                catalog.create(entry, IfExists::Fail).unwrap();
            }
            catalog.learned().did_not_fit(&model, "cuda", 64);
            let known = || catalog.learned().get(&model, "cuda").padded_max;
            for name in ["m", "t"] {
                catalog.alter(name, &[("max_batch_rows", "7")]).unwrap();
                assert_eq!(known(), Some(32), "{name}");
            }
            catalog.create(stored, IfExists::Replace).unwrap();
            assert_eq!(known(), None);
        }
    }

    #[test]
    fn a_change_of_a_model_that_is_not_there_makes_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path().join("models")).unwrap();
        assert!(catalog.alter("m", &[("gpus", "1")]).is_err());
        assert!(catalog.rename("m", "n").is_err());
        assert!(!catalog.remove("m").unwrap());
        assert!(!dir.path().join("models").exists());
    }

    #[test]
    fn a_damaged_entry_concerns_its_model_only() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        catalog.create(entry("good"), IfExists::Fail).unwrap();
        fs::write(dir.path().join("bad.toml"), "comment = ").unwrap();
        assert_eq!(names(&catalog), ["good"]);
        let message = catalog.get("bad").unwrap_err().to_string();
        assert!(message.contains("bad.toml: damaged (") && !message.contains('\n'), "{message}");
        assert_eq!(catalog.damaged().unwrap().len(), 1);
        assert!(catalog.create(entry("bad"), IfExists::Replace).unwrap());
        assert_eq!(names(&catalog), ["bad", "good"]);
    }

    #[test]
    fn names_differ_in_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let long = "x".repeat(300);
        let longer = "x".repeat(301);
        let all = ["m", "M", "../m", "a/b", "a%2fb", ".m", "", "größe", "con.toml", &long, &longer];
        for name in all {
            assert!(catalog.create(entry(name), IfExists::Fail).unwrap(), "{name}");
        }
        for name in all {
            assert_eq!(catalog.get(name).unwrap().name(), name);
        }
        assert_eq!(names(&catalog).len(), all.len());
        assert_eq!(entry_files(dir.path()).unwrap().len(), all.len());
    }

    #[test]
    fn a_misspelt_name_gets_the_nearest_one() {
        let catalog = Catalog::in_memory();
        catalog.create(entry("minilm"), IfExists::Fail).unwrap();
        let message = catalog.get("minlm").unwrap_err().to_string();
        assert!(message.contains("did you mean 'minilm'?"), "{message}");
    }

    #[test]
    fn a_file_is_no_catalog() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Catalog::open(file.path()).unwrap_err().to_string().contains("not a folder"));
    }
}
