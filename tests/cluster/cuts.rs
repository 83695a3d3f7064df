//! Networks that are cut between two workers while the scheduler reaches both.

use std::time::{Duration, Instant};

use forebay::ForebayContext;
use forebay_testkit::proxy::{Line, Proxy};
use nix::sys::signal::Signal;

use super::history::{self, Block};
use super::setup::{ACCELERATOR, CPU, QUERY, Running, Stage, is_long, moments, run};

/// Adds a CPU worker whose blocks are read through a proxy: no other is reached by its name, so nobody reads its files.
async fn add_proxied(stage: &mut Stage) -> (usize, Proxy) {
    let proxy = Proxy::start().await;
    let ports = format!("{},0", proxy.port());
    let apart = ["--host", "LOCALHOST", "--advertised-ports", &ports];
    let at = stage.cluster.add_worker(&[CPU, &apart].concat());
    proxy.forward_to(stage.cluster.worker(at).blocks_port());
    (at, proxy)
}

/// The line to one of two CPU workers is cut for good. What lies behind is made again by the other.
async fn cut_for_good(line: Line, says: &str) {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let (mut at, mut proxy) = add_proxied(&mut stage).await;
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    for moment in moments(&[0.3]) {
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        let job = history::last_job(&session).await;
        let name = stage.cluster.worker(at).name().to_owned();
        let behind = hold_reader(&mut stage, &session, &job, &name, &running).await;
        proxy.set(line);
        stage.cluster.worker(READER).signal(Signal::SIGCONT);
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("{moment}: {e}\n{}", stage.cluster.said()));
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        let tasks = history::tasks(&session, &job).await;
        let noticed = tasks.iter().any(|task| task.reason.contains(says));
        assert!(noticed, "{moment}: read {behind:?} from behind the line");
        stage.cluster.worker(at).kill();
        (at, proxy) = add_proxied(&mut stage).await;
    }
}

/// Of the workers of [`cut_for_good`], the only one that reads what CPU workers make.
const READER: usize = 1;

/// Stops the reader while blocks of a worker wait for it; says which ones.
async fn hold_reader(
    stage: &mut Stage,
    session: &ForebayContext,
    job: &str,
    worker: &str,
    running: &Running,
) -> Vec<Block> {
    loop {
        stage.cluster.worker(READER).signal(Signal::SIGSTOP);
        assert!(!running.is_over(), "the query was over before anything lay behind the line");
        let mut behind = history::blocks(session, job).await;
        behind.retain(|block| block.worker == worker && block.state == "sealed");
        if !behind.is_empty() {
            return behind;
        }
        stage.cluster.worker(READER).signal(Signal::SIGCONT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_breaks_between_two_workers_costs_what_is_behind_it() {
    cut_for_good(Line::Refused, "cannot be fetched from").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_falls_silent_between_two_workers_costs_what_is_behind_it() {
    cut_for_good(Line::Silent, "nothing for 10s").await;
}

/// How long a reader waits for the next bytes.
const WAITED_FOR: Duration = Duration::from_secs(10);

/// Shorter than anybody waits: the rest of what was asked for comes over another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_silent_for_a_while_is_waited_for() {
    let mut stage = Stage::new(10, &[ACCELERATOR]);
    let (_at, proxy) = add_proxied(&mut stage).await;
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    for moment in moments(&[0.3]) {
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        let silent = Instant::now();
        proxy.set(Line::Silent);
        assert!(!running.is_over(), "the query was over before the line fell silent");
        stage.until("a fetch", Duration::from_secs(60), |_| proxy.cut() > 0).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        proxy.set(Line::Open);
        let was_short = silent.elapsed() < WAITED_FOR;
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("{moment}: {e}\n{}", stage.cluster.said()));
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        let job = history::last_job(&session).await;
        let again = history::recomputed(&session, &job).await;
        assert!(again.is_empty() || !was_short, "{moment}: {again:?} though it was waited for");
    }
}

/// Nobody reaches one of the workers. A hash shuffle is made again elsewhere.
async fn shuffle_behind(line: Line) {
    const SHUFFLED: &str = "
        SELECT text, rows, label FROM ml_predict(
          (SELECT upper(substr(word, 1, 2)) AS text, count(*) AS rows FROM words GROUP BY text),
          MODEL slow, DESCRIPTOR(text))";
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let (_at, proxy) = add_proxied(&mut stage).await;
    let session = stage.session().await;
    proxy.set(line);
    let rows = stage.run(&session, SHUFFLED).await;
    let rows = rows.unwrap_or_else(|e| panic!("{e}\n{}", stage.cluster.said()));
    assert!(rows == run(&stage.local().await, SHUFFLED).await.unwrap());
    let job = history::last_job(&session).await;
    let again = history::recomputed(&session, &job).await;
    assert!(again.iter().any(|found| found.unit.0 == 0), "{again:?}\n{}", stage.cluster.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shuffle_behind_a_line_that_is_cut_is_made_again() {
    shuffle_behind(Line::Refused).await;
    if is_long() {
        shuffle_behind(Line::Silent).await;
    }
}
