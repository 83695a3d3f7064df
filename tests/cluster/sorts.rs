//! ORDER BY, which several tasks merge range by range: rows come in the order of one process, whatever
//! the keys are and whoever is killed meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use datafusion::prelude::SessionContext;
use forebay::ForebayContext;
use futures::TryStreamExt;
use tempfile::TempDir;

use super::history::{self, Task};
use super::restarts::restart;
use super::setup::{CPU, FILES, NEIGHBOUR, Stage, begin, lines, run};

pub(super) const ROWS: usize = 6000;

/// Python with a library that reads Parquet files, for the tests of clients.
const PYTHON: &str = ".forebay/clients/bin/python";

/// Python with another engine, whose sort has nothing in common with ours.
pub(super) const DUCKDB: &str = ".forebay/duckdb/bin/python";

/// Columns with keys of all kinds: `k` has one value in four of ten rows, `s` begins alike, `f` has all that floats
/// can be. `id` is different in each row.
const COLUMNS: &str = "
    value * 7919 % 6000 AS id,
    CASE WHEN value % 10 < 4 THEN 7 ELSE value * 31 % 1000 END AS k,
    CASE WHEN value % 13 = 0 THEN NULL
      ELSE concat('all of them begin with these words, ', md5(CAST(value % 2500 AS VARCHAR))) END AS s,
    CASE value % 17 WHEN 0 THEN NULL WHEN 1 THEN CAST('NaN' AS DOUBLE) WHEN 2 THEN -0.0 WHEN 3 THEN 0.0
      WHEN 4 THEN CAST('-inf' AS DOUBLE) ELSE sqrt(value) * (CASE value % 2 WHEN 0 THEN 1 ELSE -1 END) END AS f,
    CAST(value * 7919 % 99991 AS DECIMAL(20, 3)) / 8 AS d,
    to_timestamp(value * 977 % 5000) AS t,
    CAST(NULL AS BIGINT) AS nothing,
    1 AS one,
    [value % 50] AS list";

/// Two workers and a table, in a session whose ranges are small.
pub(super) struct Sorts {
    pub(super) stage: Stage,
    plain: SessionContext,
    pub(super) table: PathBuf,
}

impl Sorts {
    pub(super) async fn new(stage: Stage) -> Self {
        let table = stage.folder().join("sorts");
        let session = stage.local().await;
        for file in 0..FILES {
            let (from, to) = (file * ROWS / FILES, (file + 1) * ROWS / FILES);
            let copy = format!(
                "COPY (SELECT {COLUMNS} FROM range({from}, {to})) TO '{}/{file}.parquet' STORED AS PARQUET",
                table.display()
            );
            run(&session, &copy).await.unwrap();
        }
        let plain = SessionContext::new();
        plain.sql(&create(&table)).await.unwrap();
        Self { stage, plain, table }
    }

    pub(super) async fn session(&self) -> ForebayContext {
        let session = self.stage.session().await;
        run(&session, &create(&self.table)).await.unwrap();
        run(&session, "SET forebay.range_bytes = 20000").await.unwrap();
        session
    }

    pub(super) async fn expected(&self, query: &str) -> Vec<String> {
        lines(&self.plain.sql(query).await.unwrap().collect().await.unwrap())
    }

    /// Compares the rows in their order; gives the tasks that it took.
    pub(super) async fn compare(&self, session: &ForebayContext, query: &str) -> Vec<Task> {
        let rows = async { session.sql(query).await?.collect().await };
        let rows = self.stage.bounded(rows).await;
        let rows = rows.unwrap_or_else(|error| panic!("{query}: {error}"));
        assert!(
            lines(&rows) == self.expected(query).await,
            "{query}: other rows, or another order"
        );
        let job = history::last_job(session).await;
        history::tasks(session, &job).await
    }
}

fn create(table: &Path) -> String {
    format!("CREATE EXTERNAL TABLE sorts STORED AS PARQUET LOCATION '{}/'", table.display())
}

