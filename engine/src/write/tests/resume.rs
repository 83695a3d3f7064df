//! Whatever a store refuses, and whenever a process ends: what goes on keeps the parts that are complete, computes
//! the others, and gives what an undisturbed write gives.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef, UInt64Type};
use datafusion::common::{Result, exec_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{ArrowSource, FileGroup, FileScanConfigBuilder};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use object_store::local::LocalFileSystem;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::delta;
use super::store::{Fault, Faulty};
use super::whole::{session, staging_folders};
use crate::arrow_files::checked;
use crate::write::clean::{Fate, Left, OlderThan, clean};
use crate::write::resume::{Input, InputFile, Inputs, Looked, Overview, Piece, Reads, Remains};
use crate::write::{InPartsExec, PartPlans, Parts, Rest, RestPlan, StagedFile, Target, WriteExec};

pub(super) const FILES: usize = 5;
const ROWS_OF_FILE: i64 = 3;
pub(super) const ROWS: usize = FILES * ROWS_OF_FILE as usize;

/// What is written: a folder that was not there, one with files, a Delta table; a file, of rows that are staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    Into,
    Delta,
    File,
}

impl Kind {
    pub(super) fn rest(self) -> Option<&'static str> {
        (self == Self::File).then_some("all of them")
    }
}

/// What is made of staged rows: the same ones, in one file.
#[derive(Debug)]
struct OneFile {
    target: Arc<Target>,
    schema: SchemaRef,
    made: Arc<AtomicUsize>,
    fails: bool,
}

impl RestPlan for OneFile {
    fn plan(&self, staged: &[StagedFile]) -> Result<Arc<dyn ExecutionPlan>> {
        self.made.fetch_add(1, Ordering::Relaxed);
        if self.fails {
            return exec_err!("nothing can be made of them");
        }
        let file = |file: &StagedFile| {
            let path = format!("/{}", file.path);
            assert_eq!(fs::metadata(path).unwrap().len(), file.bytes);
            PartitionedFile::from(ObjectMeta {
                location: file.path.clone(),
                last_modified: Default::default(),
                size: file.bytes,
                e_tag: None,
                version: None,
            })
        };
        let files = FileGroup::new(staged.iter().map(file).collect());
        let source = Arc::new(ArrowSource::new_file_source(TableSchema::from(&self.schema)));
        let scan = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), source);
        let scan = DataSourceExec::from_data_source(scan.with_file_groups(vec![files]).build());
        Ok(Arc::new(WriteExec::new(checked(scan).data, Arc::clone(&self.target))))
    }
}

/// Rows of files, of which each has a few that follow from its number.
#[derive(Debug)]
struct Numbers {
    target: Arc<Target>,
    schema: SchemaRef,
    computed: AtomicUsize,
}

impl PartPlans for Numbers {
    fn plans(&self, pieces: &[Piece]) -> Result<Vec<(usize, Arc<dyn ExecutionPlan>)>> {
        let first = |piece: &Piece| piece.file as i64 * 10;
        let numbers: Vec<i64> =
            pieces.iter().flat_map(|piece| first(piece)..first(piece) + ROWS_OF_FILE).collect();
        self.computed.fetch_add(numbers.len(), Ordering::Relaxed);
        let names = numbers.iter().map(|n| Some(format!("n{}", n % 2)));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(numbers.clone())),
            Arc::new(names.collect::<StringArray>()),
        ];
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let rows = MemorySourceConfig::try_new_exec(&[vec![rows]], Arc::clone(&self.schema), None)?;
        Ok(vec![(0, Arc::new(WriteExec::new(rows, Arc::clone(&self.target))))])
    }
}

/// A folder to read from and to write to.
pub(super) struct Home {
    kind: Kind,
    pub(super) folder: TempDir,
    /// How often something was made of staged rows.
    made: Arc<AtomicUsize>,
    /// Nothing can be.
    fails: bool,
    /// How much of the last run was done, and of how much.
    progress: Mutex<Option<(u64, u64)>>,
}

