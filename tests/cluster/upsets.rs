//! Schedulers that are killed at random moments, alone or with workers, and started again on what they have
//! written down, while jobs read, aggregate and write.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use forebay::ForebayContext;
use forebay_testkit::random::Random;
use tempfile::TempDir;

use super::delta::{actions, commits, files, staging_folders};
use super::restarts::restart;
use super::setup::{
    ACCELERATOR, CPU, QUERY, Stage, Undisturbed, is_long, random, report, rows, run,
};

/// Schedulers that are killed in each test.
fn kills() -> usize {
    if is_long() { 30 } else { 2 }
}

/// What is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Overwrites,
    Copies,
    Reads,
    Aggregates,
}

const AGGREGATE: &str = "
    SELECT a.label, substr(a.text, 1, 1) AS first, count(*) AS n, sum(a.id) AS ids
    FROM ml_predict((SELECT id, concat(upper(word), ' ', CAST(id AS VARCHAR)) AS text FROM words),
      MODEL slow, DESCRIPTOR(text)) a
    JOIN words b ON a.id = b.id
    GROUP BY a.label, substr(a.text, 1, 1)";

/// A cluster with a journal, a Delta table that each overwriting writes anew under its number, and who reads it
/// meanwhile.
struct Upsets {
    stage: Stage,
    _state: TempDir,
    random: Random,
    /// The workers that are there.
    workers: [usize; 3],
    queries: Undisturbed,
    aggregates: Undisturbed,
    overwritten: usize,
    copies: Vec<PathBuf>,
    /// Of those who were killed, the ones who were at work.
    fired: usize,
}

const WORKERS: [&[&str]; 3] = [CPU, CPU, ACCELERATOR];

impl Upsets {
    async fn new() -> Self {
        let state = TempDir::new().unwrap();
        let folder = state.path().to_str().unwrap();
        let scheduler = ["--worker-timeout", "5", "--state", folder];
        let service_ms = if is_long() { 40 } else { 12 };
        let stage = Stage::open(service_ms, &scheduler, &WORKERS, None);
        let session = stage.session().await;
        let queries = stage.undisturbed(&session).await;
        let begun = stage.cluster.tasks_begun();
        let aggregated = stage.run(&session, AGGREGATE).await.unwrap();
        assert_eq!(aggregated, run(&stage.local().await, AGGREGATE).await.unwrap());
        let tasks = stage.cluster.tasks_begun() - begun;
        let aggregates = Undisturbed { rows: aggregated, tasks, took: queries.took };
        let (workers, overwritten, copies, fired) = ([0, 1, 2], 0, vec![], 0);
        let random = random();
        let _state = state;
        let mut upsets = Self {
            stage,
            _state,
            random,
            workers,
            queries,
            aggregates,
            overwritten,
            copies,
            fired,
        };
        upsets.create(&session).await;
        let first = upsets.statement(Work::Overwrites);
        assert_eq!(upsets.stage.run(&session, &first).await.unwrap(), [rows().to_string()]);
        upsets
    }

    fn table(&self) -> PathBuf {
        self.stage.folder().join("table")
    }

    async fn create(&self, session: &ForebayContext) {
        let create = format!(
            "CREATE EXTERNAL TABLE results (id BIGINT, text VARCHAR, label VARCHAR, score DOUBLE, number BIGINT)
             STORED AS DELTATABLE LOCATION '{}'",
            self.table().display()
        );
        run(session, &create).await.unwrap();
        run(session, "SET forebay.file_bytes = 16384").await.unwrap();
    }

    fn statement(&mut self, work: Work) -> String {
        match work {
            Work::Reads => QUERY.to_owned(),
            Work::Aggregates => AGGREGATE.to_owned(),
            Work::Copies => {
                let folder = self.stage.folder().join(format!("copy-{}", self.copies.len()));
                let copy = format!("COPY ({QUERY}) TO '{}/' STORED AS PARQUET", folder.display());
                self.copies.push(folder);
                copy
            }
            Work::Overwrites => {
                self.overwritten += 1;
                let number = self.overwritten;
                format!(
                    "INSERT OVERWRITE results SELECT id, text, label, score, CAST({number} AS BIGINT) AS number \
                     FROM ({QUERY})"
                )
            }
        }
    }

    /// Those who are killed with the scheduler.
    fn victims(&mut self, with_workers: bool) -> Vec<usize> {
        let mut victims = vec![];
        while with_workers && victims.is_empty() {
            victims = (0..WORKERS.len()).filter(|_| self.random.chance(50)).collect();
        }
        victims
    }

