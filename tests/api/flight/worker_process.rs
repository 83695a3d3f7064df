//! The worker of `forebay serve --worker` may die, and the server does not.

use std::fs;
use std::process::Command;
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::process::{Client, Server, lines, text};

const CLUSTER: &[&str] = &["--worker", "--bind", "127.0.0.1:0"];

/// The process of the server's worker, when there is one that is not `before`.
async fn worker(server: &Server, before: Option<Pid>) -> Pid {
    let threads = format!("/proc/{}/task", server.process.id());
    loop {
        // A thread of the runtime has started it.
        let children = fs::read_dir(&threads)
            .unwrap()
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
        let children: String = children.collect();
        let mut workers = children.split_whitespace().map(|id| Pid::from_raw(id.parse().unwrap()));
        if let Some(worker) = workers.find(|worker| Some(*worker) != before) {
            return worker;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether tasks run.
async fn is_at_work(client: &mut Client) -> bool {
    let running = "SELECT count(*) FROM forebay.jobs WHERE tasks_running > 0";
    lines(&client.run(running).await.unwrap()) != "0\n"
}

/// Waits until something is so.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn slow(rows: usize) -> String {
    format!(
        "SELECT digest IS NOT NULL, count(*) FROM ml_predict((SELECT n FROM t WHERE n < {rows}), \
         MODEL slow, DESCRIPTOR(n)) GROUP BY 1"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_goes_on_where_one_died() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), CLUSTER);
    let (mut client, mut other) = (server.client("").await, server.client("").await);
    client.run("SET forebay.block_bytes = 200").await.unwrap();
    let query = slow(100);
    let query = SpawnedTask::spawn(async move { client.run(&query).await });
    let mut last = None;
    for signal in [Signal::SIGABRT, Signal::SIGKILL] {
        until(async || is_at_work(&mut other).await).await;
        let worker = worker(&server, last).await;
        kill(worker, signal).unwrap();
        last = Some(worker);
        // What needs no worker is answered as before.
        assert_eq!(lines(&other.run("SELECT 1").await.unwrap()), "1\n");
    }
    assert_eq!(lines(&query.await.unwrap().unwrap()), "true,100\n", "{}", server.log());
    assert_eq!(lines(&other.run("SELECT count(*) FROM t").await.unwrap()), "20000\n");
    let log = server.log();
    for signal in ["SIGABRT", "SIGKILL"] {
        assert!(log.contains(&format!("the worker of this server ended ({signal})")), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_ends_its_workers_ends() {
    let folder = tempfile::tempdir().unwrap();
    // On a busy machine a worker may take a while to start.
    let server = Server::start(folder.path(), &[CLUSTER, &["--worker-timeout", "120"]].concat());
    let (mut client, mut other) = (server.client("").await, server.client("").await);
    let query = slow(10_000);
    let kills = async {
        let mut last = None;
        loop {
            until(async || is_at_work(&mut other).await).await;
            let worker = worker(&server, last).await;
            kill(worker, Signal::SIGABRT).unwrap();
            last = Some(worker);
            // The next one is killed at work, too.
            until(async || !is_at_work(&mut other).await).await;
        }
    };
    let error = tokio::select! {
        ended = client.run(&query) => ended.unwrap_err(),
        () = kills => unreachable!("workers are killed until the query ends"),
    };
    assert!(error.message().contains("workers are lost faster than they work"), "{error}");
    assert_eq!(lines(&other.run("SELECT count(*) FROM t").await.unwrap()), "20000\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_ends_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), CLUSTER);
    let mut client = server.client("").await;
    client.run("SELECT count(*) FROM t").await.unwrap();
    let worker = worker(&server, None).await;
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    // It may stay in the table of processes for a while.
    let stat = format!("/proc/{worker}/stat");
    until(async || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_cannot_start_is_an_error_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["--catalog", text(&folder.path().join("catalog")), "serve"])
        .args(CLUSTER)
        .args(["--flight-sql", "127.0.0.1:0", "--work-dir", text(&file)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the work folder") && said.contains("before it could work"), "{said}");
}
