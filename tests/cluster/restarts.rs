//! A scheduler that is killed, and goes on in another process with its journal.

use std::fs;
use std::time::{Duration, Instant};

use forebay::ForebayContext;
use forebay_testkit::cluster::Cluster;
use forebay_testkit::disk::SmallDisk;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::setup::{ACCELERATOR, CPU, QUERY, Rows, Stage, begin, is_long, moments, report, run};

/// A cluster whose scheduler has a journal in this folder.
fn stage(state: &TempDir) -> Stage {
    stage_of(state, if is_long() { 80 } else { 12 })
}

/// One whose accelerator takes so long for a batch.
fn stage_of(state: &TempDir, service_ms: u32) -> Stage {
    let folder = state.path().to_str().unwrap();
    let scheduler = ["--worker-timeout", "10", "--state", folder];
    Stage::open(service_ms, &scheduler, &[CPU, CPU, ACCELERATOR], None)
}

/// Kills the scheduler and these workers; another scheduler and as many workers come after them.
pub(super) fn restart(stage: &mut Stage, workers: &[(usize, &[&str])]) -> Vec<usize> {
    stage.cluster.scheduler_mut().kill();
    for (at, _) in workers {
        stage.cluster.worker(*at).kill();
    }
    let successor = stage.cluster.successor();
    stage.cluster.takes_over(successor);
    workers.iter().map(|(_, arguments)| stage.cluster.add_worker(arguments)).collect()
}

fn found_successor(stage: &mut Stage, worker: usize, times: usize) -> bool {
    let log = stage.cluster.worker(worker).log();
    log.matches("works for the successor of its scheduler").count() == times
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_goes_on_when_its_scheduler_was_killed_and_nothing_that_ran_is_run_again() {
    let state = TempDir::new().unwrap();
    let mut stage = stage(&state);
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    for (round, moment) in moments(&[0.3, 0.7]).into_iter().enumerate() {
        let session = stage.session().await;
        let (begun, since) = (stage.cluster.tasks_begun(), Instant::now());
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        assert!(!running.is_over(), "the query was over before the scheduler was killed");
        let killed = Instant::now();
        restart(&mut stage, &[]);
        let away = killed.elapsed();
        let rows = stage.end(running).await;
        let rows =
            rows.unwrap_or_else(|error| panic!("{moment}: {error}\n{}", stage.cluster.said()));
        let took = since.elapsed();
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        for worker in 0..3 {
            assert!(found_successor(&mut stage, worker, round + 1), "{}", stage.cluster.said());
        }
        // What is put together in one task is a matter of time. A query from the start takes all tasks and
        // those that had begun.
        let begun = stage.cluster.tasks_begun() - begun;
        let from_zero = undisturbed.tasks as f64 * (1.0 + moment);
        assert!((begun as f64) < from_zero, "{moment}: {begun} of {} tasks", undisturbed.tasks);
        stage.until_nothing_is_left(&[0, 1, 2]).await;
        if is_long() {
            report(&format!(
                "scheduler killed at {moment:.2}: {took:?} with {away:?} away, {:?} undisturbed; {begun} \
                 tasks, {} undisturbed",
                undisturbed.took, undisturbed.tasks
            ));
        }
    }
}

/// Rows of a query that was disturbed so once half of its tasks had begun.
async fn disturbed(stage: &mut Stage, query: &str, workers: &[(usize, &[&str])]) -> Rows {
    let session = stage.session().await;
    let begun = stage.cluster.tasks_begun();
    let expected = stage.run(&session, query).await.unwrap();
    let tasks = stage.cluster.tasks_begun() - begun;
    let running = stage.start(&session, query);
    let half = stage.cluster.tasks_begun() + tasks / 2;
    stage.until_tasks_run(half).await;
    for (at, _) in workers {
        // On fast cores half of the tasks have begun before an accelerator has done anything.
        let has_blocks = |cluster: &mut Cluster| !cluster.blocks(*at).is_empty();
        stage.until("blocks of who is killed", Duration::from_secs(30), has_blocks).await;
    }
    assert!(!running.is_over(), "the query was over before the scheduler was killed");
    restart(stage, workers);
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == expected, "{} rows, expected {}", rows.len(), expected.len());
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_with_the_scheduler_is_missed_and_its_work_done_again() {
    let state = TempDir::new().unwrap();
    // So long that it has a task when it is killed.
    let mut stage = stage_of(&state, 80);
    let local = run(&stage.local().await, QUERY).await.unwrap();
    assert!(disturbed(&mut stage, QUERY, &[(0, CPU)]).await == local);
    // The accelerator, and those that came in its place: what it had may have been read when it is killed.
    for at in [2].into_iter().chain(4..14) {
        assert!(disturbed(&mut stage, QUERY, &[(at, ACCELERATOR)]).await == local);
        if stage.cluster.scheduler().log().contains("has not come back, and counts as lost") {
            return;
        }
    }
    panic!("never missed: {}", stage.cluster.scheduler().log());
}

/// What hash shuffles wrote, and stages that wait for others, are known again.
#[tokio::test(flavor = "multi_thread")]
async fn aggregates_joins_and_sorts_go_on() {
    let state = TempDir::new().unwrap();
    let mut stage = stage(&state);
    let query = "
        SELECT a.label, substr(a.text, 1, 1) AS first, count(*) AS n, sum(a.id) AS ids
        FROM ml_predict((SELECT id, concat(upper(word), ' ', CAST(id AS VARCHAR)) AS text FROM words),
          MODEL slow, DESCRIPTOR(text)) a
        JOIN words b ON a.id = b.id
        GROUP BY a.label, substr(a.text, 1, 1) ORDER BY n, first, a.label";
    let local = run(&stage.local().await, query).await.unwrap();
    assert!(disturbed(&mut stage, query, &[]).await == local);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_scheduler_waits_for_the_end_of_the_first_and_takes_over() {
    let state = TempDir::new().unwrap();
    let mut stage = stage(&state);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let successor = stage.cluster.successor();
    let running = stage.start(&session, QUERY);
    stage.reach(&running, 0.5, &undisturbed).await;
    assert!(!successor.is_finished(), "two schedulers have one journal");
    assert!(!running.is_over());
    stage.cluster.scheduler_mut().kill();
    stage.cluster.takes_over(successor);
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows);
}

/// Clients that it loses have not left.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_was_not_over_when_the_scheduler_had_to_end_goes_on() {
    let state = TempDir::new().unwrap();
    let folder = state.path().to_str().unwrap();
    let scheduler = ["--state", folder, "--drain-limit", "0"];
    let mut stage = Stage::open(12, &scheduler, &[CPU, CPU, ACCELERATOR], None);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let running = stage.start(&session, QUERY);
    stage.reach(&running, 0.5, &undisturbed).await;
    stage.cluster.scheduler().signal(Signal::SIGTERM);
    assert_eq!(stage.cluster.scheduler_mut().wait(), Some(0));
    assert!(!running.is_over(), "the query was over before the scheduler ended");
    let successor = stage.cluster.successor();
    stage.cluster.takes_over(successor);
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows);
}

