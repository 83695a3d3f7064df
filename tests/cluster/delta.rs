//! Tables of Delta Lake that workers write and read, some of whom are killed meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::ForebayContext;

use super::setup::{ACCELERATOR, CPU, QUERY, Stage, moments, rows, run};

/// The Parquet files below a folder that are no longer staged.
pub(super) fn files(folder: &Path) -> usize {
    let mut found = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() && !name.starts_with('_') {
            found += files(&path);
        }
        found += usize::from(name.ends_with(".parquet"));
    }
    found
}

pub(super) fn staging_folders(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("_forebay-")).count()
}

/// The commits of a table, in order.
pub(super) fn commits(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("_delta_log")).unwrap().flatten();
    let mut commits: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    commits.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    commits.sort();
    commits.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Actions of a kind in a commit.
pub(super) fn actions(commit: &str, kind: &str) -> usize {
    commit.lines().filter(|line| line.starts_with(&format!("{{\"{kind}\":"))).count()
}

async fn create(session: &ForebayContext, folder: &Path) {
    let create = format!(
        "CREATE EXTERNAL TABLE results (id BIGINT, text VARCHAR, label VARCHAR, score DOUBLE)
         STORED AS DELTATABLE PARTITIONED BY (label) LOCATION '{}'",
        folder.display()
    );
    run(session, &create).await.unwrap();
    run(session, "SET forebay.file_bytes = 16384").await.unwrap();
}

const COLUMNS: &str = "SELECT id, text, label, score";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_has_all_rows_once_though_workers_are_killed() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let table = stage.folder().join("table");
    create(&session, &table).await;
    // Workers write, and the session commits; workers read.
    let insert = format!("INSERT INTO results {QUERY}");
    let plan = run(&session, &format!("EXPLAIN {insert}")).await.unwrap().concat();
    let place =
        |operator: &str| plan.find(operator).unwrap_or_else(|| panic!("{operator}: {plan}"));
    assert!(place("CommitExec: Delta table") < place("ClusterExec"), "{plan}");
    assert!(place("ClusterExec") < place("WriteExec"), "{plan}");
    let plan = run(&session, &format!("EXPLAIN {COLUMNS} FROM results")).await.unwrap().concat();
    assert!(plan.contains("EmptyExec") || plan.contains("ClusterExec"), "{plan}");
    for (number, moment) in moments(&[0.3, 0.7]).into_iter().enumerate() {
        let session = stage.session().await;
        create(&session, &table).await;
        let overwrite = format!("INSERT OVERWRITE results {QUERY}");
        let running = stage.start(&session, &overwrite);
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
        let found = stage.run(&session, &format!("{COLUMNS} FROM results")).await.unwrap();
        assert!(found == undisturbed.rows, "{moment}: other rows");
        let plan =
            run(&session, &format!("EXPLAIN {COLUMNS} FROM results")).await.unwrap().concat();
        assert!(plan.find("ClusterExec") < plan.find("DataSourceExec"), "{plan}");
        // Also for whoever reads in one process.
        let local = stage.local().await;
        create(&local, &table).await;
        let found = run(&local, &format!("{COLUMNS} FROM results")).await.unwrap();
        assert!(found == undisturbed.rows, "{moment}: other rows in one process");
        // No file of an attempt that does not count, and one commit for each statement.
        let commits = commits(&table);
        assert_eq!(commits.len(), number + 2, "{commits:?}");
        let added: usize = commits.iter().map(|commit| actions(commit, "add")).sum();
        assert_eq!(files(&table), added);
        assert!(added > 2 * (number + 1), "{added} files");
        let last = commits.last().unwrap();
        let before = commits.get(commits.len() - 2).unwrap();
        assert_eq!(actions(last, "remove"), actions(before, "add"));
        assert_eq!(actions(last, "txn"), 1);
        assert_eq!(staging_folders(&table), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_is_cancelled_or_fails_leaves_the_table_as_it_was() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let table = stage.folder().join("table");
    create(&session, &table).await;
    let insert = format!("INSERT INTO results {QUERY}");
    for moment in moments(&[0.4]) {
        let running = stage.start(&session, &insert);
        stage.reach(&running, moment, &undisturbed).await;
        assert_eq!(staging_folders(&table), 1);
        drop(running);
        stage
            .until("nothing is left", Duration::from_secs(60), |cluster| {
                cluster.tasks_running() == 0 && staging_folders(&table) == 0
            })
            .await;
        assert_eq!((files(&table), commits(&table).len()), (0, 1));
    }
    let fails =
        format!("INSERT INTO results SELECT id / (id - 700), text, label, score FROM ({QUERY})");
    let error = stage.run(&session, &fails).await.unwrap_err().to_string();
    assert!(error.contains("Divide by zero"), "{error}");
    stage.until("nothing is left", Duration::from_secs(60), |_| staging_folders(&table) == 0).await;
    assert_eq!((files(&table), commits(&table).len()), (0, 1));
    assert_eq!(stage.run(&session, &insert).await.unwrap(), [rows().to_string()]);
    assert_eq!(commits(&table).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_write_at_once_lose_no_row() {
    let stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let table = stage.folder().join("table");
    let mut writers = vec![];
    for writer in 0..4 {
        let session = stage.session().await;
        create(&session, &table).await;
        let insert = format!("INSERT INTO results SELECT id, word, 'w{writer}', 0.5 FROM words");
        writers.push(stage.start(&session, &insert));
    }
    for writer in writers {
        assert_eq!(stage.end(writer).await.unwrap(), [rows().to_string()]);
    }
    let session = stage.session().await;
    create(&session, &table).await;
    let counted = "SELECT label, count(*), count(DISTINCT id) FROM results GROUP BY label";
    let found = stage.run(&session, counted).await.unwrap();
    let expected = (0..4).map(|writer| format!("w{writer}|{rows}|{rows}", rows = rows()));
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(commits(&table).len(), 5);
}
