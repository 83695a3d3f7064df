//! Window functions over all rows, which tasks compute range by range: values are those of one process, and of
//! another engine, whatever the keys are and whoever is killed meanwhile.

use std::path::Path;
use std::process::Command;

use forebay::ForebayContext;

use super::history;
use super::setup::{CPU, NEIGHBOUR, Stage, run};
use super::sorts::{DUCKDB, FOR_BOTH, ROWS, SORTED_BY_DUCKDB, Sorts, disturbed, files, ranges};

/// All that follow from how many rows there are, over the window `w`.
const FUNCTIONS: &str = "row_number() OVER w AS n, rank() OVER w AS r, count(*) OVER w AS c, \
                         percent_rank() OVER w AS pr, cume_dist() OVER w AS cd, ntile(7) OVER w AS nt";

/// A session for which a few hundred rows are a range, whatever they are.
async fn session(sorts: &Sorts) -> ForebayContext {
    let session = sorts.session().await;
    for option in ["range_bytes = 4000", "block_bytes = 1000"] {
        run(&session, &format!("SET forebay.{option}")).await.unwrap();
    }
    session
}

/// These functions beside the keys of their window. Of rows with equal keys it does not matter which has which
/// number: all that is shown of them is equal.
fn over(keys: &str, order: &str, from: &str) -> String {
    format!("SELECT {keys}, {FUNCTIONS} FROM {from} WINDOW w AS (ORDER BY {order})")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_those_of_one_process_whatever_the_keys_are() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, CPU])).await;
    let session = session(&sorts).await;
    // These files are large enough to be cut into several runs.
    run(&session, "SET datafusion.optimizer.repartition_file_min_size = 1").await.unwrap();
    for (keys, order) in [
        ("id", "id"),
        ("id", "id DESC"),
        ("k", "k"),
        ("k, s", "k DESC, s NULLS FIRST"),
        ("s", "s"),
        ("s", "s DESC NULLS LAST"),
        ("f", "f"),
        ("f", "f DESC NULLS FIRST"),
        ("d, k", "d DESC, k"),
        ("t", "t"),
        ("nothing, id", "nothing, id DESC"),
    ] {
        let tasks = sorts.compare(&session, &over(keys, order, "sorts")).await;
        assert!(ranges(&tasks) > 5, "{order}: {tasks:?}");
    }
    // What a key is called above the sort may not be what it is called below; then one task has all rows.
    sorts.compare(&session, &over("upper(s)", "upper(s)", "sorts")).await;
    // One key for all rows, or none, and no rows.
    for query in [
        over("one", "one", "sorts"),
        over("nothing", "nothing DESC", "sorts"),
        over("id", "id", "(SELECT * FROM sorts WHERE id < 0)"),
    ] {
        let tasks = sorts.compare(&session, &query).await;
        assert!(ranges(&tasks) <= 2, "{query}: {tasks:?}");
    }
    run(&session, "SET forebay.range_bytes = 0").await.unwrap();
    assert_eq!(ranges(&sorts.compare(&session, &over("k", "k", "sorts")).await), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_windows_and_what_is_above_and_below_them() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, NEIGHBOUR])).await;
    let session = session(&sorts).await;
    for query in [
        "SELECT id, row_number() OVER (ORDER BY id) AS n FROM sorts ORDER BY id",
        "SELECT k, id, row_number() OVER (ORDER BY k, id) AS n, row_number() OVER (ORDER BY k) AS m,
           ntile(100) OVER (ORDER BY k) AS t FROM sorts",
        "SELECT id, count(*) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS n FROM sorts",
        "SELECT id, n * 2 AS n FROM (SELECT id, k, row_number() OVER (ORDER BY id DESC) AS n FROM sorts WHERE k < 700)
           WHERE n % 7 = 3 AND k <> 5",
        "SELECT k, n, r, rank() OVER (ORDER BY k) + n AS again FROM
           (SELECT k, count(*) AS n, rank() OVER (ORDER BY k) AS r FROM sorts GROUP BY k)",
    ] {
        let tasks = sorts.compare(&session, query).await;
        assert!(ranges(&tasks) > 1, "{query}: {tasks:?}");
    }
}

