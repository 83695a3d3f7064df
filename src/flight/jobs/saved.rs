//! Documents of jobs that can be resumed, which outlive their server.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::config::ConfigOptions;
use forebay_engine::write::resume::Remains;
use forebay_scheduler::journal::{Documents, Hold};
use forebay_scheduler::tables::rows::Epoch;
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use super::job::{About, Job};
use super::pins::Pins;
use crate::flight::access::users::Identity;

/// Documents of another form are left alone.
const FORMAT: u32 = 1;

/// Where the documents are in the state.
const FOLDER: &str = "jobs";

const EXTENSION: &str = ".json";

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
    documents: Arc<Documents>,
    /// What keeps other servers from them.
    hold: Option<Hold>,
    /// The options of a session that has set none.
    defaults: BTreeMap<String, String>,
    /// Documents are changed one after the other: what is asked for later is what stays, whoever waits.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Saved {
    /// Those in the state of a server.
    ///
    /// # Errors
    /// If it cannot be used.
    pub(in crate::flight) fn open(hold: &Hold, defaults: &ConfigOptions) -> Result<Self> {
        let documents = hold.documents(FOLDER).map_err(|error| {
            exec_datafusion_err!("cannot use '{FOLDER}' in the state of this server: {error}")
        })?;
        Ok(Self { hold: Some(hold.clone()), ..Self::of(documents, defaults) })
    }

    /// The same of these documents, which nobody else has.
    pub(super) fn of(documents: Documents, defaults: &ConfigOptions) -> Self {
        let documents = Arc::new(documents);
        Self { documents, hold: None, defaults: all(defaults), turn: Arc::default() }
    }

    /// The jobs that did not finish. A document that cannot be read is left, and said in the log.
    ///
    /// # Errors
    /// If it cannot be said which there are.
    pub(super) async fn jobs(&self) -> Result<Vec<Job>> {
        self.look(|documents| {
            let names = documents.names().map_err(|error| failed(documents, "", "read", &error))?;
            let mut jobs = vec![];
            for name in names {
                let Some(id) = name.strip_suffix(EXTENSION) else { continue };
                match read(documents, id) {
                    Ok(document) => jobs.extend(document.map(|document| document.job())),
                    Err(error) => {
                        tracing::warn!(
                            "a job is not known any more, and nothing of it is removed: {error}"
                        );
                    }
                }
            }
            Ok(jobs)
        })
        .await
    }

    /// The document of a job.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(in crate::flight) async fn get(&self, id: &str) -> Result<Document> {
        let found = self.find(id).await?;
        found.ok_or_else(|| exec_datafusion_err!("'{}' is gone", self.documents.path(&name_of(id))))
    }

    /// The same, if there is one: a job may be canceled when it has just been committed.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(in crate::flight) async fn find(&self, id: &str) -> Result<Option<Document>> {
        let id = id.to_owned();
        self.look(move |documents| read(documents, &id)).await
    }

    /// Saves a job: afterwards it survives whatever ends the server.
    ///
    /// # Errors
    /// Those of the disk, and if another server has taken over.
    pub(in crate::flight) async fn put(&self, document: &Document) -> Result<()> {
        let document = document.clone();
        self.change(move |documents| write(documents, &document)).await
    }

    /// Forgets a job: afterwards no loss of power brings it back.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub(in crate::flight) async fn remove(&self, id: &str) -> Result<()> {
        let name = name_of(id);
        let remove = move |documents: &Documents| {
            documents.remove(&name).map_err(|error| failed(documents, &name, "remove", &error))
        };
        self.change(remove).await
    }

    /// Saves how a job ends that does not finish. Nobody else knows yet that it ends: the document is its own.
    pub(super) async fn note_end(&self, id: &str, why: &Status, is_canceled: bool) {
        let (code, error) = (why.code() as i32, why.message().to_owned());
        let ended = Ended { is_canceled, code, error, at_ms: Epoch::now().0 };
        let of = id.to_owned();
        let note = move |documents: &Documents| match read(documents, &of)? {
            Some(found) => write(documents, &Document { ended: Some(ended), ..found }),
            None => Ok(()),
        };
        if let Err(error) = self.change(note).await {
            tracing::warn!(job = %id, "how it ended is not saved: {error}");
        }
    }

    /// Changes documents, if no other server may do that by now.
    async fn change(
        &self,
        work: impl FnOnce(&Documents) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        if let Some(hold) = &self.hold {
            hold.check().await?;
        }
        let change = move |documents: &Documents| {
            let _turn = turn;
            work(documents)
        };
        self.look(change).await
    }

    /// Reads documents where nobody else waits for the disk.
    async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Documents) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let documents = Arc::clone(&self.documents);
        let done = SpawnedTask::spawn_blocking(move || work(&documents));
        done.join().await.map_err(|error| DataFusionError::External(Box::new(error)))?
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
        f.debug_struct("Saved").field("documents", &self.documents).finish_non_exhaustive()
    }
}

