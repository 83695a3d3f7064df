//! The commit of new files to the log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::AsArray;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use deltalake::kernel::transaction::{CommitBuilder, CommitProperties, TableReference};
use deltalake::kernel::{Action, Add, Transaction as Txn};
use deltalake::logstore::LogStoreRef;
use deltalake::protocol::{DeltaOperation, SaveMode};
use futures::TryStreamExt;
use object_store::path::{Path, PathPart};
use percent_encoding::percent_decode_str;

use super::entries::{Entries, Names, Outcome};
use super::error::DeltaError;
use super::log::Log;
use super::snapshot::Snapshot;
use super::types::NULL_FOLDER;

/// The one version of a transaction of ours: each has an id of its own.
const VERSION: i64 = 1;

/// A file that is to count.
#[derive(Clone, Debug)]
pub(crate) struct NewFile {
    /// Below the table's folder.
    pub(crate) path: Path,
    /// The same by the values of partition columns.
    pub(crate) folder: Path,
    pub(crate) bytes: u64,
    /// As the protocol has them.
    pub(crate) stats: Option<String>,
}

/// Why a commit failed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// Nothing counts that did not before.
    Undone(DataFusionError),
    /// The store does not say.
    Unknown(DataFusionError),
}

/// A write to a table that has begun. Of transactions with one id the log takes one.
#[derive(Debug)]
pub(crate) struct Transaction {
    log: Log,
    snapshot: Snapshot,
    id: String,
    overwrites: bool,
}

impl Transaction {
    /// One that knows the table at `version`: what others have committed since is looked at by the commit.
    ///
    /// # Errors
    /// If the table cannot be read or written.
    pub(crate) async fn begin(
        log: Log,
        version: u64,
        id: String,
        overwrites: bool,
    ) -> Result<Self> {
        let snapshot = log.snapshot(Some(version)).await?;
        snapshot.check_writable()?;
        Ok(Self { log, snapshot, id, overwrites })
    }

    /// Whether the log has it already.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub(crate) async fn is_done(&self) -> Result<bool> {
        self.log.has_taken(&self.id).await
    }

    /// What the log knows it by.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Makes these files count, and with `INSERT OVERWRITE` no others.
    pub(crate) async fn commit(&self, files: &[NewFile]) -> Result<(), CommitError> {
        let partitions = self.snapshot.split_schema().1;
        let added = files.iter().map(|file| self.added(file, &partitions));
        let added: Vec<Action> = added.collect::<Result<_>>().map_err(CommitError::Undone)?;
        let names = self.names().await.map_err(CommitError::Undone)?;
        let entries = Arc::new(Entries::removing(Arc::clone(self.log.store()), names));
        let store: LogStoreRef = Arc::clone(&entries) as _;
        let (snapshot, overwrites) = (Arc::clone(self.snapshot.inner()), self.overwrites);
        let operation = self.operation();
        let transaction = Txn::new_with_last_update(&self.id, VERSION, Some(now()));
        let commit = async move {
            let mut actions = added;
            if overwrites {
                let files = snapshot.try_log_data()?;
                actions.extend(files.iter().map(|file| Action::Remove(file.remove_action(true))));
            }
            if actions.is_empty() {
                return Ok(());
            }
            let properties = CommitProperties::default().with_application_transaction(transaction);
            let table: &dyn TableReference = snapshot.as_ref();
            let commit = CommitBuilder::from(properties).with_actions(actions);
            commit.build(Some(table), store, operation).await.map(drop)
        };
        match self.log.guarded(commit).await {
            Ok(()) => Ok(()),
            Err(error) => self.after(entries.outcome(), error).await,
        }
    }

    /// Has the log take it without any file, so that it never takes it with some: an entry that a store has not
    /// answered to may come yet. Says whether it has; else the log has taken it before.
    ///
    /// # Errors
    /// If nobody knows.
    pub(crate) async fn close(&self) -> Result<bool> {
        let entries = Arc::new(Entries::new(Arc::clone(self.log.store())));
        let store: LogStoreRef = Arc::clone(&entries) as _;
        let (snapshot, operation) = (Arc::clone(self.snapshot.inner()), self.operation());
        let transaction = Txn::new_with_last_update(&self.id, VERSION, Some(now()));
        let properties = CommitProperties::default().with_application_transaction(transaction);
        let close = async move {
            let table: &dyn TableReference = snapshot.as_ref();
            CommitBuilder::from(properties).build(Some(table), store, operation).await.map(drop)
        };
        match (self.log.guarded(close).await, entries.outcome()) {
            (Ok(()), _) | (_, Outcome::Written) => Ok(true),
            // It may be this one that it has.
            (Err(error), Outcome::Open) => Err(error),
            (Err(error), _) => {
                if self.is_done().await? {
                    Ok(false)
                } else {
                    Err(error)
                }
            }
        }
    }

    /// The names of the files that are to count no more.
    async fn names(&self) -> Result<Names> {
        let mut names = Names::default();
        if !self.overwrites {
            return Ok(names);
        }
        let (store, version) = (Arc::clone(self.log.store()), self.snapshot.version());
        let read = async move {
            let files = deltalake::kernel::Snapshot::try_new(store.as_ref(), Some(version)).await?;
            files.files(store.as_ref(), None).try_collect::<Vec<_>>().await
        };
        for batch in self.log.guarded(read).await? {
            let found = batch.column_by_name("path").and_then(|paths| paths.as_string_opt::<i32>());
            let found = found.ok_or_else(|| {
                internal_datafusion_err!("files without names: {:?}", batch.schema())
            })?;
            found.iter().flatten().for_each(|name| names.add(name));
        }
        Ok(names)
    }

    /// What a commit that failed has come to. A store may have done what it says it has not, and what comes after
    /// a commit may fail alone.
    async fn after(&self, outcome: Outcome, error: DataFusionError) -> Result<(), CommitError> {
        if outcome == Outcome::Written {
            return Ok(());
        }
        match (self.is_done().await, outcome) {
            (Ok(true), _) => Ok(()),
            (Ok(false), Outcome::Refused) | (_, Outcome::Untried) => {
                Err(CommitError::Undone(error))
            }
            _ => {
                let (table, transaction) = (self.log.table().to_owned(), self.id.clone());
                let problem = error.strip_backtrace();
                Err(CommitError::Unknown(
                    DeltaError::Unknown { table, transaction, problem }.into(),
                ))
            }
        }
    }

    fn operation(&self) -> DeltaOperation {
        let partitioned_by = self.snapshot.partitioned_by();
        DeltaOperation::Write {
            mode: if self.overwrites { SaveMode::Overwrite } else { SaveMode::Append },
            partition_by: (!partitioned_by.is_empty()).then_some(partitioned_by),
            predicate: None,
        }
    }

    fn added(&self, file: &NewFile, partitions: &[FieldRef]) -> Result<Action> {
        let size = i64::try_from(file.bytes)
            .map_err(|_| internal_datafusion_err!("'{}' has {} bytes", file.path, file.bytes))?;
        Ok(Action::Add(Add {
            path: file.path.to_string(),
            partition_values: partition_values(&file.folder, partitions)?,
            size,
            modification_time: now(),
            data_change: true,
            stats: file.stats.clone(),
            ..Add::default()
        }))
    }
}

/// Milliseconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The values that name a folder, as the log has them.
fn partition_values(
    folder: &Path,
    partitions: &[FieldRef],
) -> Result<HashMap<String, Option<String>>> {
    let unexpected = || internal_datafusion_err!("'{folder}' is not named by {partitions:?}");
    let parts: Vec<PathPart<'_>> = folder.parts().collect();
    if parts.len() != partitions.len() {
        return Err(unexpected());
    }
    let value = |(field, part): (&FieldRef, &PathPart<'_>)| {
        let name = PathPart::from(field.name().as_str());
        let value =
            part.as_ref().strip_prefix(name.as_ref()).and_then(|rest| rest.strip_prefix('='));
        let value = percent_decode_str(value.ok_or_else(unexpected)?).decode_utf8_lossy();
        let value = match field.data_type() {
            _ if value == NULL_FOLDER => None,
            // In the log a space stands between date and time, and no zone behind them.
            DataType::Timestamp(..) => Some(value.trim_end_matches('Z').replacen('T', " ", 1)),
            _ => Some(value.into_owned()),
        };
        Ok((field.name().clone(), value))
    };
    partitions.iter().zip(&parts).map(value).collect()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    #[test]
    fn folders_name_the_values_of_partition_columns() {
        let column = |name: &str, kind| Arc::new(Field::new(name, kind, true));
        let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let columns =
            [column("a b", DataType::Utf8), column("t", time), column("n", DataType::Int32)];
        let folder = Path::default()
            .join("a b=50%/ä=x")
            .join("t=2024-01-02T03:04:05.000001Z")
            .join(format!("n={NULL_FOLDER}"));
        let found = partition_values(&folder, &columns).unwrap();
        let expected =
            [("a b", Some("50%/ä=x")), ("t", Some("2024-01-02 03:04:05.000001")), ("n", None)];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        assert_eq!(found, HashMap::from(expected));
        assert!(partition_values(&Path::from("n=1"), &columns).is_err());
    }
}