/// Tasks of the last stage, which merges: one per range.
pub(super) fn ranges(tasks: &[Task]) -> usize {
    let last = tasks.iter().map(|task| task.unit.0).max().unwrap();
    tasks.iter().filter(|task| task.unit.0 == last).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_in_the_order_of_one_process_whatever_the_keys_are() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, CPU])).await;
    let session = sorts.session().await;
    // These files are large enough to be cut into several runs.
    run(&session, "SET datafusion.optimizer.repartition_file_min_size = 1").await.unwrap();
    for order in [
        "id",
        "id DESC",
        "k, id",
        "k DESC, s NULLS FIRST, id",
        "s, id DESC",
        "s DESC NULLS LAST, id",
        "f, id",
        "f DESC NULLS FIRST, id",
        "d DESC, id",
        "t, id",
        "upper(s), id",
        "nothing, id DESC",
        "one, id",
        "CAST(id % 3 AS VARCHAR), d + id, id",
    ] {
        let query = format!("SELECT id, k, s, f, d, t FROM sorts ORDER BY {order}");
        let tasks = sorts.compare(&session, &query).await;
        assert!(ranges(&tasks) > 5, "{order}: {tasks:?}");
    }
    // Behind an aggregate and a projection.
    let query = "SELECT k + 1 AS k, count(*) AS n, concat(min(s), max(s)) AS s FROM sorts GROUP BY k ORDER BY k";
    assert!(ranges(&sorts.compare(&session, query).await) > 1);
}

/// Where a task per range would be wrong, of no use, or not possible, one task merges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_merges_what_ranges_would_be_wrong_for() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, NEIGHBOUR])).await;
    let session = sorts.session().await;
    for query in [
        "SELECT id, s FROM sorts ORDER BY id LIMIT 5000",
        "SELECT id, s FROM sorts ORDER BY id OFFSET 17",
        "SELECT id, row_number() OVER (PARTITION BY k ORDER BY id) AS n FROM sorts ORDER BY n, id",
        "SELECT id, s FROM sorts ORDER BY list, id",
        "SELECT id, s FROM sorts WHERE id < 0 ORDER BY id",
        "SELECT one FROM sorts ORDER BY one",
        "SELECT nothing FROM sorts ORDER BY nothing",
    ] {
        let tasks = sorts.compare(&session, query).await;
        // Behind all rows of one key may be others, as far as their blocks tell.
        assert!(ranges(&tasks) <= 2, "{query}: {tasks:?}");
    }
    // Without an order that says where each row is, but with a row each.
    let volatile = "SELECT id FROM (SELECT id, random() AS r FROM sorts) ORDER BY r, id";
    let mut rows = run(&session, volatile).await.unwrap();
    rows.sort_by_key(|row| row.parse::<usize>().unwrap());
    assert_eq!(rows, (0..ROWS).map(|id| id.to_string()).collect::<Vec<_>>());
    let job = history::last_job(&session).await;
    assert_eq!(ranges(&history::tasks(&session, &job).await), 1);
    let query = "SELECT id, s FROM sorts ORDER BY s, id";
    for (option, value) in
        [("range_bytes", "0"), ("range_bytes", "64MiB"), ("dynamic_blocks", "false")]
    {
        run(&session, &format!("SET forebay.{option} = '{value}'")).await.unwrap();
        assert_eq!(ranges(&sorts.compare(&session, query).await), 1, "{option} = {value}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_some_megabytes_are_sorted_and_written() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, CPU])).await;
    let session = sorts.session().await;
    let large =
        "SELECT id, repeat(CAST(id AS VARCHAR), 600000) AS large FROM sorts WHERE id % 400 = 3";
    let query = format!(
        "SELECT id, length(large) AS l, md5(large) AS m FROM ({large}) ORDER BY large DESC"
    );
    sorts.compare(&session, &query).await;
    let folder = sorts.stage.folder().join("large");
    let copy = format!("COPY ({large} ORDER BY id) TO '{}/' STORED AS PARQUET", folder.display());
    assert_eq!(run(&session, &copy).await.unwrap(), ["15"]);
    let expected: Vec<_> = (0..15).map(|at| (at * 400 + 3).to_string()).collect();
    assert_eq!(written(&folder, "id").await.concat(), expected);
    sorts.stage.nothing_ran_again(&session).await;
}

/// The files of a folder in the order of their names.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|of| of == "parquet")).collect();
    files.sort();
    files
}

