//! Workers that come and go while a query runs.

use forebay::ForebayContext;
use nix::sys::signal::Signal;

use super::history::{self, Task};
use super::setup::{ACCELERATOR, CPU, QUERY, Stage, is_long, moments, report};

/// Half of the work that is left is the new worker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_joins_gets_its_share() {
    let service_ms = if is_long() { 160 } else { 20 };
    let mut stage = Stage::with_service(service_ms, 10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let alone = model_tasks(&session).await;
    let running = stage.start(&session, QUERY);
    stage.reach(&running, if is_long() { 0.3 } else { 0.1 }, &undisturbed).await;
    let joined = stage.cluster.add_worker(ACCELERATOR);
    assert!(!running.is_over(), "the query was over before the worker joined");
    assert!(stage.end(running).await.unwrap() == undisturbed.rows);
    let name = stage.cluster.worker(joined).name().to_owned();
    let both = model_tasks(&session).await;
    let its: Vec<_> = both.iter().filter(|task| task.worker == name).collect();
    let Some(first) = its.iter().map(|task| task.started).min() else {
        panic!("it got nothing to do\n{}", stage.cluster.said());
    };
    let since = both.iter().filter(|task| task.started >= first).count();
    if is_long() {
        // In a short query little is left by the time it is there.
        assert!(its.len() * 10 >= since * 4, "it got {} of {since} tasks", its.len());
        print_time_saved(&alone, &both, first);
    }
}

/// The attempts at the units of the model's stage, of the job that started last.
async fn model_tasks(session: &ForebayContext) -> Vec<Task> {
    let job = history::last_job(session).await;
    let mut tasks = history::tasks(session, &job).await;
    tasks.retain(|task| task.unit.0 == 1);
    tasks
}

/// Compares the time that was left when the new worker began with what one worker alone needs from
/// the same point of the work on.
fn print_time_saved(alone: &[Task], both: &[Task], first: i64) {
    let end = |tasks: &[Task]| tasks.iter().map(|task| task.ended).max().unwrap_or(0);
    let done = both.iter().filter(|task| task.ended <= first).count();
    let mut ends: Vec<_> = alone.iter().map(|task| task.ended).collect();
    ends.sort_unstable();
    let from = ends.get(done.saturating_sub(1)).copied().unwrap_or(0);
    let (left_alone, left) = (end(alone) - from, end(both) - first);
    report(&format!(
        "a worker joined after {done} of {} model tasks: {:.1} s were left instead of {:.1} s, {:.0} \
         % less",
        alone.len(),
        left as f64 / 1000.0,
        left_alone as f64 / 1000.0,
        100.0 * (1.0 - left as f64 / left_alone as f64)
    ));
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
