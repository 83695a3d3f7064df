//! Workers that stop for a while, as a machine does that swaps or a network that is cut.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::setup::{ACCELERATOR, CPU, QUERY, Stage, moments};

const TIMEOUT_S: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_pauses_for_too_long_is_lost_and_ends_when_it_goes_on() {
    let mut stage = Stage::new(TIMEOUT_S, &[CPU, CPU, ACCELERATOR, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let kinds = [(0, CPU), (3, ACCELERATOR)];
    let mut at = kinds.map(|(at, _)| at);
    for (turn, moment) in moments(&[0.3, 0.5]).into_iter().enumerate() {
        let (kind, arguments) = (turn % 2, kinds[turn % 2].1);
        let paused = at[kind];
        let name = stage.cluster.worker(paused).name().to_owned();
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        stage.cluster.worker(paused).signal(Signal::SIGSTOP);
        assert!(!running.is_over(), "the query was over before the worker was paused");
        let lost = format!("Removing executor {name}");
        let bound = Duration::from_secs(TIMEOUT_S + 10);
        stage.until(&lost, bound, |cluster| cluster.scheduler().log().contains(&lost)).await;
        // What it has to report comes now, while the query may still run.
        stage.cluster.worker(paused).signal(Signal::SIGCONT);
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("{moment}: {e}\n{}", stage.cluster.said()));
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        let ends = Duration::from_secs(30);
        stage.until("the worker ends", ends, |cluster| !cluster.worker(paused).runs()).await;
        assert_eq!(stage.cluster.worker(paused).wait(), Some(1), "it should say why it ends");
        at[kind] = stage.cluster.add_worker(arguments);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_pause_costs_nothing_but_time() {
    let mut stage = Stage::new(30, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    for (turn, moment) in moments(&[0.3]).into_iter().enumerate() {
        let before = stage.cluster.tasks_begun();
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        stage.cluster.worker(turn % 2).signal(Signal::SIGSTOP);
        assert!(!running.is_over(), "the query was over before the worker was paused");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!running.is_over(), "the query went on without the only worker of its kind");
        stage.cluster.worker(turn % 2).signal(Signal::SIGCONT);
        assert!(stage.end(running).await.unwrap() == undisturbed.rows);
        let ran = stage.cluster.tasks_begun() - before;
        assert!(ran <= undisturbed.tasks + 2, "{ran} instead of {}", undisturbed.tasks);
        assert!(!stage.cluster.scheduler().log().contains("runs again"));
    }
}
