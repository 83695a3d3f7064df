//! Hash shuffles, whose workers are killed and whose files are damaged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay::ForebayContext;

use super::history;
use super::setup::{ACCELERATOR, CPU, Stage, is_long, moments, run};

/// What a model gives is dealt out while it runs, and read when all of it is there; another model takes its time with
/// what is read.
const SHUFFLED: &str = "
    SELECT text, n, ids, label AS again FROM ml_predict(
      (SELECT concat(label, ' ', substr(text, 1, 2)) AS text, count(*) AS n, sum(id) AS ids FROM ml_predict(
         (SELECT id, concat(upper(word), ' ', CAST(id AS VARCHAR)) AS text FROM words),
         MODEL slow, DESCRIPTOR(text))
       GROUP BY concat(label, ' ', substr(text, 1, 2))),
      MODEL slow, DESCRIPTOR(text))";

/// Where the rounds lie: below the model are the texts, above it what deals out its rows.
const ROUNDS: &str = "/2/blocks/";

fn stage() -> Stage {
    Stage::with_service(if is_long() { 80 } else { 20 }, 10, &[CPU, CPU, ACCELERATOR])
}

/// The rows of a query that nothing happens to, and how many tasks it takes.
async fn undisturbed(stage: &Stage, session: &ForebayContext) -> (Vec<String>, usize) {
    let begun = stage.cluster.tasks_begun();
    let rows = stage.run(session, SHUFFLED).await.unwrap();
    assert!(rows.len() > 10, "{} groups", rows.len());
    assert_eq!(rows, run(&stage.local().await, SHUFFLED).await.unwrap());
    let job = history::last_job(session).await;
    let by_hash = format!(
        "SELECT count(*) FROM forebay.stages WHERE job_id = '{job}' AND reads LIKE '%by hash%'"
    );
    assert_eq!(run(session, &by_hash).await.unwrap(), ["1"], "{}", stage.cluster.said());
    (rows, stage.cluster.tasks_begun() - begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_while_rows_are_dealt_out_and_while_they_are_read() {
    let mut stage = stage();
    let (rows, tasks) = undisturbed(&stage, &stage.session().await).await;
    let mut cpu = 0;
    for moment in moments(&[0.4, 0.8]) {
        let session = stage.session().await;
        let begun = stage.cluster.tasks_begun();
        let running = stage.start(&session, SHUFFLED);
        stage.until_tasks_run(begun + (tasks as f64 * moment) as usize).await;
        stage.cluster.worker(cpu).kill();
        assert!(!running.is_over(), "the query was over before the worker was killed");
        cpu = stage.cluster.add_worker(CPU);
        let found = stage.end(running).await;
        let found = found.unwrap_or_else(|e| panic!("{moment}: {e}\n{}", stage.cluster.said()));
        assert!(found == rows, "{moment}: {} rows, or others", found.len());
    }
}

/// The rounds that wait to be read, once there are some.
async fn rounds(stage: &mut Stage) -> Vec<PathBuf> {
    let found = |stage: &Stage| -> Vec<PathBuf> {
        let all = (0..3).flat_map(|worker| stage.cluster.blocks(worker));
        all.filter(|block| block.display().to_string().contains(ROUNDS)).collect()
    };
    for _ in 0..3000 {
        let rounds = found(stage);
        if rounds.len() > 1 {
            return rounds;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing was dealt out\n{}", stage.cluster.said());
}

/// Damages rounds while others are still to come, so that all of them wait.
async fn damaged(damage: impl Fn(&Path), says: &str) {
    let mut stage = stage();
    let session = stage.session().await;
    let (rows, _) = undisturbed(&stage, &session).await;
    stage.until_nothing_is_left(&[0, 1, 2]).await;
    let running = stage.start(&session, SHUFFLED);
    let rounds = rounds(&mut stage).await;
    rounds.iter().for_each(|round| damage(round));
    assert!(!running.is_over(), "the query was over before anything was damaged");
    let found = stage.end(running).await;
    let found = found.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(found == rows, "{} rows, or others", found.len());
    let job = history::last_job(&session).await;
    let again = history::recomputed(&session, &job).await;
    let made_again = again.iter().filter(|found| found.unit.0 == 2).count();
    assert!((1..=rounds.len()).contains(&made_again), "{again:?} for {} rounds", rounds.len());
    let tasks = history::tasks(&session, &job).await;
    let noticed = tasks.iter().any(|task| task.reason.contains(says));
    assert!(noticed, "{says}\n{}", stage.cluster.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_with_changed_bytes_are_noticed_and_made_again() {
    let change = |round: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(round).unwrap();
        // Of each segment a byte.
        for at in (0..file.metadata().unwrap().len()).step_by(64) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
        }
    };
    damaged(change, "checksum").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_that_are_gone_are_made_again() {
    damaged(|round| fs::remove_file(round).unwrap(), "No such file").await;
}

/// Files of a table that are dealt out, the first of which has nearly all rows.
const PARTS: usize = 6;
const ROWS: usize = 1_000_000;

/// One task deals out for long, while what the others have dealt out can be read.
const SKEWED: &str = "
    SELECT n % 1000 AS k, count(*), sum(n), max(md5(md5(md5(CAST(n AS VARCHAR)))))
    FROM skewed GROUP BY n % 1000";

async fn create_skewed(session: &ForebayContext, folder: &Path) {
    let table = folder.join("skewed");
    if !table.exists() {
        for part in 0..PARTS {
            let (from, to) =
                if part == 0 { (0, ROWS) } else { (ROWS + part * 100, ROWS + part * 100 + 100) };
            let copy = format!(
                "COPY (SELECT value AS n FROM range({from}, {to})) TO '{}/{part}.parquet' STORED AS PARQUET",
                table.display()
            );
            run(session, &copy).await.unwrap();
        }
    }
    let create =
        format!("CREATE EXTERNAL TABLE skewed STORED AS PARQUET LOCATION '{}/'", table.display());
    run(session, &create).await.unwrap();
}

/// Waits until two tasks have begun early: the worker of one of them, and that of the task that deals out for long.
async fn until_it_reads_early(stage: &Stage, session: &ForebayContext) -> (String, String) {
    let both = "SELECT r.worker_id, d.worker_id FROM forebay.tasks r JOIN forebay.tasks d USING (job_id) \
                WHERE r.stage_id = 1 AND r.state = 'running' AND d.stage_id = 0 AND d.state = 'running'";
    let waits = async {
        loop {
            let found = run(session, both).await.unwrap();
            // Both workers that are left wait then, for one task.
            if let [first, _] = &found[..]
                && let Some((reads, deals)) = first.split_once('|')
            {
                return (reads.to_owned(), deals.to_owned());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    stage.bounded(waits).await
}

/// The tasks that read begin while one still deals out. Then something happens.
async fn begun_early(kills: impl Fn(&str, &str) -> Option<String>, says: Option<&str>) {
    let mut stage = Stage::new(10, &[CPU, CPU, CPU]);
    let local = stage.local().await;
    create_skewed(&local, stage.folder()).await;
    let expected = run(&local, SKEWED).await.unwrap();
    assert_eq!(expected.len(), 1000);
    let session = stage.session().await;
    run(&session, "SET datafusion.optimizer.repartition_file_scans = false").await.unwrap();
    create_skewed(&session, stage.folder()).await;
    let running = stage.start(&session, SKEWED);
    let (reads, deals) = until_it_reads_early(&stage, &session).await;
    assert_ne!(reads, deals);
    if let Some(killed) = kills(&reads, &deals) {
        let names = [0, 1, 2].map(|at| stage.cluster.worker(at).name().to_owned());
        let at = names.iter().position(|name| *name == killed).unwrap();
        stage.cluster.worker(at).kill();
        assert!(!running.is_over(), "the query was over before the worker was killed");
    }
    let found = stage.end(running).await;
    let found = found.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(found == expected, "{} rows, or others", found.len());
    let job = history::last_job(&session).await;
    let tasks = history::tasks(&session, &job).await;
    let reasons: Vec<_> = tasks.iter().map(|task| task.reason.as_str()).collect();
    let is_said = says.is_none_or(|says| reasons.iter().any(|reason| reason.contains(says)));
    assert!(is_said, "{says:?} is not in {reasons:?}\n{}", stage.cluster.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_dealt_out_is_read_while_a_task_still_deals_out() {
    begun_early(|_, _| None, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_killed_whose_rounds_have_been_read_while_others_are_to_come() {
    begun_early(|reads, _| Some(reads.to_owned()), Some("was lost")).await;
}

/// All workers that are left wait for the task that was lost with its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_wait_make_room_for_what_they_wait_for() {
    begun_early(|_, deals| Some(deals.to_owned()), Some("needs its worker")).await;
}
