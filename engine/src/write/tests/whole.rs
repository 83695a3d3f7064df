//! Whatever a store refuses, readers see all of a write or nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::UInt64Type;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::datasource::sink::DataSinkExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use object_store::ObjectStore;
use tempfile::TempDir;
use url::Url;

use super::store::{Fault, Faulty};
use crate::write::clean::{Fate, OlderThan, clean};
use crate::write::{CommitExec, Target, WriteExec};

/// All that is left.
const AT_ONCE: OlderThan = OlderThan { left: Duration::ZERO, resumable: Duration::ZERO };

/// The statements of these tests: a file, a folder that was not there, a folder with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Folder,
    Into,
}

/// Each row is as large as a file.
const FILE_BYTES: u64 = 1;

pub(super) const ROWS: i64 = 5;

pub(super) fn session(store: Arc<dyn ObjectStore>) -> SessionContext {
    let config = SessionConfig::new().with_batch_size(1).with_target_partitions(1);
    let session = SessionContext::new_with_config(config);
    session.register_object_store(&Url::parse("file:///").unwrap(), store);
    let row = |n: i64| {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![n]));
        let names: ArrayRef = Arc::new(StringArray::from(vec![format!("n{}", n % 2)]));
        RecordBatch::try_from_iter([("n", numbers), ("name", names)]).unwrap()
    };
    let rows: Vec<_> = (0..ROWS).map(row).collect();
    let table = MemTable::try_new(rows[0].schema(), vec![rows]).unwrap();
    session.register_table("rows", Arc::new(table)).unwrap();
    session
}

/// As the planner's rule has it.
pub(super) fn staged(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let sink = plan.downcast_ref::<DataSinkExec>().unwrap();
    let target = Arc::new(Target::of(sink, FILE_BYTES).unwrap());
    let write = WriteExec::new(Arc::clone(sink.input()), Arc::clone(&target));
    Arc::new(CommitExec::new(Arc::new(write), target))
}

async fn execute(session: &SessionContext, sql: &str) -> Result<u64> {
    let plan = session.sql(sql).await?.create_physical_plan().await?;
    let count = collect(staged(&plan), session.task_ctx()).await?;
    Ok(count[0].column(0).as_primitive::<UInt64Type>().value(0))
}

pub(super) async fn write(session: &SessionContext, kind: Kind, folder: &Path) -> Result<u64> {
    let at = folder.display();
    match kind {
        Kind::File => execute(session, &format!("COPY rows TO '{at}/out.csv'")).await,
        Kind::Folder => execute(session, &format!("COPY rows TO '{at}/out/' STORED AS CSV")).await,
        Kind::Into => {
            let table = format!(
                "CREATE EXTERNAL TABLE IF NOT EXISTS t (n BIGINT, name VARCHAR) STORED AS CSV \
                 LOCATION '{at}/t/' OPTIONS ('format.has_header' 'true')"
            );
            session.sql(&table).await?.collect().await?;
            execute(session, "INSERT INTO t SELECT * FROM rows").await
        }
    }
}

/// All files below a folder, but for those in staging folders.
pub(super) fn visible(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with("_forebay-") {
            continue;
        }
        match path.is_dir() {
            true => found.extend(visible(&path)),
            false => drop(found.insert(path)),
        }
    }
    found
}

/// How many rows the files have, none of which may be cut short.
pub(super) fn rows(files: &BTreeSet<PathBuf>) -> usize {
    let rows = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("n,name"), "{}", file.display());
        lines.filter(|line| line.split(',').count() == 2).count()
    };
    files.iter().filter(|file| !file.ends_with("_SUCCESS")).map(rows).sum()
}

pub(super) fn staging_folders(folder: &Path) -> usize {
    let mut found = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("_forebay-") {
            found += 1;
        } else if entry.path().is_dir() {
            found += staging_folders(&entry.path());
        }
    }
    found
}

