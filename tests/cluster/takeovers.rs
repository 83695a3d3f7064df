//! A scheduler that is stopped, as a machine is that swaps, is moved or is cut off, and goes on when another one has
//! taken its place: it must not do so as if nothing had been.

use std::path::PathBuf;
use std::time::Duration;

use forebay_testkit::cluster::{Cluster, Process};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::setup::{ACCELERATOR, CPU, QUERY, Stage, is_long, moments, rows, run};
use super::writes::{read, staging_folders};

/// After which silence another scheduler takes over.
const SILENCE: &str = "3";

/// A cluster with two addresses for schedulers that have a state in this folder.
fn stage(state: &TempDir) -> Stage {
    let folder = state.path().to_str().unwrap();
    let scheduler = ["--worker-timeout", "10", "--state", folder, "--takeover-after", SILENCE];
    let cluster = Cluster::start_of_two(env!("CARGO_BIN_EXE_forebay"), &scheduler);
    let service_ms = if is_long() { 80 } else { 12 };
    Stage::on(cluster, service_ms, &[CPU, CPU, ACCELERATOR], None)
}

/// Stops the scheduler until another one has taken over; gives it back, stopped.
fn overtaken(stage: &mut Stage) -> Process {
    stage.cluster.scheduler().signal(Signal::SIGSTOP);
    let rival = stage.cluster.rival();
    stage.cluster.takes_place(rival)
}

/// It goes on, and ends: it says once who has taken over, and nothing else that it would do.
fn wakes_and_ends(first: &mut Process, stage: &Stage) {
    first.signal(Signal::SIGCONT);
    assert_eq!(first.wait(), Some(1), "{}", first.log());
    let log = first.log();
    let second = format!("the scheduler at {} (process ", stage.cluster.scheduler().name());
    let told = log.lines().filter(|line| line.contains("has taken over the state in"));
    let told: Vec<_> = told.collect();
    let [told] = told[..] else { panic!("{told:?} in {log}") };
    assert!(told.contains(&second) && told.contains("has lost its say, and ends"), "{told}");
}

/// Before workers and sessions have noticed anything, and after they have found the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_goes_on_with_the_other_scheduler_and_the_first_one_ends_when_it_wakes() {
    for (round, moment) in moments(&[0.3, 0.6]).into_iter().enumerate() {
        let state = TempDir::new().unwrap();
        let mut stage = stage(&state);
        let session = stage.session().await;
        let undisturbed = stage.undisturbed(&session).await;
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        let mut first = overtaken(&mut stage);
        assert!(!running.is_over(), "the query was over before the scheduler was stopped");
        let wakes_early = round % 2 == 0;
        if wakes_early {
            wakes_and_ends(&mut first, &stage);
        }
        let rows = stage.end(running).await;
        let rows =
            rows.unwrap_or_else(|error| panic!("{moment}: {error}\n{}", stage.cluster.said()));
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        if !wakes_early {
            wakes_and_ends(&mut first, &stage);
        }
        for worker in 0..3 {
            assert!(stage.cluster.worker(worker).runs(), "{}", stage.cluster.said());
        }
        stage.until_nothing_is_left(&[0, 1, 2]).await;
        // All that comes later finds it, too: this session, which was there before, and another one.
        let count = "SELECT count(*) FROM words";
        let expected = [super::setup::rows().to_string()];
        assert_eq!(stage.run(&session, count).await.unwrap(), expected);
        let session = stage.session().await;
        assert_eq!(stage.run(&session, count).await.unwrap(), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_committed_once_though_its_scheduler_was_stopped() {
    let state = TempDir::new().unwrap();
    let mut stage = stage(&state);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    run(&session, "SET forebay.file_bytes = 16384").await.unwrap();
    let folder = stage.folder().join("written");
    let copy = format!("COPY ({QUERY}) TO '{}/' STORED AS PARQUET", folder.display());
    let running = stage.start(&session, &copy);
    stage.reach(&running, 0.4, &undisturbed).await;
    let mut first = overtaken(&mut stage);
    assert!(!running.is_over(), "the write was over before the scheduler was stopped");
    // In the middle of the other one's work.
    let begun = stage.cluster.tasks_begun();
    wakes_and_ends(&mut first, &stage);
    let said = stage.end(running).await;
    let said = said.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert_eq!(said, [rows().to_string()]);
    assert!(stage.cluster.tasks_begun() > begun, "the other one had nothing to do");
    assert!(read(&folder).await == undisturbed.rows, "other rows");
    assert_eq!(staging_folders(stage.folder()), Vec::<PathBuf>::new());
}

/// As long as it shows that it lives, nobody takes its place; and a pause that is short costs nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_is_heard_of_is_not_followed() {
    let state = TempDir::new().unwrap();
    let mut stage = stage(&state);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let rival = stage.cluster.rival();
    let running = stage.start(&session, QUERY);
    stage.reach(&running, 0.4, &undisturbed).await;
    stage.cluster.scheduler().signal(Signal::SIGSTOP);
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.cluster.scheduler().signal(Signal::SIGCONT);
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!rival.is_finished(), "two schedulers have one state");
    assert!(stage.cluster.scheduler_mut().runs(), "{}", stage.cluster.said());
    stage.cluster.scheduler_mut().kill();
    stage.cluster.takes_over(rival);
    let have_come = |cluster: &mut Cluster| {
        let found = "works for the successor of its scheduler";
        (0..3).all(|worker| cluster.worker(worker).log().contains(found))
    };
    stage.until("workers find the other one", Duration::from_secs(60), have_come).await;
    let session = stage.session().await;
    assert!(stage.run(&session, QUERY).await.unwrap() == undisturbed.rows);
}
