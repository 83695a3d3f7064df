//! A server that is stopped while one of its jobs runs, and goes on when another one has taken over its state.

use super::*;

const SILENCE: &[&str] = &["--takeover-after", "3"];

/// Rows of the copy.
fn all() -> usize {
    (0..ROWS).filter(|n| n % 5 != 0).count() * 2
}

/// It goes on, and ends.
fn wakes_and_ends(server: &mut Server, by: &str) {
    server.signal(Signal::SIGCONT);
    assert_eq!(server.process.wait().unwrap().code(), Some(1), "{}", server.log());
    let log = server.log();
    let told: Vec<&str> =
        log.lines().filter(|line| line.contains("has taken over the state in")).collect();
    assert_eq!(told.iter().filter(|line| line.starts_with("error: ")).count(), 1, "{log}");
    assert!(told.iter().all(|line| line.contains(by)), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_committed_once_though_its_server_wakes_while_another_one_resumes_it() {
    for (mode, by) in
        [(EMBEDDED, "the server with Arrow Flight SQL on"), (CLUSTER, "the scheduler at")]
    {
        let (stage, beside) = (Stage::new(), tempfile::tempdir().unwrap());
        let arguments = [mode, SILENCE].concat();
        let (mut first, mut client) = stage.serve(&arguments).await;
        let id = submit(&mut client, &stage.copy("out")).await;
        until_complete(&mut client, &stage.staging(""), &id, 2).await;
        first.signal(Signal::SIGSTOP);
        let (_second, mut client) = stage.serve_in(beside.path(), &arguments).await;
        assert_eq!(state(&mut client, &id).await, "interrupted");
        let (parts, _, _) = kept(&mut client, &id).await;
        assert!(parts >= 2, "{parts} parts");
        run(&mut client, &format!("RESUME JOB '{id}'")).await;
        wakes_and_ends(&mut first, by);
        assert_eq!(finishes(&mut client, &id).await, all());
        run(&mut client, &stage.copy("calm")).await;
        let (written, calm) = (rows(&stage.path("out")), rows(&stage.path("calm")));
        assert!(written == calm, "{} rows, and {} of a calm write", written.len(), calm.len());
    }
}

/// All that it would do then has been done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wakes_when_its_job_is_committed_changes_nothing() {
    let (stage, beside) = (Stage::new(), tempfile::tempdir().unwrap());
    let arguments = [EMBEDDED, SILENCE].concat();
    let (mut first, mut client) = stage.serve(&arguments).await;
    let id = submit(&mut client, &stage.copy("out")).await;
    until_complete(&mut client, &stage.staging(""), &id, 6).await;
    first.signal(Signal::SIGSTOP);
    let (_second, mut client) = stage.serve_in(beside.path(), &arguments).await;
    run(&mut client, &format!("RESUME JOB '{id}'")).await;
    let rows_written = finishes(&mut client, &id).await;
    let written = rows(&stage.path("out"));
    assert_eq!((written.len(), rows_written), (all(), all()));
    let before = files(&stage.path("out"));
    wakes_and_ends(&mut first, "the server with Arrow Flight SQL on");
    assert_eq!(files(&stage.path("out")), before);
    assert!(rows(&stage.path("out")) == written);
    assert_eq!(state(&mut client, &id).await, "finished");
}