/// What a reader may see at any moment: a folder with `_SUCCESS` has all of its rows.
fn check(kind: Kind, folder: &Path, before: usize) {
    let files = visible(folder);
    let found = rows(&files);
    let is_whole = found == before || found == before + ROWS as usize;
    let says_so = files.iter().any(|file| file.ends_with("_SUCCESS"));
    assert!(is_whole || (kind == Kind::Into && !says_so), "{kind:?}: {found} rows in {files:?}");
}

/// A write meets a fault. Gives back how many changes it made, and what it said.
async fn disturbed(kind: Kind, fault: Fault) -> (usize, Result<u64>) {
    let home = TempDir::new().unwrap();
    let folder = home.path().to_owned();
    let mut before = 0;
    if kind == Kind::Into {
        fs::create_dir(folder.join("t")).unwrap();
        before =
            write(&session(Arc::new(object_store::local::LocalFileSystem::new())), kind, &folder)
                .await
                .unwrap() as usize;
    }
    let watched = folder.clone();
    let store = Arc::new(Faulty::new(fault, move || check(kind, &watched, before)));
    let said = write(&session(Arc::clone(&store) as _), kind, &folder).await;
    check(kind, &folder, before);
    let found = rows(&visible(&folder));
    if said.is_ok() {
        assert_eq!(found, before + ROWS as usize, "{kind:?} {fault:?}");
    }
    // What is left is ended by somebody else, and only when it is old.
    let files: Arc<dyn ObjectStore> = Arc::new(object_store::local::LocalFileSystem::new());
    let path = object_store::path::Path::from_absolute_path(&folder).unwrap();
    let age = Duration::from_secs(3600);
    let young =
        clean(&files, &path, true, OlderThan { left: age, resumable: age }, false).await.unwrap();
    assert!(young.iter().all(|left| matches!(left.fate, Ok(Fate::Kept))));
    assert_eq!(rows(&visible(&folder)), found);
    let left = clean(&files, &path, true, AT_ONCE, false).await.unwrap();
    let completed = left.iter().any(|left| *left.fate.as_ref().unwrap() == Fate::Completed);
    let expected = if said.is_ok() || completed { before + ROWS as usize } else { before };
    let unheard = matches!(fault, Fault::Unheard(_));
    let found = rows(&visible(&folder));
    assert!(
        found == expected || unheard && found == before + ROWS as usize,
        "{kind:?} {fault:?}: {said:?}"
    );
    check(kind, &folder, before);
    assert_eq!(staging_folders(&folder), 0, "{kind:?} {fault:?}");
    (store.changes(), said)
}

#[tokio::test]
async fn all_or_nothing_is_visible_whichever_operation_fails() {
    for kind in [Kind::File, Kind::Folder, Kind::Into] {
        let (changes, said) = disturbed(kind, Fault::None).await;
        assert_eq!(said.unwrap(), ROWS as u64);
        assert!(changes > 5, "{kind:?} made {changes} changes");
        let mut failed = 0;
        for at in 0..changes {
            for fault in [Fault::Once(at), Fault::Unheard(at), Fault::FromThenOn(at)] {
                failed += usize::from(disturbed(kind, fault).await.1.is_err());
            }
        }
        assert!(failed > changes, "{kind:?}: {failed} writes failed");
    }
}

#[tokio::test]
async fn files_are_as_large_as_they_are_to_be_and_in_order() {
    let home = TempDir::new().unwrap();
    let session = session(Arc::new(object_store::local::LocalFileSystem::new()));
    write(&session, Kind::Folder, home.path()).await.unwrap();
    let files = visible(&home.path().join("out"));
    let numbers = files
        .iter()
        .filter(|file| !file.ends_with("_SUCCESS"))
        .map(|file| fs::read_to_string(file).unwrap().lines().nth(1).unwrap().to_owned());
    let numbers: Vec<_> = numbers.collect();
    assert_eq!(numbers, ["0,n0", "1,n1", "2,n0", "3,n1", "4,n0"]);
}

