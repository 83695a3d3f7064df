//! The journal as jobs see it: what each of them writes down, and what is found of them at the start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ballista_core::serde::scheduler::{
    ExecutorMetadata, ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use forebay_engine::{ErrorKind, RemoteError};
use parking_lot::Mutex;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::graph::{Millis, Snapshot, SnapshotError, Step};
use crate::journal::{self, Journal, JournalError, KeyRecords, Records};
use crate::protocol::messages::RunRequest;

/// Keys in the journal.
const JOB: &str = journal::NEEDED;
const WORKER: &str = "worker/";
const TIME: &str = "time";

/// What is written down first of a job.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct JobDocument {
    /// As its client sent it: the plan, the options, whose it is. With the job's id.
    #[prost(message, required, tag = "1")]
    pub(crate) request: RunRequest,
    /// Milliseconds since 1970 at which the scheduler had it.
    #[prost(uint64, tag = "2")]
    pub(crate) queued_ms: u64,
}

/// Where a worker is reached.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) grpc_port: u16,
}

/// Where a job writes down what happens to it.
#[derive(Clone, Debug)]
pub(crate) struct JobLog {
    journal: Journal,
    jobs: Arc<Mutex<BTreeSet<String>>>,
    id: String,
}

impl JobLog {
    /// The job was cut into stages.
    pub(crate) fn begin(&self, snapshot: &Snapshot) {
        let bytes = snapshot.to_bytes();
        #[expect(clippy::expect_used, reason = "numbers, words and lists of them")]
        let bytes = bytes.expect("a plan's stages have a form in bytes");
        self.write(|journal, key| journal.append(key, bytes));
    }

    /// Its graph has changed.
    pub(crate) fn step(&self, step: &Step) {
        let step = json(step);
        self.write(|journal, key| journal.append_step(key, step));
    }

    /// Nothing once the job has ended: tasks that were canceled report their ends after that, and what is written
    /// without its job could not be read.
    fn write(&self, write: impl FnOnce(&Journal, &str)) {
        // Held meanwhile, so that nothing comes behind the end.
        let jobs = self.jobs.lock();
        if jobs.contains(&self.id) {
            write(&self.journal, &format!("{JOB}{}", self.id));
        }
    }
}

/// What is written down of a job in few records: a snapshot in place of the one before it and the steps since. What it is
/// made from is in the journal, so nothing waits for it, and it is what a successor would come to.
pub(crate) fn fold(key: &str, stays: &[&[u8]], steps: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let id = key.strip_prefix(JOB)?;
    let [document, .., snapshot] = stays else { return None };
    match folded(snapshot, steps) {
        Ok(snapshot) => Some(vec![document.to_vec(), snapshot]),
        Err(problem) => {
            tracing::warn!(job = %id, "all that was written down of it stays in the journal: {problem}");
            None
        }
    }
}

fn folded(snapshot: &[u8], steps: &[&[u8]]) -> Result<Vec<u8>, SnapshotError> {
    let steps: Result<Vec<Step>, serde_json::Error> =
        steps.iter().map(|step| serde_json::from_slice(step)).collect();
    let steps = steps.map_err(|error| SnapshotError::Bytes(error.to_string()))?;
    Snapshot::from_bytes(snapshot)?.after(steps)?.to_bytes()
}

#[expect(clippy::expect_used, reason = "numbers, words and lists of them")]
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what is written down has a form in JSON")
}

/// A job that was written down and has not ended.
#[derive(Debug)]
pub(crate) struct FoundJob {
    pub(crate) id: String,
    pub(crate) document: JobDocument,
    /// Nothing if it was not cut into stages yet.
    pub(crate) begun: Option<Begun>,
}

/// What is known of a job that was cut into stages.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) snapshot: Snapshot,
    /// What has changed its graph since.
    pub(crate) steps: Vec<Step>,
}

/// What was found in a journal.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// In the order of their ids, which is that of their starts.
    pub(crate) jobs: Vec<FoundJob>,
    pub(crate) workers: Vec<ExecutorMetadata>,
    /// Milliseconds since 1970 at which graphs' time began.
    pub(crate) epoch_ms: Option<i64>,
}

impl Found {
    /// # Errors
    /// If a record says nothing that this version knows.
    pub(crate) fn read(records: Records) -> Result<Self, RemoteError> {
        let mut found = Self::default();
        for (key, records) in records {
            if let Some(id) = key.strip_prefix(JOB) {
                found.jobs.push(FoundJob::read(id, &records).ok_or_else(|| unread(&key))?);
                continue;
            }
            let last = records.stays.last().map(Vec::as_slice).unwrap_or_default();
            if key == TIME {
                found.epoch_ms = Some(serde_json::from_slice(last).map_err(|_| unread(&key))?);
            } else {
                let worker = serde_json::from_slice(last).map_err(|_| unread(&key))?;
                found.workers.push(metadata(worker));
            }
        }
        Ok(found)
    }

