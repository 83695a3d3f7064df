//! What running models has taught about them: how large their batches should be on a device, and how fast they
//! are.
//!
//! Kept beside the catalog's entries, in `learned/`, one file per package and in it one table per
//! device type and precision. Losing it costs a few batches, so a file that cannot be read
//! or written is a warning in the log, not an error.
//!
//! - `learner.rs`: batches in, the size of the next ones out
//! - `search.rs`: what size is worth while
//! - `room.rs`: what size fits

mod learner;
mod room;
mod search;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::learner::Learner;
use self::search::Best;
use super::declaration::ModelDeclaration;
use crate::files;

pub use self::learner::{Observed, SearchRange, Taken};

/// Of the files.
const FORMAT: u32 = 1;

/// What is known of one package on one type of device in one precision. Padded sizes are in tokens, or in rows
/// for models without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lesson {
    /// The padded size of a batch that may fit into the device's memory. Set once a larger one did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padded_max: Option<u64>,
    /// The padded size of batches, where one is looked for that is worth while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// What batches of that size get through in a second, in padded size. Set once that size was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_rate: Option<f64>,
    /// Rows per second of computing on one replica, when it was measured last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_second: Option<f64>,
}

/// What the next batches should be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchAdvice {
    /// The padded size at most; `None` if nothing is known that they should not exceed.
    pub size: Option<u64>,
    /// Rows in a unit of padded size, lately.
    pub rows_per_unit: Option<f64>,
}

/// What is known, and what is still being learned.
#[derive(Clone, Debug, Default)]
struct Known {
    lesson: Lesson,
    /// What is in the file.
    kept: Lesson,
    /// Since the first batch of this process.
    learner: Option<Learner>,
}

impl Known {
    fn learner(&mut self, range: Option<SearchRange>) -> &mut Learner {
        let Lesson { padded_max, batch_size, batch_rate, .. } = self.lesson;
        let found = batch_size.zip(batch_rate).map(|(size, rate)| Best { size, rate });
        // Where an earlier process has come to.
        let range = range.map(|SearchRange { start, largest }| SearchRange {
            start: batch_size.unwrap_or(start).clamp(1, largest),
            largest,
        });
        self.learner.get_or_insert_with(|| Learner::new(range, padded_max, found))
    }
}

/// By device type and precision.
type Lessons = BTreeMap<String, Known>;

