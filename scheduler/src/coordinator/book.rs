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

use crate::graph::Step;
use crate::journal::{self, Journal, JournalError, Records};
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

/// What is written down of a job after that.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// It was cut into stages, in the way that has this checksum.
    Cut(u32),
    /// Its graph changed.
    Step(Step),
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
    /// Nothing once the job has ended: tasks that were canceled report their ends after that, and a line without
    /// its job could not be read.
    pub(crate) fn write(&self, line: &Line) {
        let line = json(line);
        // Held meanwhile, so that nothing comes behind the end.
        let jobs = self.jobs.lock();
        if jobs.contains(&self.id) {
            self.journal.append(&format!("{JOB}{}", self.id), line);
        }
    }
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
    pub(crate) lines: Vec<Line>,
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
            let last = records.last().map(Vec::as_slice).unwrap_or_default();
            if key == TIME {
                found.epoch_ms = Some(serde_json::from_slice(last).map_err(|_| unread(&key))?);
            } else {
                let worker = serde_json::from_slice(last).map_err(|_| unread(&key))?;
                found.workers.push(metadata(worker));
            }
        }
        Ok(found)
    }

    /// The latest time that a step has.
    pub(crate) fn last_time(&self) -> u64 {
        let lines = self.jobs.iter().flat_map(|job| &job.lines);
        let times = lines.filter_map(|line| match line {
            Line::Step(step) => Some(step.time().0),
            Line::Cut(_) => None,
        });
        times.max().unwrap_or(0)
    }
}

impl FoundJob {
    fn read(id: &str, records: &[Vec<u8>]) -> Option<Self> {
        let (document, lines) = records.split_first()?;
        let lines = lines.iter().map(|line| serde_json::from_slice(line).ok());
        Some(Self {
            id: id.to_owned(),
            document: JobDocument::decode(document.as_slice()).ok()?,
            lines: lines.collect::<Option<_>>()?,
        })
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