    /// Somebody does this, and the scheduler is killed meanwhile.
    async fn disturb(&mut self, work: Work, with_workers: bool) {
        let moment = 0.05 + 0.85 * self.random.fraction();
        let victims = self.victims(with_workers);
        let session = self.stage.session().await;
        self.create(&session).await;
        let statement = self.statement(work);
        let running = self.stage.start(&session, &statement);
        let undisturbed = if work == Work::Aggregates { &self.aggregates } else { &self.queries };
        self.stage.reach(&running, moment, undisturbed).await;
        self.fired += usize::from(!running.is_over());
        let killed: Vec<_> = victims.iter().map(|at| (self.workers[*at], WORKERS[*at])).collect();
        let replaced = restart(&mut self.stage, &killed);
        victims.iter().zip(replaced).for_each(|(at, place)| self.workers[*at] = place);
        let what = format!("{work:?} at {moment:.2}, with {victims:?} of the workers");
        let found = self.stage.end(running).await;
        let found =
            found.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.stage.cluster.said()));
        let is_right = match work {
            Work::Reads => found == self.queries.rows,
            Work::Aggregates => found == self.aggregates.rows,
            Work::Copies | Work::Overwrites => found == [rows().to_string()],
        };
        assert!(is_right, "{what}: {} rows, or others", found.len());
        if is_long() {
            report(&what);
        }
    }

    /// What is there when all is over, and that nothing else is.
    async fn check(&mut self) {
        let folders = self.copies.iter().cloned().chain([self.table()]).collect::<Vec<_>>();
        collect_garbage(self.stage.folder());
        folders.iter().for_each(|folder| collect_garbage(folder));
        let local = self.stage.local().await;
        self.create(&local).await;
        let newest = "SELECT id, text, label, score FROM results WHERE number = ";
        let newest = format!("{newest}{}", self.overwritten);
        assert!(run(&local, &newest).await.unwrap() == self.queries.rows, "other rows");
        assert_eq!(run(&local, VERSION).await.unwrap(), [version(self.overwritten)]);
        let commits = commits(&self.table());
        assert_eq!(commits.len(), 1 + self.overwritten, "{commits:?}");
        let added: usize = commits.iter().map(|commit| actions(commit, "add")).sum();
        assert_eq!(files(&self.table()), added);
        for (number, copy) in self.copies.iter().enumerate() {
            let read = format!(
                "CREATE EXTERNAL TABLE copy{number} STORED AS PARQUET LOCATION '{}/'",
                copy.display()
            );
            run(&local, &read).await.unwrap();
            let found = run(&local, &format!("SELECT * FROM copy{number}")).await.unwrap();
            assert!(found == self.queries.rows, "{} rows, or others", found.len());
        }
        for folder in folders.iter().map(PathBuf::as_path).chain([self.stage.folder()]) {
            assert_eq!(staging_folders(folder), 0, "{}", folder.display());
        }
        self.stage.until_nothing_is_left(&self.workers.clone()).await;
    }
}

/// `forebay gc`.
fn collect_garbage(folder: &Path) {
    let mut gc = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let done = gc.arg("gc").arg(folder).args(["--older-than", "0"]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

const VERSION: &str = "SELECT min(number), max(number), count(*), sum(id) FROM results";

/// All rows under one number.
fn version(number: usize) -> String {
    let rows = rows();
    format!("{number}|{number}|{rows}|{}", rows * (rows - 1) / 2)
}

/// Reads the table in another process' place until it is told to stop: what it sees is always one version, and
/// never an older one than before. Those that it has seen.
async fn read_on(session: ForebayContext, is_over: Arc<AtomicBool>) -> Vec<usize> {
    let mut seen = vec![1];
    while !is_over.load(Ordering::Acquire) {
        let found = run(&session, VERSION).await.unwrap().concat();
        let number: usize = found.split('|').next().unwrap().parse().unwrap();
        assert_eq!(found, version(number));
        let last = seen[seen.len() - 1];
        assert!(number >= last, "{found} after {last}");
        if number > last {
            seen.push(number);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    seen
}

/// Kills schedulers, with workers or without, while this is done in turn.
async fn upset(with_workers: bool, works: &[Work]) {
    let mut upsets = Upsets::new().await;
    let reader = upsets.stage.local().await;
    upsets.create(&reader).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let reading = SpawnedTask::spawn(read_on(reader, Arc::clone(&is_over)));
    for kill in 0..kills() {
        upsets.disturb(works[kill % works.len()], with_workers).await;
    }
    assert!(2 * upsets.fired > kills(), "{} of {} were at work", upsets.fired, kills());
    is_over.store(true, Ordering::Release);
    let seen = reading.join().await.unwrap();
    assert!(seen[seen.len() - 1] <= upsets.overwritten, "{seen:?}");
    upsets.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_are_killed_at_random_moments() {
    upset(false, &[Work::Overwrites, Work::Copies, Work::Reads, Work::Aggregates]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_and_workers_are_killed_at_random_moments() {
    upset(true, &[Work::Overwrites, Work::Aggregates, Work::Copies, Work::Reads]).await;
}