impl Home {
    pub(super) async fn new(kind: Kind) -> Self {
        let (folder, made, progress) = (TempDir::new().unwrap(), Arc::default(), Mutex::default());
        let home = Self { kind, folder, made, fails: false, progress };
        fs::create_dir(home.path("in")).unwrap();
        (0..FILES).for_each(|file| fs::write(home.path(&format!("in/{file}")), "four").unwrap());
        match kind {
            Kind::Folder => {}
            Kind::Into | Kind::File => fs::create_dir(home.path("t")).unwrap(),
            Kind::Delta => {
                fs::create_dir(home.path("t")).unwrap();
                delta::create(&home.path("t")).await;
            }
        }
        home
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn inputs(&self) -> Inputs {
        let store = LocalFileSystem::new();
        let mut files = vec![];
        for file in 0..FILES {
            let path = self.path(&format!("in/{file}"));
            let path = object_store::path::Path::from_absolute_path(path).unwrap();
            let meta = store.head(&path).await.unwrap();
            let input = Input::of(&ObjectStoreUrl::local_filesystem(), &meta);
            files.push(InputFile { input, scan: 0, reads: Reads::Whole });
        }
        Inputs { files }
    }

    /// What a statement is planned as.
    async fn target(&self, session: &SessionContext) -> Arc<Target> {
        let at = self.path("t");
        let at = at.display();
        let plan = match self.kind {
            Kind::Folder => {
                let sql = format!("COPY rows TO '{at}/' STORED AS PARQUET");
                session.sql(&sql).await.unwrap().create_physical_plan().await.unwrap()
            }
            Kind::Into => {
                let table = format!(
                    "CREATE EXTERNAL TABLE IF NOT EXISTS t (n BIGINT, name VARCHAR) STORED AS PARQUET \
                     LOCATION '{at}/'"
                );
                session.sql(&table).await.unwrap().collect().await.unwrap();
                let sql = "INSERT INTO t SELECT * FROM rows";
                session.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
            }
            Kind::Delta => delta::planned(session, &self.path("t"), false).await.unwrap(),
            Kind::File => {
                let sql = format!("COPY rows TO '{at}/all.parquet'");
                session.sql(&sql).await.unwrap().create_physical_plan().await.unwrap()
            }
        };
        let sink = plan.downcast_ref::<DataSinkExec>().unwrap();
        Arc::new(Target::of(sink, u64::MAX).unwrap())
    }

    pub(super) async fn remains(&self) -> Remains {
        let session = session(Arc::new(LocalFileSystem::new()));
        let target = self.target(&session).await;
        Remains::begin(&target, &session.task_ctx()).await.unwrap()
    }

    /// Runs what is missing; says how many rows there are then, and how many were computed now.
    pub(super) async fn run(
        &self,
        store: Arc<dyn ObjectStore>,
        remains: &Remains,
        files_of_part: u64,
        fingerprint: &str,
    ) -> (Result<u64>, usize) {
        let session = session(store);
        let target = self.target(&session).await;
        let schema = Arc::clone(session.table("rows").await.unwrap().schema().inner());
        let rest = self.kind.rest().map(|fingerprint| {
            let (target, schema) = (Arc::clone(&target), Arc::clone(&schema));
            let plan = Arc::new(OneFile {
                target,
                schema,
                made: Arc::clone(&self.made),
                fails: self.fails,
            });
            Rest { plan, inputs: vec![], fingerprint: fingerprint.to_owned() }
        });
        let of_parts = match &rest {
            Some(_) => Arc::new(target.staged(Arc::clone(&schema))),
            None => Arc::clone(&target),
        };
        let computed = AtomicUsize::new(0);
        let numbers = Arc::new(Numbers { target: of_parts, schema, computed });
        let (_, whole) = numbers.plans(&[]).unwrap().remove(0);
        let parts = Parts {
            target,
            inputs: self.inputs().await,
            pinned: vec![],
            plans: Arc::clone(&numbers) as _,
            fingerprint: fingerprint.to_owned(),
            part_bytes: files_of_part * 4,
            remains: remains.clone(),
            rest,
        };
        let plan = Arc::new(InPartsExec::new(whole, parts));
        let count = collect(Arc::clone(&plan) as _, session.task_ctx()).await;
        *self.progress.lock() = plan.progress();
        let rows = count.map(|rows| rows[0].column(0).as_primitive::<UInt64Type>().value(0));
        (rows, numbers.computed.load(Ordering::Relaxed))
    }

    /// The staging folder.
    pub(super) fn staging(remains: &Remains) -> PathBuf {
        Path::new("/").join(remains.url().trim_start_matches("file:///"))
    }

    /// What would be kept.
    pub(super) async fn overview(&self, remains: &Remains) -> Overview {
        let session = session(Arc::new(LocalFileSystem::new()));
        let (target, inputs) = (self.target(&session).await, self.inputs().await);
        let (fingerprint, rest, part_bytes) = (FINGERPRINT, self.kind.rest(), 1);
        let of = Looked { target: &target, inputs: &inputs, fingerprint, rest, part_bytes };
        remains.overview(of, &session.task_ctx()).await.unwrap()
    }

    /// The numbers that a reader sees, in order.
    pub(super) async fn seen(&self) -> Vec<i64> {
        let files = match self.kind {
            Kind::Delta => delta::counting(&self.path("t")).await,
            _ => parquet_files(&self.path("t")),
        };
        let mut all = vec![];
        for file in files {
            let file = fs::File::open(file).unwrap();
            let rows = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
            for batch in rows {
                let batch = batch.unwrap();
                let numbers =
                    batch.column_by_name("n").unwrap().as_primitive::<Int64Type>().clone();
                all.extend(numbers.values().iter());
            }
        }
        all.sort_unstable();
        all
    }
}

pub(super) const FINGERPRINT: &str = "one";

pub(super) fn files() -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new())
}