/// Nobody comes back for its rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_whose_client_ended_with_the_scheduler_is_cancelled_and_forgotten() {
    let state = TempDir::new().unwrap();
    let folder = state.path().to_str().unwrap();
    let scheduler = ["--worker-timeout", "3", "--state", folder];
    let mut stage = Stage::open(12, &scheduler, &[CPU, CPU, ACCELERATOR], None);
    let session = stage.session().await;
    let rows = begin(&session, QUERY).await;
    stage.until_tasks_run(4).await;
    stage.cluster.scheduler().signal(Signal::SIGSTOP);
    drop((rows, session));
    restart(&mut stage, &[]);
    let said =
        |cluster: &mut Cluster| cluster.scheduler().log().contains("its client has not come back");
    stage.until("the client is missed", Duration::from_secs(60), said).await;
    stage.until_nothing_is_left(&[0, 1, 2]).await;
    let session = stage.session().await;
    let runs = "SELECT name FROM forebay.jobs WHERE state IN ('queued', 'running')";
    while !run(&session, runs).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What was written down before another query is there when that has been accepted.
    stage.run(&session, "SELECT count(*) FROM words").await.unwrap();
    restart(&mut stage, &[]);
    let log = stage.cluster.scheduler().log();
    assert!(!log.contains("goes on"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_without_a_journal_takes_its_queries_and_workers_along() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let session = stage.session().await;
    let running = stage.start(&session, QUERY);
    stage.until_tasks_run(2).await;
    stage.cluster.scheduler_mut().kill();
    let error = stage.end(running).await.unwrap_err().to_string();
    assert!(error.contains("the scheduler at"), "{error}");
    for worker in 0..3 {
        assert_eq!(stage.cluster.worker(worker).wait(), Some(1));
    }
}

/// Bytes of the journal in a state.
fn journal_bytes(state: &TempDir) -> u64 {
    let files = fs::read_dir(state.path()).unwrap().flatten();
    let journals = files.filter(|file| file.path().extension().is_some_and(|e| e == "journal"));
    // One that is there may be gone.
    journals.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// What happens to it is many small blocks.
async fn session_of_many_steps(stage: &Stage) -> ForebayContext {
    let session = stage.session().await;
    run(&session, "SET forebay.block_bytes = 1024").await.unwrap();
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_of_a_long_query_is_bounded_and_the_query_goes_on_from_what_is_left() {
    let all_steps = {
        let state = TempDir::new().unwrap();
        let stage = stage(&state);
        stage.run(&session_of_many_steps(&stage).await, QUERY).await.unwrap();
        journal_bytes(&state)
    };
    let state = TempDir::new().unwrap();
    let folder = state.path().to_str().unwrap();
    let scheduler = ["--worker-timeout", "10", "--state", folder, "--journal-copied-from", "1024"];
    let mut stage = Stage::open(12, &scheduler, &[CPU, CPU, ACCELERATOR], None);
    let session = session_of_many_steps(&stage).await;
    let undisturbed = stage.undisturbed(&session).await;
    let running = stage.start(&session, QUERY);
    for moment in [0.5, 0.9] {
        stage.reach(&running, moment, &undisturbed).await;
        let bound = (all_steps as f64 * moment / 2.0) as u64;
        let is_bounded = |_: &mut Cluster| journal_bytes(&state) < bound;
        stage.until("the journal is copied", Duration::from_secs(60), is_bounded).await;
        assert!(!running.is_over(), "the query was over before the scheduler was killed");
        restart(&mut stage, &[]);
        let log = stage.cluster.scheduler().log();
        assert!(log.contains("goes on"), "{log}");
    }
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows, "{} rows, or others", rows.len());
    stage.until_nothing_is_left(&[0, 1, 2]).await;
}

/// Only where one may mount.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_below_the_journal_ends_the_scheduler_with_one_message_and_loses_nothing() {
    const BYTES: u64 = 1 << 20;
    let state = TempDir::new().unwrap();
    let disk = match SmallDisk::mount(state.path(), BYTES) {
        Ok(disk) => disk,
        Err(problem) => return println!("skipped, a full file system cannot be made: {problem}"),
    };
    let mut stage = stage(&state);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let running = stage.start(&session, QUERY);
    stage.reach(&running, 0.3, &undisturbed).await;
    let ballast = state.path().join("ballast");
    fs::write(&ballast, vec![0; BYTES as usize]).unwrap_err();
    assert_eq!(stage.cluster.scheduler_mut().wait(), Some(1));
    let log = stage.cluster.scheduler().log();
    assert!(log.contains("cannot write the scheduler's journal in"), "{log}");
    assert!(log.contains("make it have room and start it again"), "{log}");
    fs::remove_file(ballast).unwrap();
    let successor = stage.cluster.successor();
    stage.cluster.takes_over(successor);
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows);
    drop((stage, disk));
}

