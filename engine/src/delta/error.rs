//! What can go wrong with a Delta table, and who can do something about it.

use std::any::Any;
use std::error::Error;

use datafusion::common::DataFusionError;
use deltalake::DeltaTableError;
use deltalake::kernel::transaction::TransactionError;

use crate::error::panic_text;

/// A Delta table that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// No log.
    #[error(
        "there is no Delta table at '{table}': the folder has no _delta_log; name the columns to make a \
         table there, or read other files with STORED AS PARQUET"
    )]
    NotATable {
        /// Where it was looked for.
        table: String,
    },
    /// What the table uses is not known here.
    #[error("the Delta table '{table}' cannot be {access}: {problem}")]
    Unsupported {
        /// Where it is.
        table: String,
        /// `read` or `written`.
        access: &'static str,
        /// What it uses, and what to do.
        problem: String,
    },
    /// The log cannot be understood.
    #[error(
        "the log of the Delta table '{table}' is broken: {problem}; bring the files of _delta_log back as \
         they were, or go back to a version before them"
    )]
    Broken {
        /// Where it is.
        table: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody else was faster.
    #[error(
        "another writer has changed the Delta table '{table}' since this statement began, and nothing was \
         written: {problem}; run it again"
    )]
    Conflict {
        /// Where it is.
        table: String,
        /// In which way both exclude each other.
        problem: String,
    },
    /// The owner of the table does not want it.
    #[error("the Delta table '{table}' cannot be written so: {problem}")]
    Refused {
        /// Where it is.
        table: String,
        /// Why, and what to do.
        problem: String,
    },
    /// Nobody knows whether a commit has happened.
    #[error(
        "the store of the Delta table '{table}' does not say whether the commit has happened: {problem}; \
         look for the transaction '{transaction}' in _delta_log before the statement is run again; its files stay \
         until then, and a VACUUM removes them if they do not count"
    )]
    Unknown {
        /// Where it is.
        table: String,
        /// The id of the transaction.
        transaction: String,
        /// What the store said.
        problem: String,
    },
}

impl From<DeltaError> for DataFusionError {
    fn from(error: DeltaError) -> Self {
        Self::External(Box::new(error))
    }
}

/// What `deltalake` says of the table of this name.
pub(super) fn explained(table: &str, error: DeltaTableError) -> DataFusionError {
    let table = table.to_owned();
    match error {
        DeltaTableError::Transaction { source } => of_transaction(table, source),
        DeltaTableError::VersionAlreadyExists(version) => {
            let problem = format!("version {version} is another writer's");
            DeltaError::Conflict { table, problem }.into()
        }
        DeltaTableError::ObjectStore { source } => of_store(&table, source),
        DeltaTableError::NotATable(_) => DeltaError::NotATable { table }.into(),
        error => match into_store_error(&error) {
            Some(problem) => DataFusionError::ObjectStore(Box::new(problem))
                .context(format!("the log of the Delta table '{table}'")),
            None => of_log(table, &error),
        },
    }
}

/// A table on whose log its reader has panicked.
pub(super) fn broken(table: &str, panic: &(dyn Any + Send)) -> DataFusionError {
    DeltaError::Broken { table: table.to_owned(), problem: panic_text(panic) }.into()
}

fn of_transaction(table: String, error: TransactionError) -> DataFusionError {
    match error {
        TransactionError::ObjectStore { source } => of_store(&table, source),
        TransactionError::UnsupportedTableFeatures(features) => {
            let features: Vec<String> = features.iter().map(ToString::to_string).collect();
            let problem = format!(
                "it uses {}, which this version of forebay does not write; write it with an engine that \
                 does",
                features.join(", ")
            );
            DeltaError::Unsupported { table, access: "written", problem }.into()
        }
        TransactionError::TableFeaturesRequired(feature) => {
            let problem = format!("it lacks the table feature {feature}, which its columns need");
            DeltaError::Refused { table, problem }.into()
        }
        TransactionError::DeltaTableAppendOnly => {
            let problem = "it is append-only (delta.appendOnly), so that no row may be removed; use INSERT \
                           INTO";
            DeltaError::Refused { table, problem: problem.to_owned() }.into()
        }
        error => {
            // A sentence for each; what they advise is said already.
            let problem = error.to_string();
            let problem = problem.lines().next().unwrap_or_default().trim_end_matches('.');
            DeltaError::Conflict { table, problem: problem.to_owned() }.into()
        }
    }
}

/// What a store refuses keeps its kind.
fn of_store(table: &str, error: object_store::Error) -> DataFusionError {
    let context = format!("the Delta table '{table}'");
    DataFusionError::ObjectStore(Box::new(error)).context(context)
}

/// A store that is not there, or refuses, however deep the reader of logs has hidden it. A file of the log
/// that is missing is no fault of the store's.
fn into_store_error(error: &DeltaTableError) -> Option<object_store::Error> {
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |cause| {
        let cause = *cause;
        cause.source()
    });
    let mut found = causes.filter_map(|cause| cause.downcast_ref::<object_store::Error>());
    let found = found.find(|error| !matches!(error, object_store::Error::NotFound { .. }))?;
    // They cannot be cloned; what people are told is in the text.
    let source = found.to_string().into();
    Some(match found {
        object_store::Error::PermissionDenied { path, .. } => {
            object_store::Error::PermissionDenied { path: path.clone(), source }
        }
        object_store::Error::Unauthenticated { path, .. } => {
            object_store::Error::Unauthenticated { path: path.clone(), source }
        }
        _ => object_store::Error::Generic { store: "the log's", source },
    })
}

fn of_log(table: String, error: &DeltaTableError) -> DataFusionError {
    let problem = without_frames(&error.to_string());
    let lower = problem.to_lowercase();
    if lower.contains("unsupported") || lower.contains("not supported") {
        let problem = format!("{problem}; read it with an engine that knows this");
        return DeltaError::Unsupported { table, access: "read", problem }.into();
    }
    DeltaError::Broken { table, problem }.into()
}

/// A message of the kernel's, whose errors print their backtrace where RUST_BACKTRACE is set.
fn without_frames(message: &str) -> String {
    message.split("\n   0: ").next().unwrap_or(message).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use deltalake::kernel::transaction::CommitConflictError;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn errors_keep_their_kind_and_name_the_table() {
        let conflict = TransactionError::CommitConflict(CommitConflictError::ConcurrentDeleteRead);
        let cases = [
            (DeltaTableError::Transaction { source: conflict }, ErrorKind::Unavailable),
            (
                DeltaTableError::Transaction { source: TransactionError::MaxCommitAttempts(15) },
                ErrorKind::Unavailable,
            ),
            (
                DeltaTableError::Transaction { source: TransactionError::DeltaTableAppendOnly },
                ErrorKind::FailedPrecondition,
            ),
            (DeltaTableError::Generic("no version".to_owned()), ErrorKind::FailedPrecondition),
            (
                DeltaTableError::Generic("bad\n   0: unsupported::of\n   1: main".to_owned()),
                ErrorKind::FailedPrecondition,
            ),
            (DeltaTableError::Generic("Unsupported: reader".to_owned()), ErrorKind::Unimplemented),
            (DeltaTableError::NotATable(String::new()), ErrorKind::NotFound),
        ];
        for (error, kind) in cases {
            let error = explained("/t", error);
            assert_eq!(ErrorKind::of(&error), kind, "{error}");
            let text = error.to_string();
            assert!(text.contains("'/t'") && !text.contains('\n'), "{text}");
        }
    }
}
