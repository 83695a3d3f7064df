//! What running models has taught about them: the batch that fits into a device, and how fast they
//! are.
//!
//! Kept beside the catalog's entries, in `learned/`, one file per package and in it one table per
//! device type and precision. Losing it costs a few failed batches, so a file that cannot be read
//! or written is a warning in the log, not an error.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::declaration::ModelDeclaration;
use crate::files;

/// What is known of one package on one type of device in one precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lesson {
    /// The padded size of a batch that may fit into the device's memory: in tokens, or in rows for
    /// models without tokens. Set once a larger one did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padded_max: Option<u64>,
    /// Rows per second of computing on one replica, when it was measured last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_second: Option<f64>,
}

type Lessons = BTreeMap<String, Lesson>;

/// The lessons of all packages.
#[derive(Debug, Default)]
pub struct Learned {
    /// `None`: forgotten with this value.
    dir: Option<PathBuf>,
    /// By content hash.
    known: Mutex<HashMap<String, Lessons>>,
}

impl Learned {
    /// Kept in a folder, which is created when the first lesson is.
    pub(super) fn in_folder(dir: PathBuf) -> Self {
        Self { dir: Some(dir), known: Mutex::default() }
    }

    /// The folder, which may not be there yet; `None` if nothing is kept.
    pub fn folder(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// What is known of a model on a type of device.
    pub fn get(&self, model: &ModelDeclaration, device_type: &str) -> Lesson {
        self.with(model, |lessons| {
            lessons.get(&key(model, device_type)).copied().unwrap_or_default()
        })
    }

    /// All that is known of a model in its precision, by device type.
    pub fn all(&self, model: &ModelDeclaration) -> Vec<(String, Lesson)> {
        let suffix = format!("/{}", model.precision);
        let of_precision = |(key, lesson): (&String, &Lesson)| {
            Some((key.strip_suffix(&suffix)?.to_owned(), *lesson))
        };
        self.with(model, |lessons| lessons.iter().filter_map(of_precision).collect())
    }

    /// A batch of this padded size did not fit: half of it is tried from now on.
    pub fn did_not_fit(&self, model: &ModelDeclaration, device_type: &str, padded: u64) {
        let half = (padded / 2).max(1);
        self.update(model, device_type, |lesson| {
            lesson.padded_max = Some(lesson.padded_max.map_or(half, |known| known.min(half)));
        });
    }

    /// One replica computed so many rows per second.
    pub fn measured(&self, model: &ModelDeclaration, device_type: &str, rows_per_second: f64) {
        self.update(model, device_type, |lesson| lesson.rows_per_second = Some(rows_per_second));
    }

    /// Forgets a package on all devices, and removes its file.
    pub fn forget(&self, content_hash: &str) {
        self.known.lock().insert(content_hash.to_owned(), Lessons::new());
        if let Some(dir) = &self.dir {
            fs::remove_file(path(dir, content_hash)).ok();
        }
    }

    fn with<T>(&self, model: &ModelDeclaration, read: impl FnOnce(&mut Lessons) -> T) -> T {
        let mut known = self.known.lock();
        let hash = &model.content_hash;
        let load = || self.dir.as_ref().map(|dir| load(&path(dir, hash))).unwrap_or_default();
        read(known.entry(hash.clone()).or_insert_with(load))
    }

    fn update(
        &self,
        model: &ModelDeclaration,
        device_type: &str,
        change: impl FnOnce(&mut Lesson),
    ) {
        let lessons = self.with(model, |lessons| {
            change(lessons.entry(key(model, device_type)).or_default());
            lessons.clone()
        });
        let Some(dir) = &self.dir else { return };
        if let Err(error) = store(dir, &model.content_hash, &lessons) {
            tracing::warn!("{}: what was learned cannot be kept: {error}", dir.display());
        }
    }
}

fn key(model: &ModelDeclaration, device_type: &str) -> String {
    format!("{device_type}/{}", model.precision)
}

fn path(dir: &Path, content_hash: &str) -> PathBuf {
    dir.join(format!("{content_hash}.toml"))
}

fn load(path: &Path) -> Lessons {
    let Ok(text) = fs::read_to_string(path) else { return Lessons::new() };
    toml::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!("{}: ignored: {error}", path.display());
        Lessons::new()
    })
}

fn store(dir: &Path, content_hash: &str, lessons: &Lessons) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let text = toml::to_string(lessons).map_err(std::io::Error::other)?;
    files::replace(&path(dir, content_hash), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Folder, open, tensors};

    fn model() -> ModelDeclaration {
        let runtime = "kind = \"emulated\"\nservice_ms = 1";
        let folder = Folder::new(&tensors(&[("a", "INT")], &[("o", "INT")], runtime), &[]);
        open(folder.path()).0
    }

    #[test]
    fn lessons_survive_and_are_kept_apart_by_device_and_precision() {
        let dir = tempfile::tempdir().unwrap();
        let learned = Learned::in_folder(dir.path().join("learned"));
        let model = model();
        learned.did_not_fit(&model, "cuda", 64);
        learned.did_not_fit(&model, "cuda", 100);
        learned.measured(&model, "cpu", 12.5);
        let again = Learned::in_folder(dir.path().join("learned"));
        assert_eq!(again.get(&model, "cuda").padded_max, Some(32));
        assert_eq!(again.get(&model, "cpu").rows_per_second, Some(12.5));
        assert_eq!(again.all(&model).len(), 2);
        let half = ModelDeclaration { precision: crate::model::Precision::Fp16, ..model.clone() };
        assert_eq!(again.get(&half, "cuda"), Lesson::default());
        again.forget(&model.content_hash);
        let after = Learned::in_folder(dir.path().join("learned"));
        assert_eq!(after.all(&model), []);
    }

    #[test]
    fn a_damaged_file_is_as_if_nothing_was_learned() {
        let dir = tempfile::tempdir().unwrap();
        let model = model();
        fs::write(path(dir.path(), &model.content_hash), "= nonsense").unwrap();
        let learned = Learned::in_folder(dir.path().to_owned());
        assert_eq!(learned.get(&model, "cpu"), Lesson::default());
        learned.measured(&model, "cpu", 1.0);
        assert_eq!(load(&path(dir.path(), &model.content_hash)).len(), 1);
    }
}
