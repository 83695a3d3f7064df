//! Documents of jobs that can be resumed, which outlive their server.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::config::ConfigOptions;
use forebay_engine::write::resume::Remains;
use forebay_scheduler::tables::rows::Epoch;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use tonic::{Code, Status};

use super::job::{About, Job};
use super::pins::Pins;
use crate::flight::access::users::Identity;

/// Documents of another form are left alone.
const FORMAT: u32 = 1;

/// The folder of the documents, in that of the state.
const FOLDER: &str = "jobs";

const EXTENSION: &str = "json";

/// Follows from how many cores there are, and is no other job's.
const OF_THE_MACHINE: &str = "datafusion.execution.target_partitions";

/// What is left of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::flight) struct Document {
    format: u32,
    pub(in crate::flight) id: String,
    /// As its client wrote it.
    pub(in crate::flight) statement: String,
    /// As people are shown it.
    pub(in crate::flight) name: String,
    /// Whose it is, where everyone is asked who he is.
    pub(in crate::flight) user: Option<String>,
    /// Since 1970.
    begun_ms: i64,
    /// All options of its session.
    pub(in crate::flight) options: BTreeMap<String, String>,
    /// Under which a Delta table takes what it writes once.
    pub(in crate::flight) write_id: String,
    pub(in crate::flight) remains: Remains,
    pub(in crate::flight) pins: Pins,
    ended: Option<Ended>,
}

/// Why a job did not finish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ended {
    is_canceled: bool,
    code: i32,
    error: String,
    at_ms: i64,
}

/// What is known of a job before it is saved.
pub(in crate::flight) struct Begun<'a> {
    pub(in crate::flight) id: &'a str,
    pub(in crate::flight) statement: &'a str,
    pub(in crate::flight) name: String,
    pub(in crate::flight) user: Option<&'a str>,
    pub(in crate::flight) begun_ms: i64,
    pub(in crate::flight) options: &'a ConfigOptions,
    pub(in crate::flight) write_id: String,
    pub(in crate::flight) remains: Remains,
    pub(in crate::flight) pins: Pins,
}

impl Document {
    /// Of a job that begins.
    pub(in crate::flight) fn new(begun: Begun<'_>) -> Self {
        Self {
            format: FORMAT,
            id: begun.id.to_owned(),
            statement: begun.statement.to_owned(),
            name: begun.name,
            user: begun.user.map(str::to_owned),
            begun_ms: begun.begun_ms,
            options: all(begun.options),
            write_id: begun.write_id,
            remains: begun.remains,
            pins: begun.pins,
            ended: None,
        }
    }

    /// The same job, which runs again and is made of this.
    pub(in crate::flight) fn begun_again(self, pins: Pins) -> Self {
        Self { pins, ended: None, ..self }
    }

    /// The job, which does not run.
    fn job(&self) -> Job {
        let about = About {
            id: self.id.clone(),
            who: Identity::of_nobody(self.user.as_deref().unwrap_or_default()),
            user: self.user.clone(),
            name: self.name.clone(),
            session: String::new(),
            is_resumable: true,
        };
        let ended = self.ended.as_ref().map(|ended| {
            let why = Status::new(Code::from(ended.code), ended.error.clone());
            (why, ended.is_canceled, ended.at_ms)
        });
        Job::of_earlier(about, self.begun_ms, ended)
    }
}