/// Where rows of other ranges matter, or a run could come otherwise, one task has all rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_computes_what_ranges_would_be_wrong_for() {
    let sorts = Sorts::new(Stage::new(60, &[CPU, CPU])).await;
    let session = session(&sorts).await;
    for functions in [
        "sum(id) OVER (ORDER BY id)",
        "row_number() OVER (ORDER BY id), dense_rank() OVER (ORDER BY id)",
        "lag(k) OVER (ORDER BY id), lead(k, 2) OVER (ORDER BY id)",
        "first_value(s) OVER (ORDER BY id), max(k) OVER (ORDER BY id)",
        "count(s) OVER (ORDER BY id)",
        "count(*) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)",
        "count(*) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING)",
        "rank() OVER (ORDER BY k), row_number() OVER (ORDER BY k, id)",
        "row_number() OVER (ORDER BY k, id), row_number() OVER (ORDER BY d, id)",
    ] {
        let query = format!("SELECT id, {functions} FROM sorts");
        let tasks = sorts.compare(&session, &query).await;
        assert_eq!(ranges(&tasks), 1, "{query}: {tasks:?}");
    }
    for query in [
        "SELECT max(n), sum(n) FROM (SELECT row_number() OVER (ORDER BY id) AS n FROM sorts)",
        "SELECT id, row_number() OVER (ORDER BY id) AS n FROM sorts LIMIT 40",
    ] {
        let tasks = sorts.compare(&session, query).await;
        assert_eq!(ranges(&tasks), 1, "{query}: {tasks:?}");
    }
}

/// DataFusion does not write these down in the bytes of a plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_would_be_others_on_a_worker_is_computed_by_the_session() {
    let sorts = Sorts::new(Stage::new(60, &[CPU])).await;
    let session = session(&sorts).await;
    for function in [
        "count(*) FILTER (WHERE k = 7) OVER (ORDER BY id)",
        "sum(id) FILTER (WHERE k = 7) OVER (ORDER BY id ROWS 5 PRECEDING)",
        "lag(s) IGNORE NULLS OVER (ORDER BY id)",
    ] {
        let query = format!("SELECT id, {function} AS n FROM sorts");
        let begun = sorts.stage.cluster.tasks_begun();
        let mut expected = sorts.expected(&query).await;
        expected.sort();
        assert!(run(&session, &query).await.unwrap() == expected, "{query}: other rows");
        assert_eq!(sorts.stage.cluster.tasks_begun(), begun, "{query}: a worker has done it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_which_way_is_taken() {
    let sorts = Sorts::new(Stage::new(60, &[CPU])).await;
    let session = session(&sorts).await;
    for (function, in_ranges) in [("rank()", true), ("sum(k)", false)] {
        let query = format!("EXPLAIN SELECT id, {function} OVER (ORDER BY id) AS n FROM sorts");
        let plan = run(&session, &query).await.unwrap().join("\n");
        assert_eq!(plan.contains("RangeWindow < BoundedWindowAgg < Sort"), in_ranges, "{plan}");
        assert_eq!(plan.contains("reads 0 in ranges when it is done"), in_ranges, "{plan}");
    }
}

/// Rows with equal keys, whose values are written to files by several tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_in_files_are_those_of_another_engine() {
    let setup = "tools/setup duckdb makes the environment that this test needs";
    assert!(Path::new(DUCKDB).exists(), "no {DUCKDB}: {setup}");
    let sorts = Sorts::new(Stage::new(60, &[CPU, CPU])).await;
    let session = session(&sorts).await;
    for (number, (keys, order)) in [
        ("k", "k DESC"),
        ("s, k", "s DESC NULLS FIRST, k"),
        ("f", "f NULLS FIRST"),
        ("f, s", "f DESC NULLS LAST, s NULLS FIRST"),
        ("t, d", "t DESC, d"),
        ("id", "id"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = sorts.stage.folder().join(format!("by-{number}"));
        let query = over(keys, order, &format!("({FOR_BOTH}) AS rows"));
        let copy = format!("COPY ({query}) TO '{}/' STORED AS PARQUET", folder.display());
        assert_eq!(run(&session, &copy).await.unwrap(), [ROWS.to_string()], "{order}");
        let mut python = Command::new(DUCKDB);
        python.args(["-c", SORTED_BY_DUCKDB]).args([&folder, &sorts.table]);
        let said = python.arg(format!("{query} ORDER BY n")).output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{order}: {errors}");
        let expected = format!("{} {ROWS}", files(&folder).len());
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), expected, "{order}: {errors}");
        assert!(files(&folder).len() > 5, "{order}: {expected}");
    }
}

/// The runs of the worker are made again, and ranges go on from where they did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_while_ranges_are_read() {
    let mut sorts = Sorts::new(Stage::new(10, &[CPU, NEIGHBOUR])).await;
    let query = over("k, s", "k, s DESC", "sorts");
    let (session, job) = disturbed(&mut sorts, &query, |stage| {
        stage.cluster.worker(0).kill();
        stage.cluster.add_worker(CPU);
    })
    .await;
    let again = history::recomputed(&session, &job).await;
    assert!(again.iter().any(|again| again.unit.0 == 0), "{again:?}");
}
