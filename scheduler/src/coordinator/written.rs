//! What is written down of jobs, if anything is: without a journal all of this does nothing.

use crate::coordinator::book::{JobDocument, JobLog};
use crate::coordinator::registry::Registry;
use crate::journal::JournalError;

impl Registry {
    /// Writes down a job before anybody is told that there is one.
    ///
    /// # Errors
    /// If it could not be written.
    pub(crate) async fn begin(&self, id: &str, document: &JobDocument) -> Result<(), JournalError> {
        if let Some(book) = &self.book {
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