/// The documents of a server.
pub(in crate::flight) struct Saved {
    folder: PathBuf,
    /// The options of a session that has set none.
    defaults: BTreeMap<String, String>,
    /// Documents are changed one after the other: what is asked for later is what stays, whoever waits.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Saved {
    /// Those in the folder of a server's state, in which no other server is at work.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(in crate::flight) fn open(state: &Path, defaults: &ConfigOptions) -> Result<Self> {
        let folder = state.join(FOLDER);
        // Statements have values of their users.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| failed(&folder, "use", &error))?;
        Ok(Self { folder, defaults: all(defaults), turn: Arc::default() })
    }

    /// The jobs that did not finish. A document that cannot be read is left, and said in the log.
    ///
    /// # Errors
    /// If it cannot be said which there are.
    pub(super) fn jobs(&self) -> Result<Vec<Job>> {
        let failed = |error| failed(&self.folder, "read", &error);
        let mut jobs = vec![];
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|end| end != EXTENSION) {
                continue;
            }
            match read(&path) {
                Ok(document) => jobs.push(document.job()),
                Err(error) => {
                    tracing::warn!(
                        "a job is not known any more, and nothing of it is removed: {error}"
                    );
                }
            }
        }
        Ok(jobs)
    }

    /// The document of a job.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(in crate::flight) fn get(&self, id: &str) -> Result<Document> {
        read(&path_in(&self.folder, id))
    }

    /// The same, if there is one: a job may be canceled when it has just been committed.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(in crate::flight) fn find(&self, id: &str) -> Result<Option<Document>> {
        let path = path_in(&self.folder, id);
        let is_there = path.try_exists().map_err(|error| failed(&path, "read", &error))?;
        is_there.then(|| read(&path)).transpose()
    }

    /// Saves a job: afterwards it survives whatever ends the server.
    ///
    /// # Errors
    /// Those of the file system.
    pub(in crate::flight) async fn put(&self, document: &Document) -> Result<()> {
        let document = document.clone();
        self.change(move |folder| write(folder, &document)).await
    }

    /// Forgets a job: afterwards no loss of power brings it back.
    ///
    /// # Errors
    /// Those of the file system.
    pub(in crate::flight) async fn remove(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        let remove = move |folder: &Path| {
            let path = path_in(folder, &id);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => sync(folder),
            }
            .map_err(|error| failed(&path, "remove", &error))
        };
        self.change(remove).await
    }

    /// Saves how a job ends that does not finish. Nobody else knows yet that it ends: the document is its own.
    pub(super) async fn note_end(&self, id: &str, why: &Status, is_canceled: bool) {
        let (code, error) = (why.code() as i32, why.message().to_owned());
        let ended = Ended { is_canceled, code, error, at_ms: Epoch::now().0 };
        let of = id.to_owned();
        let note = move |folder: &Path| {
            let found = read(&path_in(folder, &of))?;
            write(folder, &Document { ended: Some(ended), ..found })
        };
        if let Err(error) = self.change(note).await {
            tracing::warn!(job = %id, "how it ended is not saved: {error}");
        }
    }

    /// Changes documents where nobody else waits for the disk.
    async fn change(&self, work: impl FnOnce(&Path) -> Result<()> + Send + 'static) -> Result<()> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let folder = self.folder.clone();
        let changed = SpawnedTask::spawn_blocking(move || {
            let _turn = turn;
            work(&folder)
        });
        changed.join().await.map_err(|error| DataFusionError::External(Box::new(error)))?
    }

    /// The options that a session gets for a job: those of the job, but for those that the session itself has
    /// set.
    pub(in crate::flight) fn options(
        &self,
        document: &Document,
        session: &ConfigOptions,
    ) -> Vec<(String, String)> {
        let session = all(session);
        let wanted = document.options.iter().filter(|(key, value)| {
            let now = session.get(*key);
            now == self.defaults.get(*key) && now != Some(*value)
        });
        wanted.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saved").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// All options that follow from nothing but what was said.
fn all(options: &ConfigOptions) -> BTreeMap<String, String> {
    let entries = options.entries().into_iter().filter(|entry| entry.key != OF_THE_MACHINE);
    entries.filter_map(|entry| Some((entry.key, entry.value?))).collect()
}

fn path_in(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.{EXTENSION}"))
}

fn write(folder: &Path, document: &Document) -> Result<()> {
    let path = path_in(folder, &document.id);
    let written = || -> std::io::Result<()> {
        let mut file = NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut file, document)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        sync(folder)
    };
    written().map_err(|error| failed(&path, "write", &error))
}

