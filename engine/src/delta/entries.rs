//! What is written to a log, and what is known of it then.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use delta_kernel::{Engine, Version};
use deltalake::DeltaResult;
use deltalake::kernel::transaction::TransactionError;
use deltalake::logstore::{CommitOrBytes, LogStore, LogStoreConfig, LogStoreRef};
use object_store::{Error, ObjectStore};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use uuid::Uuid;

use super::inside::InPlace;

/// What became of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    /// None was given to the store.
    #[default]
    Untried,
    /// The store does not have it, and will not have it later.
    Refused,
    /// The store has not said; it may come to have it.
    Open,
    /// The store has it.
    Written,
}

/// Names of files as a log has them, by what they stand for. Readers compare them as they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(HashMap<String, BTreeSet<String>>);

impl Names {
    /// Adds a name of the log.
    pub(super) fn add(&mut self, name: &str) {
        let stands_for = percent_decode_str(name).decode_utf8_lossy().into_owned();
        self.0.entry(stands_for).or_default().insert(name.to_owned());
    }

    /// Actions in the form of a log, a line for each, with files removed under the names that it has added them by:
    /// `deltalake` encodes all names in its own way.
    fn restored(&self, actions: &str) -> Result<String, serde_json::Error> {
        let mut done = HashSet::new();
        let mut restored = Vec::new();
        for line in actions.lines() {
            if !line.starts_with(r#"{"remove""#) {
                restored.push(line.to_owned());
                continue;
            }
            let mut action: Value = serde_json::from_str(line)?;
            let name = action["remove"]["path"].as_str().unwrap_or_default();
            let stands_for = percent_decode_str(name).decode_utf8_lossy().into_owned();
            let Some(names) = self.0.get(&stands_for) else {
                restored.push(line.to_owned());
                continue;
            };
            if !done.insert(stands_for) {
                continue;
            }
            for name in names {
                action["remove"]["path"] = Value::String(name.clone());
                restored.push(action.to_string());
            }
        }
        Ok(restored.join("\n"))
    }
}

/// The log store of a table.
pub(super) struct Entries {
    inner: LogStoreRef,
    names: Names,
    outcome: Mutex<Outcome>,
}

impl Entries {
    /// To be read; and to be written, by files of new names.
    pub(super) fn new(inner: LogStoreRef) -> Self {
        Self::removing(inner, Names::default())
    }

    /// For one entry, which may remove files of these names.
    pub(super) fn removing(inner: LogStoreRef, names: Names) -> Self {
        Self { inner, names, outcome: Mutex::default() }
    }

    /// What became of the last entry.
    pub(super) fn outcome(&self) -> Outcome {
        *self.outcome.lock()
    }

    /// Files of this machine are there when a call has ended, or not at all.
    fn is_local(&self) -> bool {
        self.inner.config().location().scheme() == "file"
    }

    fn refused(&self, error: &TransactionError) -> Outcome {
        let may_come = match error {
            TransactionError::ObjectStore { source } => {
                matches!(source, Error::Generic { .. } | Error::JoinError { .. })
            }
            _ => false,
        };
        if may_come && !self.is_local() { Outcome::Open } else { Outcome::Refused }
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

#[async_trait]
impl LogStore for Entries {
    fn name(&self) -> String {
        self.inner.name()
    }

    async fn read_commit_entry(&self, version: Version) -> DeltaResult<Option<Bytes>> {
        self.inner.read_commit_entry(version).await
    }

    async fn write_commit_entry(
        &self,
        version: Version,
        actions: CommitOrBytes,
        operation: Uuid,
    ) -> Result<(), TransactionError> {
        let actions = match actions {
            CommitOrBytes::LogBytes(actions) => {
                let restored = self.names.restored(&String::from_utf8_lossy(&actions));
                let restored =
                    restored.map_err(|json_err| TransactionError::SerializeLogJson { json_err })?;
                CommitOrBytes::LogBytes(restored.into())
            }
            other @ CommitOrBytes::TmpCommit(_) => other,
        };
        // Also if nobody waits for the end of it.
        *self.outcome.lock() = Outcome::Open;
        let written = self.inner.write_commit_entry(version, actions, operation).await;
        *self.outcome.lock() = match &written {
            Ok(()) => Outcome::Written,
            Err(error) => self.refused(error),
        };
        written
    }

    async fn abort_commit_entry(
        &self,
        version: Version,
        actions: CommitOrBytes,
        operation: Uuid,
    ) -> Result<(), TransactionError> {
        self.inner.abort_commit_entry(version, actions, operation).await
    }

    async fn get_latest_version(&self, from: Version) -> DeltaResult<Version> {
        self.inner.get_latest_version(from).await
    }

    fn object_store(&self, operation: Option<Uuid>) -> Arc<dyn ObjectStore> {
        self.inner.object_store(operation)
    }

    fn root_object_store(&self, operation: Option<Uuid>) -> Arc<dyn ObjectStore> {
        self.inner.root_object_store(operation)
    }

    fn engine(&self, operation: Option<Uuid>) -> Arc<dyn Engine> {
        let table = self.config().location().clone();
        Arc::new(InPlace::new(self.inner.engine(operation), table))
    }

    fn config(&self) -> &LogStoreConfig {
        self.inner.config()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_files_have_the_names_that_the_log_has() {
        let mut names = Names::default();
        ["ä b", "%61", "c d", "c%20d", "x=50%25/e"].into_iter().for_each(|name| names.add(name));
        let removed = |path: &str| format!(r#"{{"remove":{{"path":"{path}"}}}}"#);
        let added = r#"{"add":{"path":"%C3%A4%20b"}}"#.to_owned();
        // As `deltalake` writes them, one of which it has twice.
        let written = ["%C3%A4%20b", "a", "unknown", "c%20d", "c%20d", "x=50%25/e"].map(removed);
        let actions = [std::slice::from_ref(&added), &written].concat().join("\n");
        let expected = ["ä b", "%61", "unknown", "c d", "c%20d", "x=50%25/e"].map(removed);
        let expected = [std::slice::from_ref(&added), &expected].concat().join("\n");
        assert_eq!(names.restored(&actions).unwrap(), expected);
    }
}
