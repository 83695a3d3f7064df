//! Files that workers write, some of whom are killed meanwhile.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use forebay::ForebayContext;

use super::setup::{
    ACCELERATOR, CPU, NEIGHBOUR, QUERY, Rows, Stage, Undisturbed, moments, rows, run, text,
};

/// All files below a folder, but for those in staging folders.
fn visible(folder: &Path) -> BTreeSet<PathBuf> {
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

pub(super) fn staging_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_staging = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("_forebay-"))
    };
    entries.filter(is_staging).collect()
}

/// The rows of a folder of Parquet files, read by DataFusion without Forebay.
pub(super) async fn read(folder: &Path) -> Rows {
    let session = SessionContext::new();
    let options = ParquetReadOptions::default();
    let table = session.read_parquet(folder.to_str().unwrap(), options).await.unwrap();
    text(&table.collect().await.unwrap())
}

/// Sizes of the row groups of a Parquet file.
fn row_group_bytes(file: &Path) -> Vec<i64> {
    let file = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    file.metadata().row_groups().iter().map(|group| group.total_byte_size()).collect()
}

/// Looks at a folder again and again while it is written: it is not there, or all of it is.
fn watch(folder: PathBuf) -> (SpawnedTask<usize>, Arc<AtomicBool>) {
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let watching = SpawnedTask::spawn(async move {
        let mut looks = 0;
        while !ends.load(Ordering::Acquire) {
            if folder.exists() {
                assert_eq!(read(&folder).await.len(), rows(), "a part of {}", folder.display());
            }
            looks += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        looks
    });
    (watching, over)
}

async fn small_files(session: &ForebayContext) {
    run(session, "SET forebay.file_bytes = 16384").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_written_once_though_workers_are_killed() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    small_files(&session).await;
    let copy = |name: &str| {
        let folder = stage.folder().join(name);
        (format!("COPY ({QUERY}) TO '{}/' STORED AS PARQUET", folder.display()), folder)
    };
    let (calm, folder) = copy("calm");
    assert_eq!(stage.run(&session, &calm).await.unwrap(), [rows().to_string()]);
    assert_eq!(read(&folder).await, undisturbed.rows);
    let files = visible(&folder).len();
    // As large as files are to be, not as many as tasks; and `_SUCCESS`.
    assert!(files > 2 && files < undisturbed.tasks, "{files} files, {} tasks", undisturbed.tasks);
    for (number, moment) in moments(&[0.3, 0.7]).into_iter().enumerate() {
        let session = stage.session().await;
        small_files(&session).await;
        let folder = stage.folder().join(format!("killed-{number}"));
        let copy = format!("COPY ({QUERY}) TO '{}/' STORED AS PARQUET", folder.display());
        let (watching, over) = watch(folder.clone());
        let running = stage.start(&session, &copy);
        stage.reach(&running, moment, &undisturbed).await;
        assert!(!running.is_over(), "the write was over before a worker was killed");
        // The first of those that are there, and the accelerator's.
        let workers = [3 * number, 3 * number + 2];
        workers.iter().for_each(|at| stage.cluster.worker(*at).kill());
        for arguments in [CPU, CPU, ACCELERATOR] {
            stage.cluster.add_worker(arguments);
        }
        stage.cluster.worker(3 * number + 1).kill();
        let said = stage.end(running).await;
        let said =
            said.unwrap_or_else(|error| panic!("{moment}: {error}\n{}", stage.cluster.said()));
        assert_eq!(said, [rows().to_string()]);
        over.store(true, Ordering::Release);
        assert!(watching.join().await.unwrap() > 1);
        assert!(read(&folder).await == undisturbed.rows, "{moment}: other rows");
        assert_eq!(staging_folders(stage.folder()), Vec::<PathBuf>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_cancelled_or_fails_leaves_nothing() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    small_files(&session).await;
    let table = stage.folder().join("table");
    fs::create_dir(&table).unwrap();
    let create = format!(
        "CREATE EXTERNAL TABLE results (id BIGINT, text VARCHAR, label VARCHAR, score DOUBLE)
         STORED AS PARQUET LOCATION '{}/'",
        table.display()
    );
    run(&session, &create).await.unwrap();
    let insert = format!("INSERT INTO results {QUERY}");
    for moment in moments(&[0.2, 0.6]) {
        let running = stage.start(&session, &insert);
        stage.reach(&running, moment, &undisturbed).await;
        assert_eq!(staging_folders(&table).len(), 1);
        drop(running);
        stage
            .until("nothing is left", Duration::from_secs(60), |cluster| {
                cluster.tasks_running() == 0 && staging_folders(&table).is_empty()
            })
            .await;
        assert_eq!(visible(&table), BTreeSet::new());
    }
    // Rows that fail on a worker, in the middle.
    let fails =
        format!("INSERT INTO results SELECT id / (id - 700), text, label, score FROM ({QUERY})");
    let error = stage.run(&session, &fails).await.unwrap_err().to_string();
    assert!(error.contains("Divide by zero"), "{error}");
    stage
        .until("nothing is left", Duration::from_secs(60), |_| staging_folders(&table).is_empty())
        .await;
    assert_eq!(visible(&table), BTreeSet::new());
    assert_eq!(stage.run(&session, &insert).await.unwrap(), [rows().to_string()]);
    let found = run(&session, "SELECT * FROM results").await.unwrap();
    let differs = found.iter().zip(&undisturbed.rows).find(|(one, other)| one != other);
    assert!(found == undisturbed.rows, "{} rows, {differs:?}", found.len());
    assert!(table.join("_SUCCESS").exists());
}

/// A table of Parquet files, whose rows are counted.
const PARTS: usize = 24;
const ROWS_OF_PART: usize = 500;

/// Ten numbers of 8 bytes for each row: the last one takes its time.
const SIZED: &str = "
    SELECT id, id * 2 AS b, id * 3 AS c, id * 4 AS d, id * 5 AS e, id * 6 AS f, id * 7 AS g, id * 8 AS h,
           id * 9 AS i, CAST(character_length(md5(repeat(CAST(id AS VARCHAR), 1000))) AS BIGINT) AS j FROM sized";

fn sized_rows() -> Rows {
    let row = |id: usize| {
        let mut row = id.to_string();
        (2..10).for_each(|by| write!(row, "|{}", id * by).unwrap());
        row + "|32"
    };
    let mut rows: Rows = (0..PARTS * ROWS_OF_PART).map(row).collect();
    rows.sort();
    rows
}

/// A session with that table, and a scan of a partition for each of its files. What waits is not bounded.
async fn sized_session(stage: &Stage) -> ForebayContext {
    let table = stage.folder().join("sized");
    if !table.exists() {
        let session = SessionContext::new();
        for part in 0..PARTS {
            let (from, to) = (part * ROWS_OF_PART, (part + 1) * ROWS_OF_PART);
            // In no order: one that a table has is kept, by one task that sees all rows.
            let copy = format!(
                "COPY (SELECT value * 7919 % {} AS id FROM range({from}, {to})) \
                 TO '{}/{part}.parquet' STORED AS PARQUET",
                PARTS * ROWS_OF_PART,
                table.display()
            );
            session.sql(&copy).await.unwrap().collect().await.unwrap();
        }
    }
    let session = stage.session().await;
    for statement in [
        format!("SET datafusion.execution.target_partitions = {PARTS}").as_str(),
        "SET forebay.block_bytes = '128MiB'",
        "SET forebay.edge_budget = '1GiB'",
        format!("CREATE EXTERNAL TABLE sized STORED AS PARQUET LOCATION '{}/'", table.display())
            .as_str(),
    ] {
        run(&session, statement).await.unwrap();
    }
    session
}

/// A partition has 40 KB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_make_files_of_rows_write_them_and_others_leave_that_to_others() {
    let stage = Stage::new(60, &[CPU, CPU, CPU]);
    let session = sized_session(&stage).await;
    // Bytes of a file; whether the tasks that make the rows write; tasks; files.
    for (file_bytes, is_direct, tasks, files) in [
        (60_000, true, PARTS, PARTS),
        // Four partitions each.
        (170_000, true, 6, 6),
        (2_000_000, false, PARTS + 1, 1),
    ] {
        run(&session, &format!("SET forebay.file_bytes = {file_bytes}")).await.unwrap();
        let folder = stage.folder().join(file_bytes.to_string());
        let copy = format!("COPY ({SIZED}) TO '{}/' STORED AS PARQUET", folder.display());
        let plan = run(&session, &format!("EXPLAIN {copy}")).await.unwrap().concat();
        assert!(plan.contains("WriteExec: format=Parquet"), "{plan}");
        assert_eq!(plan.contains("direct=true"), is_direct, "{file_bytes}: {plan}");
        let begun = stage.cluster.tasks_begun();
        let said = stage.run(&session, &copy).await.unwrap();
        assert_eq!(said, [(PARTS * ROWS_OF_PART).to_string()]);
        assert_eq!(stage.cluster.tasks_begun() - begun, tasks, "{file_bytes}");
        assert!(read(&folder).await == sized_rows(), "{file_bytes}: other rows");
        // And `_SUCCESS`.
        assert_eq!(visible(&folder).len(), files + 1, "{file_bytes}");
    }
    // Into folders by values.
    let folder = stage.folder().join("folders");
    let copy = format!(
        "COPY (SELECT id, id % 2 AS part FROM sized) TO '{}/' STORED AS PARQUET PARTITIONED BY (part)",
        folder.display()
    );
    run(&session, "SET forebay.file_bytes = 8000").await.unwrap();
    let plan = run(&session, &format!("EXPLAIN {copy}")).await.unwrap().concat();
    assert!(plan.contains("direct=true"), "{plan}");
    stage.run(&session, &copy).await.unwrap();
    for part in 0..2 {
        let folder = folder.join(format!("part={part}"));
        let mut expected: Rows = (0..PARTS * ROWS_OF_PART)
            .filter(|id| id % 2 == part)
            .map(|id| id.to_string())
            .collect();
        expected.sort();
        assert!(read(&folder).await == expected, "part={part}");
        assert_eq!(visible(&folder).len(), PARTS);
    }
}

/// A row group is in a worker's memory while it is written. By default it would have a million rows, however wide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_groups_of_wide_rows_have_few_of_them() {
    let stage = Stage::new(60, &[CPU, NEIGHBOUR]);
    let session = sized_session(&stage).await;
    let rows = PARTS * ROWS_OF_PART;
    let wide = "CASE WHEN id < 400 THEN repeat(chr(CAST(97 + id % 26 AS BIGINT)), 100000) END";
    run(&session, "SET datafusion.execution.batch_size = 50").await.unwrap();
    // 40 MB in batches of 5 MB: a row group closes with the batch that fills it.
    for (target, options, most, few) in [
        ("default", "", 34_000_000, 2),
        ("asked", ", 'format.max_row_group_bytes' '4000000'", 5_100_000, 9),
    ] {
        let folder = stage.folder().join(target);
        let copy = format!(
            "COPY (SELECT id, {wide} AS wide FROM sized ORDER BY id) TO '{}/' STORED AS PARQUET \
             OPTIONS ('format.compression' 'uncompressed', 'format.dictionary_enabled' 'false'{options})",
            folder.display()
        );
        assert_eq!(stage.run(&session, &copy).await.unwrap(), [rows.to_string()]);
        let files = visible(&folder).into_iter().filter(|file| !file.ends_with("_SUCCESS"));
        let sizes: Vec<_> = files.flat_map(|file| row_group_bytes(&file)).collect();
        assert!(sizes.iter().all(|bytes| *bytes < most), "{target}: {sizes:?}");
        assert!(sizes.len() <= few, "{target}: {sizes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_tasks_that_make_their_rows_are_written_once_though_workers_are_killed() {
    let mut stage = Stage::new(10, &[CPU, CPU, CPU]);
    let undisturbed = Undisturbed { rows: sized_rows(), took: Duration::ZERO, tasks: PARTS };
    for (number, moment) in moments(&[0.2, 0.5]).into_iter().enumerate() {
        let session = sized_session(&stage).await;
        run(&session, "SET forebay.file_bytes = 60000").await.unwrap();
        let folder = stage.folder().join(format!("killed-{number}"));
        let copy = format!("COPY ({SIZED}) TO '{}/' STORED AS PARQUET", folder.display());
        let running = stage.start(&session, &copy);
        stage.reach(&running, moment, &undisturbed).await;
        assert!(!running.is_over(), "the write was over before a worker was killed");
        let workers = [3 * number, 3 * number + 1];
        workers.iter().for_each(|at| stage.cluster.worker(*at).kill());
        for _ in 0..3 {
            stage.cluster.add_worker(CPU);
        }
        stage.cluster.worker(3 * number + 2).kill();
        let said = stage.end(running).await;
        let said =
            said.unwrap_or_else(|error| panic!("{moment}: {error}\n{}", stage.cluster.said()));
        assert_eq!(said, [(PARTS * ROWS_OF_PART).to_string()]);
        assert!(read(&folder).await == undisturbed.rows, "{moment}: other rows");
        assert_eq!(visible(&folder).len(), PARTS + 1, "{moment}");
        assert_eq!(staging_folders(stage.folder()), Vec::<PathBuf>::new());
    }
}