/// All options that follow from nothing but what was said.
fn all(options: &ConfigOptions) -> BTreeMap<String, String> {
    let entries = options.entries().into_iter().filter(|entry| entry.key != OF_THE_MACHINE);
    entries.filter_map(|entry| Some((entry.key, entry.value?))).collect()
}

fn name_of(id: &str) -> String {
    format!("{id}{EXTENSION}")
}

fn write(documents: &Documents, document: &Document) -> Result<()> {
    let name = name_of(&document.id);
    let text = serde_json::to_vec_pretty(document).map_err(std::io::Error::from);
    let written = text.and_then(|text| documents.put(&name, &text));
    written.map_err(|error| failed(documents, &name, "write", &error))
}

fn read(documents: &Documents, id: &str) -> Result<Option<Document>> {
    let (name, path) = (name_of(id), documents.path(&name_of(id)));
    let found = documents.read(&name).map_err(|error| failed(documents, &name, "read", &error))?;
    let Some(text) = found else { return Ok(None) };
    let document: Document = serde_json::from_slice(&text).map_err(|error| {
        exec_datafusion_err!("'{path}' is damaged, or of another version: {error}")
    })?;
    match document.format {
        FORMAT => Ok(Some(document)),
        other => Err(exec_datafusion_err!(
            "'{path}' has the format {other}, and this version of Forebay reads {FORMAT}"
        )),
    }
}

fn failed(
    documents: &Documents,
    name: &str,
    what: &str,
    error: &std::io::Error,
) -> DataFusionError {
    exec_datafusion_err!("cannot {what} '{}': {error}", documents.path(name))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use forebay_scheduler::journal::State;

    use super::*;

    fn saved(state: &Path, defaults: &ConfigOptions) -> Saved {
        Saved::of(Documents::in_folder(state.join(FOLDER)).unwrap(), defaults)
    }

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
        let open = || saved(state.path(), &ConfigOptions::default());
        let saved = open();
        saved.put(&document("0A")).await.unwrap();
        saved.put(&document("0B")).await.unwrap();
        saved.put(&document("0C")).await.unwrap();
        saved.remove("0C").await.unwrap();
        saved.remove("0C").await.unwrap();
        assert_eq!(saved.find("0C").await.unwrap(), None);
        saved.note_end("0B", &Status::cancelled("enough"), true).await;
        let folder = state.path().join(FOLDER);
        fs::write(folder.join("0D.json"), "{").unwrap();
        let other = serde_json::to_string(&Document { format: 2, ..document("0E") }).unwrap();
        fs::write(folder.join("0E.json"), other).unwrap();
        let again = open();
        assert_eq!(again.get("0A").await.unwrap(), document("0A"));
        let mut states: Vec<_> = again
            .jobs()
            .await
            .unwrap()
            .iter()
            .map(|job| (job.id().to_owned(), job.state()))
            .collect();
        states.sort_unstable();
        assert_eq!(states, [("0A".to_owned(), "interrupted"), ("0B".to_owned(), "canceled")]);
        for (id, said) in [("0D", "is damaged"), ("0E", "has the format 2")] {
            let error = again.get(id).await.unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(id), "{error}");
        }
        // What cannot be asked for is not the same as nothing.
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        for error in [again.jobs().await.err().unwrap(), again.find("0A").await.unwrap_err()] {
            assert!(error.to_string().contains("cannot read"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_server_that_was_followed_changes_nothing_more() {
        let state = tempfile::tempdir().unwrap();
        let take = || async { State::in_folder(state.path()).take().await.unwrap() };
        let first = take().await;
        let defaults = ConfigOptions::default();
        let saved = Saved::open(&first, &defaults).unwrap();
        saved.put(&document("0A")).await.unwrap();
        first.let_go().await;
        let second = take().await;
        for refused in [saved.put(&document("0B")).await, saved.remove("0A").await] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("has let go the state in"), "{refused}");
        }
        saved.note_end("0A", &Status::cancelled("enough"), true).await;
        let after = Saved::open(&second, &defaults).unwrap();
        assert_eq!(after.find("0A").await.unwrap(), Some(document("0A")));
        assert_eq!(after.find("0B").await.unwrap(), None);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_asked_for_last_is_what_stays() {
        let state = tempfile::tempdir().unwrap();
        let saved = saved(state.path(), &ConfigOptions::default());
        for _ in 0..20 {
            // Nobody waits for it any more when it has begun.
            let document = document("0A");
            let mut put = Box::pin(saved.put(&document));
            let _begun = futures::poll!(&mut put);
            drop(put);
            saved.remove("0A").await.unwrap();
            assert_eq!(saved.find("0A").await.unwrap(), None);
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
        let saved = saved(state.path(), &options(&[(rows, "100")]));
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