pub(super) fn expected() -> Vec<i64> {
    (0..FILES as i64).flat_map(|file| file * 10..file * 10 + ROWS_OF_FILE).collect()
}

pub(super) fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('_') {
            found.extend(parquet_files(&entry.path()));
        } else if name.ends_with(".parquet") {
            found.push(entry.path());
        }
    }
    found
}

/// What became of what was left.
pub(super) fn fates(left: &[Left]) -> Vec<Fate> {
    left.iter().map(|left| *left.fate.as_ref().unwrap()).collect()
}

/// Of all files below a folder.
fn inodes(folder: &Path) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path().is_dir() {
            true => found.extend(inodes(&entry.path())),
            false => drop(found.insert(entry.metadata().unwrap().ino())),
        }
    }
    found
}

/// A write meets a fault, and goes on with a store that is sound. Gives back how many changes it made before,
/// and how many rows it kept.
async fn disturbed(kind: Kind, fault: Fault) -> (usize, usize) {
    let home = Home::new(kind).await;
    let remains = home.remains().await;
    let faulty = Arc::new(Faulty::new(fault, || ()));
    let (said, _) = home.run(Arc::clone(&faulty) as _, &remains, 2, FINGERPRINT).await;
    let seen = home.seen().await;
    let is_partly_seen = !seen.is_empty() && seen != expected();
    // One file after the other comes into a folder that is there; a reader is told.
    assert!(!is_partly_seen || kind == Kind::Into, "{kind:?} {fault:?}: {seen:?}");
    if said.is_ok() {
        assert_eq!(seen, expected(), "{kind:?} {fault:?}");
    }
    let kept = home.overview(&remains).await;
    assert!(kept.is_there, "{kind:?} {fault:?}");
    // Into a folder that is there it is decided before anything is seen.
    let is_seen = seen == expected();
    let is_decided = [Kind::Into, Kind::File].contains(&kind) && kept.is_committed;
    let is_known = kept.is_committed == is_seen || is_decided;
    assert!(is_known, "{kind:?} {fault:?}: {kept:?}, {seen:?}");
    let before = inodes(home.folder.path());
    let made = home.made.load(Ordering::Relaxed);
    let (resumed, computed) = home.run(files(), &remains, 1, FINGERPRINT).await;
    let rows =
        resumed.unwrap_or_else(|error| panic!("{kind:?} {fault:?}: {error}, after {said:?}"));
    assert_eq!(rows, ROWS as u64, "{kind:?} {fault:?}: after {said:?}");
    assert_eq!(home.seen().await, expected(), "{kind:?} {fault:?}: after {said:?}");
    // What was moved by a commit is not where the overview looks for it, and is kept all the same.
    assert!(computed <= ROWS - kept.rows as usize, "{kind:?} {fault:?}: {computed}, {kept:?}");
    let made = home.made.load(Ordering::Relaxed) - made;
    let is_made = kind.rest().is_none() || kept.is_committed || kept.rest.is_some();
    assert_eq!(made, usize::from(!is_made), "{kind:?} {fault:?}: {kept:?}");
    if kind.rest().is_none() && computed == ROWS - kept.rows as usize && kept.rows > 0 {
        let same = inodes(&home.path("t")).intersection(&before).count();
        assert!(same >= kept.files, "{kind:?} {fault:?}: {same} of {kept:?}");
    }
    // Whoever does not know that goes on once more.
    let (again, computed) = home.run(files(), &remains, 1, FINGERPRINT).await;
    assert_eq!((again.unwrap(), computed), (ROWS as u64, 0), "{kind:?} {fault:?}");
    assert_eq!(home.seen().await, expected(), "{kind:?} {fault:?}");
    let runtime = session(files()).runtime_env();
    remains.remove(&runtime).await.unwrap();
    assert_eq!(staging_folders(home.folder.path()), 0, "{kind:?} {fault:?}");
    assert_eq!(home.seen().await, expected(), "{kind:?} {fault:?}");
    (faulty.changes(), kept.rows as usize)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_complete_stays_whichever_operation_failed() {
    for kind in [Kind::Folder, Kind::Into, Kind::Delta, Kind::File] {
        let (changes, _) = disturbed(kind, Fault::None).await;
        assert!(changes > 10, "{kind:?} made {changes} changes");
        let (mut kept_some, mut kept_all) = (0, 0);
        for at in 0..changes {
            for fault in [Fault::Once(at), Fault::Unheard(at), Fault::FromThenOn(at)] {
                let (_, kept) = disturbed(kind, fault).await;
                kept_some += usize::from(kept > 0 && kept < ROWS);
                kept_all += usize::from(kept == ROWS);
            }
        }
        assert!(kept_some > 3 && kept_all > 3, "{kind:?}: {kept_some} kept some, {kept_all} all");
    }
}

/// A write of which all parts are complete and nothing is committed: the last changes are the commit's.
async fn complete_and_not_committed(changes: usize) -> (Home, Remains, Overview) {
    for at in (0..changes).rev() {
        let home = Home::new(Kind::Folder).await;
        let remains = home.remains().await;
        let fault = Faulty::new(Fault::FromThenOn(at), || ());
        let said = home.run(Arc::new(fault), &remains, 1, FINGERPRINT).await.0;
        let kept = home.overview(&remains).await;
        if said.is_err() && kept.rows == ROWS as u64 {
            return (home, remains, kept);
        }
    }
    panic!("in each of {changes} tries the write lacked a part or was committed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_whole_or_not_the_same_is_computed_again() {
    let store = || Arc::new(Faulty::new(Fault::None, || ()));
    let changes = {
        let (home, counting) = (Home::new(Kind::Folder).await, store());
        let remains = home.remains().await;
        home.run(Arc::clone(&counting) as _, &remains, 1, FINGERPRINT).await.0.unwrap();
        counting.changes()
    };
    for change in [
        "a copy",
        "a file is cut short",
        "a file is gone",
        "a record is cut short",
        "an input",
        "the fingerprint",
    ] {
        let (home, remains, kept) = complete_and_not_committed(changes).await;
        assert_eq!((kept.parts, kept.files, kept.unfit), (FILES, FILES, 0), "{change}");
        let staging = Home::staging(&remains);
        let staged: Vec<PathBuf> = fs::read_dir(&staging)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir() && entry.file_name() != "parts")
            .map(|entry| entry.path().join("0"))
            .filter(|file| file.exists())
            .collect();
        let mut fingerprint = FINGERPRINT;
        match change {
            "a copy" => {
                // What a store without renames makes of what is moved and moved back: the tag is another one.
                fs::copy(&staged[0], home.path("copy")).unwrap();
                fs::rename(home.path("copy"), &staged[0]).unwrap();
            }
            "a file is cut short" => fs::write(&staged[0], "PAR1").unwrap(),
            "a file is gone" => fs::remove_file(&staged[0]).unwrap(),
            // What is left of it could be a record of fewer files.
            "a record is cut short" => {
                let record = fs::read_dir(staging.join("parts")).unwrap().flatten().next().unwrap();
                let text = fs::read(record.path()).unwrap();
                fs::write(record.path(), &text[..text.len() - 1]).unwrap();
            }
            "an input" => fs::write(home.path("in/2"), "FOUR").unwrap(),
            _ => fingerprint = "another",
        }
        let again = match change {
            "a copy" => 0,
            "the fingerprint" => ROWS,
            _ => ROWS_OF_FILE as usize,
        };
        let (rows, computed) = home.run(files(), &remains, 1, fingerprint).await;
        assert_eq!((rows.unwrap(), computed), (ROWS as u64, again), "{change}");
        assert_eq!(home.seen().await, expected(), "{change}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_be_resumed_outlives_what_cannot() {
    let home = Home::new(Kind::Into).await;
    let remains = home.remains().await;
    let (failed, _) = home
        .run(Arc::new(Faulty::new(Fault::FromThenOn(4), || ())), &remains, 1, FINGERPRINT)
        .await;
    failed.unwrap_err();
    let path = object_store::path::Path::from_absolute_path(home.folder.path()).unwrap();
    let day = Duration::from_secs(86_400);
    let older = |resumable| OlderThan { left: Duration::ZERO, resumable };
    let left = clean(&files(), &path, true, older(day), false).await.unwrap();
    assert_eq!(fates(&left), [Fate::Resumable]);
    assert!(home.overview(&remains).await.is_there);
    let left = clean(&files(), &path, true, older(Duration::ZERO), false).await.unwrap();
    assert_eq!(fates(&left), [Fate::Removed]);
    assert!(!home.overview(&remains).await.is_there);
    // Nobody knows then whether it had been committed.
    let error = home.run(files(), &remains, 1, FINGERPRINT).await.0.unwrap_err().to_string();
    assert!(error.contains("is gone") && error.contains("FORGET JOB"), "{error}");
    assert_eq!(home.seen().await, Vec::<i64>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_changes_while_it_is_read_ends_the_write() {
    let home = Home::new(Kind::Folder).await;
    let remains = home.remains().await;
    let changed = home.path("in/4");
    // At the first change that anybody makes.
    let store = Faulty::new(Fault::None, move || fs::write(&changed, "longer").unwrap());
    let error =
        home.run(Arc::new(store), &remains, 1, FINGERPRINT).await.0.unwrap_err().to_string();
    assert!(error.contains("in/4' has 6 bytes") && error.contains("ANEW"), "{error}");
    assert_eq!(home.seen().await, Vec::<i64>::new());
    let (rows, _) = home.run(files(), &remains, 1, FINGERPRINT).await;
    assert_eq!(rows.unwrap(), ROWS as u64);
}

/// A write whose rows are all staged, and nothing is made of them yet.
async fn staged_and_nothing_made(changes: usize) -> (Home, Remains) {
    for at in (0..changes).rev() {
        let home = Home::new(Kind::File).await;
        let remains = home.remains().await;
        let fault = Faulty::new(Fault::FromThenOn(at), || ());
        home.run(Arc::new(fault), &remains, 1, FINGERPRINT).await.0.ok();
        let kept = home.overview(&remains).await;
        if !kept.is_committed && kept.rest.is_none() && kept.missing == 0 {
            return (home, remains);
        }
    }
    panic!("in none of {changes} tries all was staged and nothing made");
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_rows_that_are_not_what_was_written_are_named_and_computed_again() {
    let changes = {
        let (home, counting) =
            (Home::new(Kind::File).await, Arc::new(Faulty::new(Fault::None, || ())));
        let remains = home.remains().await;
        home.run(Arc::clone(&counting) as _, &remains, 1, FINGERPRINT).await.0.unwrap();
        counting.changes()
    };
    for change in ["nothing", "a byte", "the end"] {
        let (home, remains) = staged_and_nothing_made(changes).await;
        let entries = fs::read_dir(Home::staging(&remains)).unwrap().flatten();
        let mut all = entries.map(|entry| entry.path().join("0"));
        let is_staged = |file: &PathBuf| fs::read(file).is_ok_and(|all| all.starts_with(b"ARROW1"));
        let file = all.find(is_staged).unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        match change {
            "a byte" => bytes[middle] ^= 1,
            "the end" => bytes.truncate(middle),
            _ => {}
        }
        fs::write(&file, bytes).unwrap();
        let (mut rows, mut computed) = home.run(files(), &remains, 1, FINGERPRINT).await;
        if change == "a byte" {
            // It is as long as it was: what was read of it is not taken for rows.
            let error = rows.unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap().trim_start_matches('/')), "{error}");
            assert!(error.contains("RESUME JOB"), "{error}");
            assert_eq!((computed, home.seen().await), (0, vec![]));
            (rows, computed) = home.run(files(), &remains, 1, FINGERPRINT).await;
        }
        let again = if change == "nothing" { 0 } else { ROWS_OF_FILE as usize };
        assert_eq!((rows.unwrap(), computed), (ROWS as u64, again), "{change}");
        assert_eq!(home.seen().await, expected(), "{change}");
        assert_eq!(parquet_files(&home.path("t")), [home.path("t/all.parquet")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_takes_the_place_of_an_earlier_one_at_once() {
    let home = Home::new(Kind::File).await;
    fs::write(home.path("t/_SUCCESS"), "").unwrap();
    fs::write(home.path("t/all.parquet"), "earlier").unwrap();
    let seen = home.path("t/all.parquet");
    let is_one_or_other = move || {
        let bytes = fs::read(&seen).unwrap();
        assert!(bytes == b"earlier" || (bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1")));
    };
    let remains = home.remains().await;
    let store = Arc::new(Faulty::new(Fault::None, is_one_or_other));
    home.run(store, &remains, 1, FINGERPRINT).await.0.unwrap();
    assert_eq!(home.seen().await, expected());
    // What the folder says of other files stays.
    assert!(home.path("t/_SUCCESS").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_done_before_what_is_made_of_its_parts_is() {
    let mut home = Home::new(Kind::File).await;
    home.fails = true;
    let remains = home.remains().await;
    let failed = home.run(files(), &remains, 1, FINGERPRINT).await.0.unwrap_err().to_string();
    assert!(failed.contains("nothing can be made of them"), "{failed}");
    let (done, all) = home.progress.lock().unwrap();
    assert_eq!((done, all), (FILES as u64 * 4, FILES as u64 * 4 + 4));
    home.fails = false;
    home.run(files(), &remains, 1, FINGERPRINT).await.0.unwrap();
    assert_eq!(*home.progress.lock(), Some((all, all)));
    assert_eq!(home.seen().await, expected());
}
