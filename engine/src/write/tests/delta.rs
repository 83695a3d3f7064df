//! Whatever a store refuses, a Delta table is as it was or as it is to be.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Schema, UInt64Type};
use datafusion::common::Result;
use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileOutputMode, FileSinkConfig};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tempfile::TempDir;

use super::store::{Fault, Faulty};
use super::whole::{ROWS, session, staged, staging_folders};
use crate::ErrorKind;
use crate::delta::Log;
use crate::write::clean::{OlderThan, clean};
use crate::write::{DeltaSink, DeltaWrite};

/// All that is left.
const AT_ONCE: OlderThan = OlderThan { left: Duration::ZERO, resumable: Duration::ZERO };

fn url(folder: &Path) -> ListingTableUrl {
    ListingTableUrl::parse(format!("{}/", folder.display())).unwrap()
}

fn log(folder: &Path) -> Log {
    Log::new(&RuntimeEnv::default(), &url(folder)).unwrap()
}

/// The same folder as one of a remote store, as which [`Faulty`] can be registered.
fn remote(folder: &Path) -> ListingTableUrl {
    ListingTableUrl::parse(format!("s3://far{}/", folder.display())).unwrap()
}

/// The rows that count, and the files that they are in.
async fn state(folder: &Path) -> (usize, usize) {
    let snapshot = log(folder).snapshot(None).await.unwrap();
    let files = snapshot.files(url(folder).prefix()).await.unwrap();
    let rows = files.iter().map(|file| *file.bounds().num_rows.get_value().unwrap());
    (rows.sum(), files.len())
}

/// The files that lie there and are not staged.
fn lying(folder: &Path) -> usize {
    let mut found = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('_') {
            found += lying(&entry.path());
        }
        found += usize::from(name.ends_with(".parquet"));
    }
    found
}

/// A table in this folder.
pub(super) async fn create(folder: &Path) {
    let column = |name, kind| Field::new(name, kind, true);
    let schema = Schema::new(vec![column("n", DataType::Int64), column("name", DataType::Utf8)]);
    log(folder).create(&schema, &["name".to_owned()]).await.unwrap();
}

/// The files that count.
pub(super) async fn counting(folder: &Path) -> Vec<PathBuf> {
    let snapshot = log(folder).snapshot(None).await.unwrap();
    let files = snapshot.files(url(folder).prefix()).await.unwrap().into_iter();
    let paths = files.map(|file| file.into_partitioned().object_meta.location);
    paths.map(|path| Path::new("/").join(path.as_ref())).collect()
}

/// What a write to it is planned as.
pub(super) async fn planned(
    session: &SessionContext,
    folder: &Path,
    overwrites: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    planned_at(session, folder, url(folder), overwrites).await
}

async fn planned_at(
    session: &SessionContext,
    folder: &Path,
    at: ListingTableUrl,
    overwrites: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let snapshot = log(folder).snapshot(None).await?;
    let input = session.table("rows").await?.create_physical_plan().await?;
    let config = FileSinkConfig {
        original_url: String::new(),
        object_store_url: at.object_store(),
        table_paths: vec![at],
        file_group: FileGroup::default(),
        output_schema: Arc::clone(snapshot.schema()),
        table_partition_cols: vec![("name".to_owned(), DataType::Utf8)],
        insert_op: InsertOp::Append,
        keep_partition_by_columns: false,
        file_extension: "parquet".to_owned(),
        file_output_mode: FileOutputMode::Directory,
    };
    let write = DeltaWrite { version: snapshot.version(), overwrites };
    let sink = DeltaSink::new(config, TableParquetOptions::default(), write);
    Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
}

async fn insert(
    session: &SessionContext,
    folder: &Path,
    at: ListingTableUrl,
    overwrites: bool,
) -> Result<u64> {
    let plan = planned_at(session, folder, at, overwrites).await?;
    let count = collect(staged(&plan), session.task_ctx()).await?;
    Ok(count[0].column(0).as_primitive::<UInt64Type>().value(0))
}

/// What a write has come to that met a fault.
struct Disturbed {
    changes: usize,
    error: Option<String>,
    /// Nobody knew whether its commit would still come.
    is_open: bool,
}

/// A write meets a fault, of a store that is on this machine or is not.
async fn disturbed(overwrites: bool, is_far: bool, fault: Fault) -> Disturbed {
    let home = TempDir::new().unwrap();
    let folder = home.path();
    create(folder).await;
    let near = session(Arc::new(LocalFileSystem::new()));
    insert(&near, folder, url(folder), false).await.unwrap();
    let (before, _) = state(folder).await;
    assert_eq!(before, ROWS as usize);
    let store = Arc::new(Faulty::new(fault, || ()));
    // The log that it is planned by is read before anything goes wrong.
    let session = session(Arc::clone(&store) as _);
    let at = if is_far { remote(folder) } else { url(folder) };
    session.register_object_store(at.object_store().as_ref(), Arc::clone(&store) as _);
    let said = insert(&session, folder, at, overwrites).await;
    let (found, files) = state(folder).await;
    let version = log(folder).snapshot(None).await.unwrap().version();
    let is_done = version == 2;
    let after = if overwrites || !is_done { before } else { before + ROWS as usize };
    assert_eq!(found, after, "{overwrites} {fault:?}: {said:?}");
    let mut is_open = false;
    match &said {
        Ok(rows) => assert!(is_done && *rows == ROWS as u64, "{fault:?}"),
        Err(error) => {
            is_open = error.to_string().contains("whether the commit has happened");
            assert!(!is_done || is_open, "{overwrites} {fault:?}: {error}");
            assert_ne!(ErrorKind::of(error), ErrorKind::Internal, "{error}");
        }
    }
    let stays = matches!(fault, Fault::FromThenOn(_));
    let removed = if overwrites && is_done { ROWS as usize } else { 0 };
    // Of a commit that may still come all files must be there.
    let awaited = if is_open && !is_done { ROWS as usize } else { 0 };
    let lies = lying(folder);
    assert!(lies >= files + removed + awaited, "{overwrites} {fault:?}: {said:?}");
    assert!(stays || lies == files + removed + awaited, "{overwrites} {fault:?}: {said:?}");
    // What is left aside is ended by somebody else, who changes nothing of the table.
    let files: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
    let left = clean(&files, url(folder).prefix(), true, AT_ONCE, false).await.unwrap();
    assert!(left.iter().all(|left| left.fate.is_ok()), "{left:?}");
    assert_eq!(staging_folders(folder), 0, "{overwrites} {fault:?}: {said:?}");
    assert_eq!(state(folder).await.0, found);
    let error = said.err().map(|error| error.to_string());
    Disturbed { changes: store.changes(), error, is_open }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_as_it_was_or_as_it_is_to_be_whichever_operation_fails() {
    for (overwrites, is_far) in [(false, false), (true, false), (true, true)] {
        let Disturbed { changes, error, .. } = disturbed(overwrites, is_far, Fault::None).await;
        assert_eq!(error, None);
        assert!(changes > 2 * ROWS as usize, "{changes} changes");
        let (mut failures, mut open) = (0, 0);
        for at in 0..changes {
            for fault in [Fault::Once(at), Fault::Unheard(at), Fault::FromThenOn(at)] {
                let found = disturbed(overwrites, is_far, fault).await;
                failures += usize::from(found.error.is_some());
                open += usize::from(found.is_open && fault == Fault::Once(at));
            }
        }
        assert!(failures > changes, "{failures} writes failed");
        // Of a store that is far away, the one that its log did not take.
        assert_eq!(open, usize::from(is_far));
    }
}
