//! Workers that come and go while a query runs.

use nix::sys::signal::Signal;

use super::setup::{ACCELERATOR, CPU, QUERY, Stage, moments};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_joins_gets_tasks() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let running = stage.start(&session, QUERY);
    stage.reach(&running, 0.2, &undisturbed).await;
    let joined = stage.cluster.add_worker(ACCELERATOR);
    assert!(!running.is_over(), "the query was over before the worker joined");
    assert!(stage.end(running).await.unwrap() == undisturbed.rows);
    assert!(stage.cluster.tasks_begun_by(joined) > 0, "{}", stage.cluster.said());
}

/// A worker that is told to leave finishes what it runs and serves what it holds: nothing is done
/// twice for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_costs_nothing() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let kinds = [(0, CPU), (3, ACCELERATOR)];
    let mut at = kinds.map(|(at, _)| at);
    for (turn, moment) in moments(&[0.3, 0.6]).into_iter().enumerate() {
        let (kind, arguments) = (turn % 2, kinds[turn % 2].1);
        let leaving = at[kind];
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        let begun = stage.cluster.tasks_begun_by(leaving);
        stage.cluster.worker(leaving).signal(Signal::SIGTERM);
        assert!(!running.is_over(), "the query was over before the worker left");
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("{moment}: {e}\n{}", stage.cluster.said()));
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        assert_eq!(stage.cluster.worker(leaving).wait(), Some(0), "{}", stage.cluster.said());
        // At most one was on its way to it.
        assert!(stage.cluster.tasks_begun_by(leaving) <= begun + 1, "it was given more tasks");
        let log = stage.cluster.scheduler().log();
        assert!(!log.contains("runs again"), "{log}");
        at[kind] = stage.cluster.add_worker(arguments);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_leaves_at_once() {
    let mut stage = Stage::new(10, &[CPU]);
    stage.cluster.worker(0).signal(Signal::SIGTERM);
    assert_eq!(stage.cluster.worker(0).wait(), Some(0));
}
