//! A server that is told to end: what runs ends well, and nothing more begins.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tonic::Code;

use super::process::{Client, ROWS, Server, lines, rest};

/// The query of so many rows, four of which take 100 ms. On a cluster its last task begins when all
/// have been computed.
fn slow(rows: usize) -> String {
    format!(
        "SELECT digest IS NOT NULL, count(*) FROM ml_predict((SELECT n FROM t WHERE n < {rows}), \
         MODEL slow, DESCRIPTOR(n)) GROUP BY 1"
    )
}

/// Until the query that was begun is at work.
async fn at_work(mode: &[&str], client: &mut Client) {
    let running = "SELECT count(*) FROM forebay.jobs WHERE tasks_running > 0";
    while mode == CLUSTER && lines(&client.run(running).await.unwrap()) == "0\n" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const EMBEDDED: &[&str] = &["--embedded"];
/// A job without a worker would be given up soon.
const CLUSTER: &[&str] = &["--worker", "--bind", "127.0.0.1:0", "--worker-timeout", "2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_runs_ends_well_when_its_server_is_told_to_end() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::start(folder.path(), mode);
        let (mut client, mut other) = (server.client("").await, server.client("").await);
        let rows = client.begin(&slow(200)).await.unwrap();
        at_work(mode, &mut other).await;
        server.signal(Signal::SIGTERM);
        // Others are told, as soon as the signal has arrived.
        let refused = loop {
            match other.run("SELECT 1").await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(status) => break status,
            }
        };
        assert_eq!(refused.code(), Code::Unavailable, "{mode:?}: {refused}");
        assert!(refused.message().contains("the server is ending"), "{mode:?}: {refused}");
        let all = rest(rows).await.unwrap_or_else(|status| panic!("{mode:?}: {status}"));
        assert_eq!(lines(&all), "true,200\n", "{mode:?}");
        let status = server.process.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{mode:?}: {}", server.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_twice_waits_for_nothing() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::start(folder.path(), mode);
        let (mut client, mut other) = (server.client("").await, server.client("").await);
        // It would take minutes.
        let _rows = client.begin(&slow(ROWS)).await.unwrap();
        at_work(mode, &mut other).await;
        server.signal(Signal::SIGINT);
        while other.run("SELECT 1").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(server.process.try_wait().unwrap().is_none(), "it waits: {}", server.log());
        server.signal(Signal::SIGTERM);
        let status = server.process.wait().unwrap();
        assert_eq!(status.code(), Some(1), "{mode:?}");
        assert!(server.log().contains("told to end twice"), "{}", server.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_told_to_end_does_not_wait_for_ever() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::start(folder.path(), &[mode, &["--drain-limit", "2"]].concat());
        let (mut client, mut other) = (server.client("").await, server.client("").await);
        let _rows = client.begin(&slow(ROWS)).await.unwrap();
        at_work(mode, &mut other).await;
        let told = Instant::now();
        server.signal(Signal::SIGTERM);
        let status = server.process.wait().unwrap();
        assert!(told.elapsed() >= Duration::from_secs(2), "{mode:?}: {:?}", told.elapsed());
        assert_eq!(status.code(), Some(0), "{mode:?}");
        assert!(server.log().contains("--drain-limit"), "{}", server.log());
    }
}
