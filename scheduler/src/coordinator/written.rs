//! What is written down of jobs, if anything is: without a journal all of this does nothing.

use crate::coordinator::book::{JobDocument, JobLog};
use crate::coordinator::job::RunningJob;
use crate::coordinator::registry::Registry;
use crate::journal::JournalError;

/// So many records may be on their way to the disk when a task starts. A process that is killed loses what it has
/// appended in 20 ms and one `fsync`: far less, unless the disk is stuck.
const AHEAD_MAX: u32 = 4096;

impl Registry {
    /// Writes down a job before anybody is told that there is one, unless nobody could come back for it.
    ///
    /// # Errors
    /// If it could not be written.
    pub(crate) async fn begin(&self, id: &str, document: &JobDocument) -> Result<(), JournalError> {
        let outlives = !document.request.ends_with_scheduler;
        if let Some(book) = self.book.as_ref().filter(|_| outlives) {
            book.begin(id, document);
        }
        self.written().await
    }

    /// Where a job is written down, if it is.
    pub(crate) fn log_of(&self, id: &str) -> Option<JobLog> {
        self.book.as_ref()?.log(id)
    }

    /// Waits until what has happened is on the disk, if it is written down.
    ///
    /// # Errors
    /// If it could not be written.
    pub(crate) async fn written(&self) -> Result<(), JournalError> {
        match &self.book {
            Some(book) => book.written().await,
            None => Ok(()),
        }
    }

    /// Waits until so much of what has happened is on the disk, if it is written down, that tasks may start.
    ///
    /// A successor that does not know of one stops it, and gives its name to no other: each is a record, of those
    /// that are written together no more than [`AHEAD_MAX`] are on their way, and [so many](Self::take_over) names it
    /// passes over. What such a task has come to is lost. So starts do not wait for the disk, unless that is far behind.
    ///
    /// # Errors
    /// If it could not be written, or this scheduler has a successor.
    pub(crate) async fn nearly_written(&self) -> Result<(), JournalError> {
        match &self.book {
            Some(book) => book.nearly_written(u64::from(AHEAD_MAX)).await,
            None => Ok(()),
        }
    }

    /// Whether a job was begun by a scheduler before this one. Its tasks then get other names than that one may have
    /// given; before they start, it must be [on the disk](Self::written) that they do.
    pub(crate) fn take_over(&self, job: &mut RunningJob) -> bool {
        let is_found = self.book.as_ref().is_some_and(|book| book.has_found(job.id.as_ref()));
        if is_found {
            job.graph.pass_over(AHEAD_MAX, self.now());
            job.write_down();
        }
        is_found
    }

    /// Nobody asks for a job any more, and nothing of it runs.
    pub(crate) fn close(&self, id: &str) {
        if let Some(book) = &self.book {
            book.end(id);
        }
    }

    /// This process ends: a client that it loses now has not left, and finds its job again at a successor.
    pub(crate) fn ends(&self) {
        if let Some(book) = &self.book {
            book.closes();
        }
    }

    /// Whether a client that goes is only lost.
    pub(crate) fn is_ending(&self) -> bool {
        self.book.as_ref().is_some_and(|book| book.is_closing())
    }
}