/// The rows of each file.
async fn written(folder: &Path, columns: &str) -> Vec<Vec<String>> {
    let mut found = vec![];
    for file in files(folder) {
        // One after the other, as they lie there.
        let config = datafusion::prelude::SessionConfig::new().with_target_partitions(1);
        let session = SessionContext::new_with_config(config);
        let create =
            format!("CREATE EXTERNAL TABLE file STORED AS PARQUET LOCATION '{}'", file.display());
        session.sql(&create).await.unwrap();
        let rows = session.sql(&format!("SELECT {columns} FROM file")).await.unwrap();
        found.push(lines(&rows.collect().await.unwrap()));
    }
    found
}

/// What another reader and another sort say of files: whether they are sorted in the order of their names, and have
/// the rows of the table.
const ORACLE: &str = "
import sys, glob, pyarrow as pa, pyarrow.parquet as pq
written, table = ([pq.ParquetFile(f).read(['s', 'k', 'id']) for f in sorted(glob.glob(p + '/*.parquet'))]
                  for p in sys.argv[1:3])
print(len(written))
written, table = pa.concat_tables(written), pa.concat_tables(table)
schema = pa.schema([('s', pa.string()), ('k', pa.int64()), ('id', pa.int64())])
written, table = written.cast(schema), table.cast(schema)
keys = [('s', 'descending'), ('k', 'ascending'), ('id', 'descending')]
assert written.equals(table.sort_by(keys)), 'another order, or other rows'
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_copy_are_sorted_by_their_names() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, CPU])).await;
    let session = sorts.session().await;
    let ordered = "SELECT s, k, id FROM sorts ORDER BY s DESC NULLS LAST, k, id DESC";
    let folder = sorts.stage.folder().join("sorted");
    let copy = format!("COPY ({ordered}) TO '{}/' STORED AS PARQUET", folder.display());
    assert_eq!(run(&session, &copy).await.unwrap(), [ROWS.to_string()]);
    let found = written(&folder, "s, k, id").await;
    assert!(found.len() > 5 && found.iter().all(|rows| !rows.is_empty()), "{}", found.len());
    assert!(found.concat() == sorts.expected(ordered).await, "other rows, or another order");
    if Path::new(PYTHON).exists() {
        let mut python = Command::new(PYTHON);
        let said = python.args(["-c", ORACLE]).args([&folder, &sorts.table]).output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert_eq!(
            String::from_utf8_lossy(&said.stdout).trim(),
            found.len().to_string(),
            "{errors}"
        );
        assert!(said.status.success(), "{errors}");
    }
    // In folders by values, each of them is sorted. Only where these come one after the other a task writes to few.
    for (by, ranges) in [("id", false), ("part, id", true)] {
        let folder = sorts.stage.folder().join(format!("folders-{ranges}"));
        let copy = format!(
            "COPY (SELECT id, k % 3 AS part FROM sorts ORDER BY {by}) TO '{}/' STORED AS PARQUET \
             PARTITIONED BY (part)",
            folder.display()
        );
        run(&session, &copy).await.unwrap();
        let mut files = 0;
        for part in 0..3 {
            let query = format!("SELECT id FROM sorts WHERE k % 3 = {part} ORDER BY id");
            let found = written(&folder.join(format!("part={part}")), "id").await;
            files += found.len();
            assert!(found.concat() == sorts.expected(&query).await, "{by}: {part}");
        }
        assert!(if ranges { files > 3 } else { files == 3 }, "{by}: {files}");
    }
    // What is added to a table.
    let into = sorts.stage.folder().join("sorted").display().to_string();
    let create = format!("CREATE EXTERNAL TABLE sorted STORED AS PARQUET LOCATION '{into}/'");
    run(&session, &create).await.unwrap();
    let insert = "INSERT INTO sorted SELECT s, k, id + 6000 AS id FROM sorts ORDER BY id";
    assert_eq!(run(&session, insert).await.unwrap(), [ROWS.to_string()]);
    let ids = run(&session, "SELECT count(DISTINCT id), count(*) FROM sorted").await.unwrap();
    assert_eq!(ids, ["12000|12000"]);
}