    /// The latest time that a graph knows.
    pub(crate) fn last_time(&self) -> Millis {
        let begun = self.jobs.iter().filter_map(|job| job.begun.as_ref());
        let times = begun
            .flat_map(|begun| begun.steps.iter().map(Step::time).chain([begun.snapshot.time()]));
        times.max().unwrap_or_default()
    }
}

impl FoundJob {
    fn read(id: &str, records: &KeyRecords) -> Option<Self> {
        let steps = records.steps.iter().map(|step| serde_json::from_slice(step).ok());
        let steps: Vec<_> = steps.collect::<Option<_>>()?;
        let (document, begun) = match records.stays.as_slice() {
            [document] if steps.is_empty() => (document, None),
            // One that could not be restored in time was cut again.
            [document, .., snapshot] => {
                (document, Some(Begun { snapshot: Snapshot::from_bytes(snapshot).ok()?, steps }))
            }
            _ => return None,
        };
        let document = JobDocument::decode(document.as_slice()).ok()?;
        Some(Self { id: id.to_owned(), document, begun })
    }
}

fn unread(key: &str) -> RemoteError {
    let message = format!(
        "the scheduler's journal has a record under '{key}' that this version does not understand; start the \
         version that wrote it until its jobs have ended, or give another --state"
    );
    RemoteError::new(ErrorKind::FailedPrecondition, message)
}

pub(super) fn metadata(address: Address) -> ExecutorMetadata {
    ExecutorMetadata {
        id: address.id,
        host: address.host,
        port: address.port,
        grpc_port: address.grpc_port,
        specification: ExecutorSpecification::default(),
        os_info: ExecutorOperatingSystemSpecification::default(),
    }
}

/// What jobs and workers are written down in.
#[derive(Debug)]
pub(crate) struct Book {
    journal: Journal,
    /// Jobs that are written down.
    jobs: Arc<Mutex<BTreeSet<String>>>,
    /// Those of them that were when this process began.
    found: BTreeSet<String>,
    is_closing: AtomicBool,
}

impl Book {
    /// What was `found` in the journal stays in it.
    pub(crate) fn new(journal: Journal, found: &Found) -> Self {
        let found: BTreeSet<_> = found.jobs.iter().map(|job| job.id.clone()).collect();
        let jobs = Arc::new(Mutex::new(found.clone()));
        Self { journal, jobs, found, is_closing: AtomicBool::new(false) }
    }

    /// Graphs' time begins at this moment, in milliseconds since 1970.
    pub(crate) fn time_begins(&self, epoch_ms: i64) {
        self.journal.append(TIME, json(&epoch_ms));
    }

    /// Writes down a job.
    pub(crate) fn begin(&self, id: &str, document: &JobDocument) {
        self.jobs.lock().insert(id.to_owned());
        self.journal.append(&format!("{JOB}{id}"), document.encode_to_vec());
    }

    /// Whether an earlier process has begun the job.
    pub(crate) fn has_found(&self, id: &str) -> bool {
        self.found.contains(id)
    }

    /// Where the job is written down, if it is.
    pub(crate) fn log(&self, id: &str) -> Option<JobLog> {
        let is_known = self.jobs.lock().contains(id);
        let (journal, jobs) = (self.journal.clone(), Arc::clone(&self.jobs));
        is_known.then(|| JobLog { journal, jobs, id: id.to_owned() })
    }

    /// Nobody will ask for the job again.
    pub(crate) fn end(&self, id: &str) {
        let mut jobs = self.jobs.lock();
        if jobs.remove(id) {
            self.journal.end(&format!("{JOB}{id}"));
        }
    }

    pub(crate) fn worker_came(&self, worker: &ExecutorMetadata) {
        let address = Address {
            id: worker.id.clone(),
            host: worker.host.clone(),
            port: worker.port,
            grpc_port: worker.grpc_port,
        };
        self.journal.append(&format!("{WORKER}{}", worker.id), json(&address));
    }

    /// Nothing lies there any more.
    pub(crate) fn worker_went(&self, id: &str) {
        self.journal.end(&format!("{WORKER}{id}"));
    }

    /// The process ends.
    pub(crate) fn closes(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Waits until all of that is on the disk.
    pub(crate) async fn written(&self) -> Result<(), JournalError> {
        self.journal.flushed().await
    }

    /// The same, of all but so many lines at the end.
    pub(crate) async fn nearly_written(&self, last: u64) -> Result<(), JournalError> {
        self.journal.flushed_but(last).await
    }
}
