//! `kill -9` at many moments of a query.

use super::setup::{ACCELERATOR, CPU, QUERY, Stage, Undisturbed, moments};

/// Tasks that a killed worker may cost beyond those it had begun: of the blocks that lay on it, some
/// are made again, and readers of them are stopped.
fn most_tasks(undisturbed: &Undisturbed, on_killed: usize, killed: usize) -> usize {
    undisturbed.tasks + on_killed + 4 * killed
}

/// Kills the workers at these places at a moment of the query, starts others in their stead, and
/// compares the rows.
async fn killed_at(
    stage: &mut Stage,
    undisturbed: &Undisturbed,
    moment: f64,
    killed: &[(usize, &[&str])],
) -> Vec<usize> {
    let session = stage.session().await;
    let before = stage.cluster.tasks_begun();
    let begun: usize = killed.iter().map(|(at, _)| stage.cluster.tasks_begun_by(*at)).sum();
    let running = stage.start(&session, QUERY);
    stage.reach(&running, moment, undisturbed).await;
    for (at, _) in killed {
        stage.cluster.worker(*at).kill();
    }
    assert!(!running.is_over(), "the query was over before the workers were killed");
    let on_killed: usize = killed.iter().map(|(at, _)| stage.cluster.tasks_begun_by(*at)).sum();
    let replaced: Vec<usize> =
        killed.iter().map(|(_, arguments)| stage.cluster.add_worker(arguments)).collect();
    let rows = stage.end(running).await;
    let rows = rows.unwrap_or_else(|error| panic!("{moment}: {error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
    let ran = stage.cluster.tasks_begun() - before;
    let most = most_tasks(undisturbed, on_killed - begun, killed.len());
    assert!(
        ran <= most,
        "{moment}: {ran} tasks ran, of at most {most}; undisturbed {}\n{}",
        undisturbed.tasks,
        stage.cluster.said()
    );
    replaced
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cpu_worker_is_killed() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let mut cpu = 0;
    for moment in moments(&[0.15, 0.6]) {
        cpu = killed_at(&mut stage, &undisturbed, moment, &[(cpu, CPU)]).await[0];
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_accelerator_worker_is_killed() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let mut accelerator = 2;
    for moment in moments(&[0.3, 0.8]) {
        let killed = [(accelerator, ACCELERATOR)];
        accelerator = killed_at(&mut stage, &undisturbed, moment, &killed).await[0];
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cpu_worker_and_the_accelerator_worker_are_killed() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let (mut cpu, mut accelerator) = (0, 2);
    for moment in moments(&[0.5]) {
        let killed = [(cpu, CPU), (accelerator, ACCELERATOR)];
        let replaced = killed_at(&mut stage, &undisturbed, moment, &killed).await;
        (cpu, accelerator) = (replaced[0], replaced[1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_workers_are_killed_and_none_comes() {
    let mut stage = Stage::new(3, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let running = stage.start(&session, QUERY);
    stage.until_tasks_run(1).await;
    stage.cluster.worker(0).kill();
    stage.cluster.worker(1).kill();
    let error = stage.end(running).await.unwrap_err().strip_backtrace();
    assert!(error.contains("no executor") || error.contains("no worker"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_accelerator_is_killed_and_none_comes() {
    let mut stage = Stage::new(3, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let running = stage.start(&session, QUERY);
    stage.until_tasks_run(2).await;
    stage.cluster.worker(1).kill();
    let error = stage.end(running).await.unwrap_err().strip_backtrace();
    assert!(error.contains("emulated") && error.contains("none has come for 3 s"), "{error}");
    stage.until_nothing_is_left(&[0]).await;
}