/// Whether rows of files, in the order of their names, are those of a query as DuckDB sorts them; how many files and
/// rows there are.
pub(super) const SORTED_BY_DUCKDB: &str = r#"
import glob, sys, duckdb
written, table, query = sys.argv[1:]
database = duckdb.connect()
database.execute(f"CREATE VIEW sorts AS SELECT * FROM read_parquet('{table}/*.parquet')")
expected = database.execute(query).fetchall()
files = sorted(glob.glob(written + '/*.parquet'))
read = lambda file: database.execute(f"SELECT * FROM read_parquet('{file}')").fetchall()
found = [row for file in files for row in read(file)]
assert len(found) == len(expected), f'{len(found)} rows instead of {len(expected)}'
for at, (row, expects) in enumerate(zip(found, expected)):
    # NaN is equal to nothing, and is called the same.
    assert repr(row) == repr(expects), f'row {at} is {row} instead of {expects}'
print(len(files), len(found))
"#;

/// Both engines understand this, and sort alike: in DuckDB -0.0 and 0.0 are one number, in the total order of floats
/// two.
pub(super) const FOR_BOTH: &str = "
    SELECT id, k, d, t, CASE WHEN abs(f) < 0.5 THEN 1.5 ELSE f END AS f,
      CASE WHEN s IS NULL THEN NULL ELSE concat(CASE id % 8 WHEN 0 THEN 'ä' WHEN 1 THEN 'z' WHEN 2 THEN '日本'
        WHEN 3 THEN '😀' WHEN 4 THEN '\u{ffff}' WHEN 5 THEN '' WHEN 6 THEN 'Z' ELSE 'a' END,
        substr(s, 37, 1)) END AS s
    FROM sorts";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_copy_are_in_the_order_of_another_engine() {
    let setup = "tools/setup duckdb makes the environment that this test needs";
    assert!(Path::new(DUCKDB).exists(), "no {DUCKDB}: {setup}");
    let sorts = Sorts::new(Stage::new(60, &[CPU, NEIGHBOUR])).await;
    let session = sorts.session().await;
    for (number, order) in [
        "s DESC NULLS FIRST, k, id DESC",
        "s NULLS LAST, f DESC NULLS LAST, id",
        "f DESC NULLS LAST, s NULLS FIRST, id",
        "f NULLS FIRST, d DESC, id",
        "d DESC, s DESC NULLS LAST, id",
        "k DESC, d, f NULLS LAST, id",
        "t DESC, s NULLS FIRST, f DESC NULLS FIRST, id DESC",
    ]
    .into_iter()
    .enumerate()
    {
        let folder = sorts.stage.folder().join(format!("by-{number}"));
        let query = format!("SELECT * FROM ({FOR_BOTH}) AS rows ORDER BY {order}");
        let copy = format!("COPY ({query}) TO '{}/' STORED AS PARQUET", folder.display());
        assert_eq!(run(&session, &copy).await.unwrap(), [ROWS.to_string()], "{order}");
        let mut python = Command::new(DUCKDB);
        python.args(["-c", SORTED_BY_DUCKDB]).args([&folder, &sorts.table]).arg(query);
        let said = python.output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{order}: {errors}");
        let expected = format!("{} {ROWS}", files(&folder).len());
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), expected, "{order}: {errors}");
        assert!(files(&folder).len() > 5, "{order}: {expected}");
    }
}