/// It has the address of the first one, and a higher term, which says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_goes_on_with_a_scheduler_of_another_state() {
    let (state, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for _ in 0..2 {
        let folder = other.path().to_str().unwrap();
        drop(Cluster::start(env!("CARGO_BIN_EXE_forebay"), &["--state", folder]));
    }
    let mut stage = stage(&state);
    let id = |folder: &TempDir| fs::read_to_string(folder.path().join("state.id")).unwrap();
    let both = [id(&state), id(&other)];
    let are_named = |said: &str| both.iter().all(|id| said.contains(id.trim_end()));
    let session = stage.session().await;
    let running = stage.start(&session, QUERY);
    stage.until_tasks_run(4).await;
    assert!(!running.is_over(), "the query was over before the scheduler was killed");
    stage.cluster.scheduler_mut().kill();
    fs::remove_dir_all(state.path()).unwrap();
    fs::rename(other.path(), state.path()).unwrap();
    let successor = stage.cluster.successor();
    stage.cluster.takes_over(successor);
    let error = stage.end(running).await.unwrap_err().to_string();
    assert!(error.contains("it is no successor of that") && are_named(&error), "{error}");
    for worker in 0..3 {
        assert_eq!(stage.cluster.worker(worker).wait(), Some(1));
        let log = stage.cluster.worker(worker).log();
        assert!(log.contains("it is no successor of that") && are_named(&log), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_end_while_its_scheduler_is_away_ends_in_order() {
    let state = TempDir::new().unwrap();
    let mut stage = stage(&state);
    stage.cluster.scheduler_mut().kill();
    let said = |cluster: &mut Cluster| cluster.worker(0).log().contains("successor is waited for");
    stage.until("the scheduler is missed", Duration::from_secs(60), said).await;
    stage.cluster.worker(0).signal(Signal::SIGTERM);
    assert_eq!(stage.cluster.worker(0).wait(), Some(0), "{}", stage.cluster.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_when_no_successor_comes_in_time() {
    let state = TempDir::new().unwrap();
    let folder = state.path().to_str().unwrap();
    let scheduler = ["--state", folder, "--scheduler-timeout", "1"];
    let mut stage = Stage::open(12, &scheduler, &[CPU], None);
    stage.cluster.scheduler_mut().kill();
    let bound = Duration::from_secs(60);
    stage.until("the worker ends", bound, |cluster| !cluster.worker(0).runs()).await;
    let log = stage.cluster.worker(0).log();
    assert!(log.contains("no successor came for 1s"), "{log}");
}
