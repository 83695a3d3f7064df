//! A shell that is part of a cluster.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use forebay_testkit::cluster::Cluster;

use super::setup::Home;

#[test]
fn a_shell_on_a_cluster_shows_jobs_workers_and_what_was_measured() {
    let home = Home::new();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    let (metrics, worker_metrics) = (free_port(), free_port());
    let mut cluster = Cluster::start(env!("CARGO_BIN_EXE_forebay"), &["--metrics", &metrics]);
    let accelerator = ["--emulated-accelerators", "1"];
    cluster
        .add_worker(&[&["--cpus", "1", "--metrics", &worker_metrics], &accelerator[..]].concat());
    cluster.add_worker(&["--cpus", "1"]);
    let shell = |sql: &str| {
        let address = cluster.address();
        home.run(&["shell", "--connect", address, "-q", "--format", "csv", "-c", sql]).succeeds()
    };
    let query = "select sum(digest) is not null as ok from ml_predict(
        (select column1 as n from (values (1), (2), (3))), MODEL echo, DESCRIPTOR(n))";
    let analyzed = shell(&format!("explain analyze {query}"));
    for expected in [
        "Inference(echo) < StreamingExchange < BlockReader; 1 task on 1 worker; ",
        // Metrics of the operators, from the worker.
        "rows_inferred=3",
        "model 'echo'",
        " that the job took",
    ] {
        assert!(analyzed.contains(expected), "{expected}: {analyzed}");
    }
    assert!(!analyzed.contains("had no rows"), "{analyzed}");
    assert_eq!(shell(query), "ok\ntrue\n");
    let jobs = shell("Show Jobs");
    let [head, last, explained] = jobs.lines().collect::<Vec<_>>()[..] else { panic!("{jobs}") };
    assert!(head.starts_with("job_id,state,started,ended,"), "{jobs}");
    assert!(last.contains(",finished,") && last.contains("SELECT sum(digest)"), "{jobs}");
    assert!(explained.contains("EXPLAIN ANALYZE SELECT"), "{jobs}");
    let workers = shell("show workers");
    assert_eq!(workers.lines().count(), 3, "{workers}");
    let figures = get(&metrics, "/metrics");
    for expected in [
        "HTTP/1.1 200 OK",
        "content-type: text/plain; version=0.0.4",
        "forebay_jobs_ended_total{state=\"finished\"} 2\n",
        "forebay_jobs{state=\"running\"} 0\n",
        "forebay_tasks_ended_total{state=\"failed\"} 0\n",
        "forebay_workers{state=\"active\"} 2\n",
        "forebay_accelerators 1\n",
    ] {
        assert!(figures.contains(expected), "{expected}: {figures}");
    }
    let figures = get(&worker_metrics, "/metrics");
    assert!(figures.contains("forebay_worker_cpus 1\n"), "{figures}");
    assert!(figures.contains("forebay_worker_tasks 0\n"), "{figures}");
    let busy = figures.lines().find_map(|line| {
        line.strip_prefix("forebay_worker_accelerator_busy_seconds_total{device=\"emulated:0\"} ")
    });
    assert!(busy.unwrap_or("0").parse::<f64>().unwrap() > 0.0, "{figures}");
    assert!(workers.contains(cluster.worker(0).name()), "{workers}");
}

/// An address that nobody listens on.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