const QUERY: &str = "SELECT id, k, s, f, d FROM sorts ORDER BY k, s DESC, id";

/// Reads the first rows of a query of which ranges wait to be read, has something happen to the cluster,
/// and reads the others.
pub(super) async fn disturbed(
    sorts: &mut Sorts,
    query: &str,
    disturb: impl FnOnce(&mut Stage),
) -> (ForebayContext, String) {
    let session = sorts.session().await;
    let all = ranges(&sorts.compare(&session, query).await);
    let mut stream = begin(&session, query).await;
    let mut batches = vec![sorts.stage.bounded(stream.try_next()).await.unwrap().unwrap()];
    sorts.stage.until_result_waits(&session).await;
    let job = history::last_job(&session).await;
    let begun = ranges(&history::tasks(&session, &job).await);
    assert!(0 < begun && begun < all, "{begun} of {all} ranges");
    disturb(&mut sorts.stage);
    let rest = sorts.stage.bounded(stream.try_collect::<Vec<_>>()).await;
    batches.extend(rest.unwrap_or_else(|error| panic!("{error}\n{}", sorts.stage.cluster.said())));
    assert!(lines(&batches) == sorts.expected(query).await, "other rows, or another order");
    (session, job)
}

/// The runs of the worker are made again, and cut where they were cut; ranges that were read stay read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_while_ranges_are_read() {
    let mut sorts = Sorts::new(Stage::new(10, &[CPU, NEIGHBOUR])).await;
    let (session, job) = disturbed(&mut sorts, QUERY, |stage| {
        stage.cluster.worker(0).kill();
        stage.cluster.add_worker(CPU);
    })
    .await;
    let again = history::recomputed(&session, &job).await;
    let runs =
        history::units(again.iter().map(|again| &again.unit).filter(|unit| unit.0 == 0)).len();
    assert!(0 < runs && runs < FILES, "{again:?}");
    sorts.stage.until_nothing_is_left(&[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scheduler_is_killed_while_ranges_are_read() {
    let state = TempDir::new().unwrap();
    let scheduler = ["--worker-timeout", "10", "--state", state.path().to_str().unwrap()];
    let mut sorts = Sorts::new(Stage::open(12, &scheduler, &[CPU, CPU], None)).await;
    disturbed(&mut sorts, QUERY, |stage| drop(restart(stage, &[]))).await;
    disturbed(&mut sorts, QUERY, |stage| drop(restart(stage, &[(0, CPU)]))).await;
}

/// A worker is killed at several moments of a write: files are those of one process all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_while_ranges_are_written() {
    let mut sorts = Sorts::new(Stage::new(10, &[CPU, NEIGHBOUR])).await;
    let expected = sorts.expected(QUERY).await;
    let session = sorts.session().await;
    let copy =
        |folder: &Path| format!("COPY ({QUERY}) TO '{}/' STORED AS PARQUET", folder.display());
    let calm = sorts.stage.folder().join("calm");
    let begun = sorts.stage.cluster.tasks_begun();
    run(&session, &copy(&calm)).await.unwrap();
    let tasks = sorts.stage.cluster.tasks_begun() - begun;
    for (number, moment) in [0.4, 0.7].into_iter().enumerate() {
        let session = sorts.session().await;
        let folder = sorts.stage.folder().join(format!("killed-{number}"));
        let begun = sorts.stage.cluster.tasks_begun();
        let running = sorts.stage.start(&session, &copy(&folder));
        sorts.stage.until_tasks_run(begun + (tasks as f64 * moment) as usize).await;
        assert!(!running.is_over(), "the write was over before a worker was killed");
        sorts.stage.cluster.worker(number).kill();
        sorts.stage.cluster.add_worker(CPU);
        let rows = sorts.stage.end(running).await;
        let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", sorts.stage.cluster.said()));
        assert_eq!(rows, [ROWS.to_string()]);
        assert!(written(&folder, "*").await.concat() == expected, "{moment}: other rows");
    }
}
