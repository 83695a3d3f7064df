//! Hash shuffles whose segments are merged on the way, though they are few, and whose workers are killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use datafusion::prelude::{SessionConfig, SessionContext};
use forebay::ForebayContext;
use forebay_testkit::random::Random;

use super::history::{self, Unit, units};
use super::setup::{CPU, FILES, NEIGHBOUR, Stage, is_long, random, run, text};

/// Rows of a table, in as many files as there are partitions.
const ROWS: usize = 60_000;

/// Of those whose keys are many, some are in many rows, and some are NULL.
const COLUMNS: &str = "
    value AS n,
    CASE WHEN value % 10 = 0 THEN 7 WHEN value % 11 = 5 THEN NULL ELSE value * 7919 % 50000 END AS k,
    concat('text ', CAST(value % 5000 AS VARCHAR)) AS text";

async fn write_table(session: &ForebayContext, folder: &Path) {
    for file in 0..FILES {
        let (from, to) = (file * ROWS / FILES, (file + 1) * ROWS / FILES);
        let copy = format!(
            "COPY (SELECT {COLUMNS} FROM range({from}, {to})) TO '{}/numbers/{file}.parquet' \
             STORED AS PARQUET",
            folder.display()
        );
        run(session, &copy).await.unwrap();
    }
}

fn create(folder: &Path) -> String {
    let place = folder.join("numbers");
    format!("CREATE EXTERNAL TABLE numbers STORED AS PARQUET LOCATION '{}/'", place.display())
}

/// A session that merges whatever it deals out, in rounds of 8 KiB.
async fn merging(stage: &Stage) -> ForebayContext {
    let session = stage.session().await;
    let threshold = "datafusion.optimizer.hash_join_single_partition_threshold";
    for option in [
        "forebay.merge_segments_from = 1".to_owned(),
        // Of what nobody knows how much it is, too.
        "forebay.merge_segments_below = '1GiB'".to_owned(),
        format!("{threshold} = 0"),
        format!("{threshold}_rows = 0"),
    ] {
        run(&session, &format!("SET {option}")).await.unwrap();
    }
    run(&session, &create(stage.folder())).await.unwrap();
    session
}

/// A join, an aggregate, or one above the other.
fn query(random: &mut Random) -> String {
    let kind = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"][random.index(4)];
    let (few, shift) = (random.between(1, 3000), random.below(ROWS as u64));
    let on = format!("a.k = (b.n + {shift}) % 50000 AND a.n % 3 <> b.n % 2");
    let join = format!("numbers a {kind} numbers b ON {on}");
    match random.below(5) {
        0 => format!(
            "SELECT k, count(*), sum(n), min(text) FROM numbers WHERE n > {shift} GROUP BY k"
        ),
        1 => format!(
            "SELECT n % {few}, count(DISTINCT text), count(k) FROM numbers GROUP BY n % {few}"
        ),
        2 => format!("SELECT a.n, b.n, a.text, b.k FROM {join}"),
        3 => format!(
            "SELECT b.n % {few}, count(*), max(a.text), sum(b.k) FROM {join} GROUP BY b.n % {few}"
        ),
        _ => {
            let not = if random.chance(50) { "NOT " } else { "" };
            format!(
                "SELECT text, count(*) FROM numbers a WHERE {not}EXISTS (SELECT 1 FROM numbers b \
                 WHERE a.k = b.n + {shift}) GROUP BY text"
            )
        }
    }
}

/// How many stages of the last job read what was merged.
async fn readers(session: &ForebayContext) -> usize {
    let job = history::last_job(session).await;
    let merged = format!(
        "SELECT count(*) FROM forebay.stages WHERE job_id = '{job}' AND reads LIKE '%by hash, merged%'"
    );
    run(session, &merged).await.unwrap()[0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_merged_gives_what_plain_datafusion_gives() {
    let stage = Stage::new(60, &[CPU, NEIGHBOUR]);
    write_table(&stage.local().await, stage.folder()).await;
    let plain = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    plain.sql(&create(stage.folder())).await.unwrap();
    let session = merging(&stage).await;
    let mut random = random();
    for _ in 0..if is_long() { 100 } else { 12 } {
        let query = query(&mut random);
        let rows = stage.run(&session, &query).await;
        let rows =
            rows.unwrap_or_else(|error| panic!("{query}: {error}\n{}", stage.cluster.said()));
        let expected = text(&plain.sql(&query).await.unwrap().collect().await.unwrap());
        assert!(rows == expected, "{query}: {} rows of {}, or others", rows.len(), expected.len());
        assert!(readers(&session).await > 0, "{query}: nothing was merged");
    }
}

/// Groups whose rows take their time when they are read.
fn slow_to_read() -> String {
    let key = "CAST(k AS VARCHAR)".to_owned();
    let hash = (0..if is_long() { 60 } else { 30 }).fold(key, |text, _| format!("md5({text})"));
    format!(
        "SELECT k, n, texts, {hash} FROM (SELECT n AS k, count(*) AS n, max(text) AS texts FROM numbers \
         GROUP BY n)"
    )
}

/// A worker that has merged something, while what was merged is read, and is not read yet.
async fn until_it_has_merged(stage: &Stage, session: &ForebayContext) -> String {
    let merged = "SELECT m.worker_id FROM forebay.tasks m JOIN forebay.tasks r USING (job_id) \
                  WHERE m.stage_id = 1 AND m.state = 'finished' AND r.stage_id = 2 AND r.state = 'running'";
    let waits = async {
        loop {
            if let Some(worker) = run(session, merged).await.unwrap().pop() {
                return worker;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    stage.bounded(waits).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_has_merged_is_killed_and_its_part_is_merged_again() {
    let mut stage = Stage::new(10, &[CPU, CPU, CPU]);
    let local = stage.local().await;
    write_table(&local, stage.folder()).await;
    run(&local, &create(stage.folder())).await.unwrap();
    let query = slow_to_read();
    let expected = run(&local, &query).await.unwrap();
    assert_eq!(expected.len(), ROWS);
    let session = merging(&stage).await;
    assert!(stage.run(&session, &query).await.unwrap() == expected, "undisturbed");
    assert_eq!(readers(&session).await, 1);

    stage.until_nothing_is_left(&[0, 1, 2]).await;
    let running = stage.start(&session, &query);
    let killed = until_it_has_merged(&stage, &session).await;
    let names = [0, 1, 2].map(|at| stage.cluster.worker(at).name().to_owned());
    let at = names.iter().position(|name| *name == killed).unwrap();
    stage.cluster.worker(at).kill();
    assert!(!running.is_over(), "the query was over before the worker was killed");
    stage.cluster.add_worker(CPU);
    let found = stage.end(running).await;
    let found = found.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(found == expected, "{} rows, or others", found.len());

    // What the worker had is done again, and nothing else.
    let job = history::last_job(&session).await;
    let tasks = history::tasks(&session, &job).await;
    let again = history::recomputed(&session, &job).await;
    let again = units(again.iter().map(|again| &again.unit));
    let had: BTreeSet<Unit> = units(
        tasks
            .iter()
            .filter(|task| task.worker == killed && task.state == "finished")
            .map(|task| &task.unit),
    );
    assert!(again.iter().any(|(stage, _)| *stage == 1), "{again:?}\n{}", stage.cluster.said());
    assert!(again.is_subset(&had), "{again:?} of {had:?}\n{}", stage.cluster.said());
}