#[tokio::test]
async fn what_cannot_be_written_is_refused_before_any_row_is_asked_for() {
    let home = TempDir::new().unwrap();
    let at = home.path().display();
    let session = session(Arc::new(object_store::local::LocalFileSystem::new()));
    fs::create_dir(home.path().join("full")).unwrap();
    fs::write(home.path().join("full/a.csv"), "x").unwrap();
    fs::write(home.path().join("file"), "x").unwrap();
    // Rows that would fail if anybody computed one.
    let rows = "SELECT n / (n - n) AS n, name FROM rows";
    for (sql, expected) in [
        (
            format!("COPY ({rows}) TO '{at}/full/' STORED AS CSV"),
            "there are files in it, such as 'a.csv'",
        ),
        (format!("COPY (SELECT [n / (n - n)] AS l FROM rows) TO '{at}/l.csv'"), "List"),
        (format!("COPY ({rows}) TO '{at}/file/x/' STORED AS CSV"), "cannot be written"),
        (
            format!("COPY ({rows}) TO '{at}/p/' STORED AS CSV PARTITIONED BY (n, name)"),
            "names all columns",
        ),
    ] {
        let error = execute(&session, &sql).await.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("Divide"), "{sql}: {error}");
    }
    assert_eq!(staging_folders(home.path()), 0);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn a_result_without_rows_has_its_columns() {
    let home = TempDir::new().unwrap();
    let at = home.path().display();
    let session = session(Arc::new(object_store::local::LocalFileSystem::new()));
    for (name, files) in [("out.csv", 1), ("out/", 2)] {
        let sql = format!("COPY (SELECT * FROM rows WHERE n < 0) TO '{at}/{name}' STORED AS CSV");
        assert_eq!(execute(&session, &sql).await.unwrap(), 0);
        let found = visible(home.path());
        assert_eq!((found.len(), rows(&found)), (files, 0), "{name}");
        fs::remove_file(home.path().join("out.csv")).ok();
    }
}

#[tokio::test]
async fn a_write_that_is_dropped_is_whole_or_leaves_nothing() {
    let session = session(Arc::new(object_store::local::LocalFileSystem::new()));
    for into in [false, true] {
        for polls in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
            // Its own: an operation of the file system that was begun when the write was dropped ends later.
            let home = TempDir::new().unwrap();
            let at = home.path().display();
            let copy = format!("COPY rows TO '{at}/out/' STORED AS CSV PARTITIONED BY (name)");
            let mut written: futures::future::LocalBoxFuture<'_, Result<u64>> = match into {
                true => Box::pin(write(&session, Kind::Into, home.path())),
                false => Box::pin(execute(&session, &copy)),
            };
            let mut is_over = false;
            for _ in 0..polls {
                is_over = is_over || futures::poll!(&mut written).is_ready();
                if is_over {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(written);
            let since = std::time::Instant::now();
            while staging_folders(home.path()) > 0 {
                assert!(since.elapsed() < Duration::from_secs(60), "left after {polls} polls");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let found = rows_in_folders(home.path());
            // It may have been dropped after its commit had begun.
            assert!(found == ROWS as usize || found == 0 && !is_over, "{found} after {polls}");
            let says_so =
                ["out", "t"].iter().any(|name| home.path().join(name).join("_SUCCESS").exists());
            // Folders with partition columns never say so.
            assert_eq!(says_so, into && found > 0, "{found} after {polls}");
        }
    }
}

/// Rows of files, with or without the partition column.
fn rows_in_folders(folder: &Path) -> usize {
    let files = visible(folder);
    let files = files.iter().filter(|file| !file.ends_with("_SUCCESS"));
    files.map(|file| fs::read_to_string(file).unwrap().lines().count() - 1).sum()
}