/// A file, as it is written.
#[derive(Debug, Deserialize, Serialize)]
struct LessonsText {
    format: u32,
    #[serde(default)]
    lessons: BTreeMap<String, Lesson>,
}

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
            lessons.get(&key(model, device_type)).map(|known| known.lesson).unwrap_or_default()
        })
    }

    /// All that is known of a model in its precision, by device type.
    pub fn all(&self, model: &ModelDeclaration) -> Vec<(String, Lesson)> {
        let suffix = format!("/{}", model.precision);
        let of_precision = |(key, known): (&String, &Known)| {
            Some((key.strip_suffix(&suffix)?.to_owned(), known.lesson))
        };
        self.with(model, |lessons| lessons.iter().filter_map(of_precision).collect())
    }

    /// What the next batches of a model should be on a type of device; a size is looked for in `range` if there
    /// is one.
    pub fn advice(
        &self,
        model: &ModelDeclaration,
        device_type: &str,
        range: Option<SearchRange>,
    ) -> BatchAdvice {
        self.with(model, |lessons| {
            let learner = lessons.entry(key(model, device_type)).or_default().learner(range);
            BatchAdvice { size: learner.size(), rows_per_unit: learner.rows_per_unit() }
        })
    }

    /// Learns from a batch.
    pub fn observe(
        &self,
        model: &ModelDeclaration,
        device_type: &str,
        range: Option<SearchRange>,
        batch: &Observed,
    ) {
        let is_news = self.with(model, |lessons| {
            let known = lessons.entry(key(model, device_type)).or_default();
            let learner = known.learner(range);
            let is_news = learner.observe(batch);
            let (padded_max, found) = (learner.room(), learner.found());
            let size_now = learner.size().filter(|_| learner.searches());
            known.lesson.padded_max = padded_max;
            known.lesson.batch_size = found.map(|best| best.size).or(size_now);
            known.lesson.batch_rate = found.map(|best| best.rate);
            is_news
        });
        if is_news {
            self.keep(model);
        }
    }

    /// One replica computed so many rows per second.
    pub fn measured(&self, model: &ModelDeclaration, device_type: &str, rows_per_second: f64) {
        self.with(model, |lessons| {
            let known = lessons.entry(key(model, device_type)).or_default();
            known.lesson.rows_per_second = Some(rows_per_second);
        });
        self.keep(model);
    }

    /// Forgets a package on all devices, and removes its file.
    pub fn forget(&self, content_hash: &str) {
        self.known.lock().insert(content_hash.to_owned(), Lessons::new());
        if let Some(dir) = &self.dir {
            fs::remove_file(path(dir, content_hash)).ok();
        }
    }

    fn with<T>(&self, model: &ModelDeclaration, use_it: impl FnOnce(&mut Lessons) -> T) -> T {
        let mut known = self.known.lock();
        let hash = &model.content_hash;
        if let Some(lessons) = known.get_mut(hash) {
            return use_it(lessons);
        }
        let lessons = self.dir.as_ref().map(|dir| load(&path(dir, hash))).unwrap_or_default();
        use_it(known.entry(hash.clone()).or_insert(lessons))
    }

    /// Writes what is not in the model's file yet.
    pub fn keep(&self, model: &ModelDeclaration) {
        let Some(dir) = &self.dir else { return };
        let lessons: Option<BTreeMap<String, Lesson>> = self.with(model, |lessons| {
            let is_new = lessons.values().any(|known| known.lesson != known.kept);
            lessons.values_mut().for_each(|known| known.kept = known.lesson);
            let all = lessons.iter().map(|(key, known)| (key.clone(), known.lesson));
            is_new.then(|| all.collect())
        });
        let Some(lessons) = lessons else { return };
        if let Err(error) = store(dir, &model.content_hash, lessons) {
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

/// Nothing if there is no file, or none that can be read, which is said.
fn load(path: &Path) -> Lessons {
    let Ok(text) = fs::read_to_string(path) else { return Lessons::new() };
    let lessons = parsed(&text).unwrap_or_else(|problem| {
        tracing::warn!("{}: ignored, and written anew: {problem}", path.display());
        BTreeMap::new()
    });
    let known = |(key, lesson)| (key, Known { lesson, kept: lesson, learner: None });
    lessons.into_iter().map(known).collect()
}

/// An error says on one line what is wrong.
fn parsed(text: &str) -> Result<BTreeMap<String, Lesson>, String> {
    let file: LessonsText =
        toml::from_str(text).map_err(|error| error.message().trim().replace('\n', ", "))?;
    match file.format {
        FORMAT => Ok(file.lessons),
        other => Err(format!("format is {other}, this version reads format {FORMAT}")),
    }
}

fn store(dir: &Path, content_hash: &str, lessons: BTreeMap<String, Lesson>) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    let text = toml::to_string(&LessonsText { format: FORMAT, lessons });
    files::replace(&path(dir, content_hash), text.map_err(std::io::Error::other)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixture::{Folder, open, tensors};

    fn model() -> ModelDeclaration {
        let runtime = "kind = \"emulated\"\nservice_ms = 1";
        let folder = Folder::new(&tensors(&[("a", "INT")], &[("o", "INT")], runtime), &[]);
        open(folder.path()).0
    }

    fn batch(rows: u64, busy: Option<Duration>) -> Observed {
        Observed { rows, padded: rows, busy, memory: None }
    }

    const RANGE: Option<SearchRange> = Some(SearchRange { start: 4, largest: 8 });

    #[test]
    fn lessons_survive_and_are_kept_apart_by_device_and_precision() {
        let dir = tempfile::tempdir().unwrap();
        let learned = Learned::in_folder(dir.path().join("learned"));
        let model = model();
        learned.observe(&model, "cuda", None, &batch(64, None));
        learned.observe(&model, "cuda", None, &batch(100, None));
        learned.measured(&model, "cpu", 12.5);
        // Twice as large and as fast: what is found is the largest.
        for rows in [4, 4, 4, 8, 8, 8] {
            learned.observe(&model, "H200", RANGE, &batch(rows, Some(Duration::from_millis(1))));
        }
        let again = Learned::in_folder(dir.path().join("learned"));
        assert_eq!(again.get(&model, "cuda").padded_max, Some(32));
        assert_eq!(again.get(&model, "cpu").rows_per_second, Some(12.5));
        let found = again.get(&model, "H200");
        assert_eq!((found.batch_size, found.batch_rate), (Some(8), Some(8000.0)));
        assert_eq!(again.advice(&model, "H200", RANGE).size, Some(8), "without another search");
        assert_eq!(again.advice(&model, "H100", RANGE).size, Some(4));
        assert_eq!(again.all(&model).len(), 4);
        // Not found yet: the search goes on where it was.
        for rows in [4, 4, 4] {
            again.observe(&model, "H100", RANGE, &batch(rows, Some(Duration::from_millis(1))));
        }
        again.measured(&model, "H100", 1.0);
        let later = Learned::in_folder(dir.path().join("learned"));
        assert_eq!(later.get(&model, "H100").batch_rate, None);
        assert_eq!(later.advice(&model, "H100", RANGE).size, Some(8));
        let half = ModelDeclaration { precision: crate::model::Precision::Fp16, ..model.clone() };
        assert_eq!(again.get(&half, "cuda"), Lesson::default());
        again.forget(&model.content_hash);
        let after = Learned::in_folder(dir.path().join("learned"));
        assert_eq!(after.all(&model), []);
    }

    #[test]
    fn a_damaged_file_is_as_if_nothing_was_learned_and_is_written_anew() {
        let model = model();
        for (damaged, problem) in [
            ("= nonsense", ""),
            ("[lessons]", "missing field `format`"),
            ("format = 2", "format is 2, this version reads format 1"),
            ("format = 1\n[lessons.cpu]\npadded_max = -1", "invalid value: integer `-1`"),
        ] {
            let said = parsed(damaged).unwrap_err();
            assert!(said.contains(problem) && !said.contains('\n'), "{said}");
            let dir = tempfile::tempdir().unwrap();
            let path = path(dir.path(), &model.content_hash);
            fs::write(&path, damaged).unwrap();
            let learned = Learned::in_folder(dir.path().to_owned());
            assert_eq!(learned.get(&model, "cpu"), Lesson::default());
            learned.measured(&model, "cpu", 1.0);
            assert_eq!(load(&path).len(), 1);
        }
    }

    #[test]
    fn what_no_release_would_write_does_no_harm() {
        let text =
            "format = 1\n[lessons.'cuda/fp32']\npadded_max = 0\nbatch_size = 0\nbatch_rate = nan";
        let dir = tempfile::tempdir().unwrap();
        let model = model();
        fs::write(path(dir.path(), &model.content_hash), text).unwrap();
        let learned = Learned::in_folder(dir.path().to_owned());
        assert_eq!(learned.advice(&model, "cuda", RANGE).size, Some(1));
        for _ in 0..9 {
            learned.observe(&model, "cuda", RANGE, &batch(1, Some(Duration::from_millis(1))));
        }
        assert!(learned.advice(&model, "cuda", RANGE).size > Some(1), "larger ones are tried");
    }
}