/// Lets the names in a folder survive a loss of power.
fn sync(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

fn read(path: &Path) -> Result<Document> {
    let text = fs::read(path).map_err(|error| failed(path, "read", &error))?;
    let document: Document = serde_json::from_slice(&text).map_err(|error| {
        exec_datafusion_err!("'{}' is damaged, or of another version: {error}", path.display())
    })?;
    match document.format {
        FORMAT => Ok(document),
        other => Err(exec_datafusion_err!(
            "'{}' has the format {other}, and this version of Forebay reads {FORMAT}",
            path.display()
        )),
    }
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> DataFusionError {
    exec_datafusion_err!("cannot {what} '{}': {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(id: &str) -> Document {
        let remains = r#"{"store": "file:///", "folder": "t/_forebay-0"}"#;
        Document::new(Begun {
            id,
            statement: "SUBMIT COPY t TO 'u/'",
            name: "COPY t TO 'u/'".to_owned(),
            user: Some("ann"),
            begun_ms: 7,
            options: &ConfigOptions::default(),
            write_id: format!("{id}-0"),
            remains: serde_json::from_str(remains).unwrap(),
            pins: Pins::default(),
        })
    }

    #[tokio::test]
    async fn jobs_survive_their_server_and_what_is_damaged_stays() {
        let state = tempfile::tempdir().unwrap();
        let open = || Saved::open(state.path(), &ConfigOptions::default()).unwrap();
        let saved = open();
        saved.put(&document("0A")).await.unwrap();
        saved.put(&document("0B")).await.unwrap();
        saved.put(&document("0C")).await.unwrap();
        saved.remove("0C").await.unwrap();
        saved.remove("0C").await.unwrap();
        assert_eq!(saved.find("0C").unwrap(), None);
        saved.note_end("0B", &Status::cancelled("enough"), true).await;
        let folder = state.path().join(FOLDER);
        fs::write(folder.join("0D.json"), "{").unwrap();
        let other = serde_json::to_string(&Document { format: 2, ..document("0E") }).unwrap();
        fs::write(folder.join("0E.json"), other).unwrap();
        let again = open();
        assert_eq!(again.get("0A").unwrap(), document("0A"));
        let mut states: Vec<_> =
            again.jobs().unwrap().iter().map(|job| (job.id().to_owned(), job.state())).collect();
        states.sort_unstable();
        assert_eq!(states, [("0A".to_owned(), "interrupted"), ("0B".to_owned(), "canceled")]);
        for (id, said) in [("0D", "is damaged"), ("0E", "has the format 2")] {
            let error = again.get(id).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(id), "{error}");
        }
        // What cannot be asked for is not the same as nothing.
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        for error in [again.jobs().err().unwrap(), again.find("0A").err().unwrap()] {
            assert!(error.to_string().contains("cannot read"), "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_asked_for_last_is_what_stays() {
        let state = tempfile::tempdir().unwrap();
        let saved = Saved::open(state.path(), &ConfigOptions::default()).unwrap();
        for _ in 0..20 {
            // Nobody waits for it any more when it has begun.
            let document = document("0A");
            let mut put = Box::pin(saved.put(&document));
            let _begun = futures::poll!(&mut put);
            drop(put);
            saved.remove("0A").await.unwrap();
            assert_eq!(saved.find("0A").unwrap(), None);
        }
    }

    #[test]
    fn a_job_keeps_its_options_unless_the_session_has_set_them() {
        let state = tempfile::tempdir().unwrap();
        let options = |set: &[(&str, &str)]| {
            let mut options = ConfigOptions::default();
            set.iter().for_each(|(key, value)| options.set(key, value).unwrap());
            options
        };
        let (zone, rows) = ("datafusion.execution.time_zone", "datafusion.execution.batch_size");
        let saved = Saved::open(state.path(), &options(&[(rows, "100")])).unwrap();
        let of_job = options(&[(zone, "CET"), (rows, "7"), (OF_THE_MACHINE, "3")]);
        let document = Document { options: all(&of_job), ..document("0A") };
        let get = |session: &[(&str, &str)]| saved.options(&document, &options(session));
        let zoned = (zone.to_owned(), "CET".to_owned());
        let sized = (rows.to_owned(), "7".to_owned());
        assert!(get(&[(rows, "100")]).contains(&sized));
        assert!(!get(&[(rows, "9")]).contains(&sized));
        assert!(!get(&[(OF_THE_MACHINE, "5")]).iter().any(|(key, _)| key == OF_THE_MACHINE));
        assert!(get(&[(rows, "100")]).contains(&zoned));
        assert!(!get(&[(zone, "UTC")]).contains(&zoned));
    }
}
