//! A shell that is part of a cluster.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use forebay_testkit::cluster::Cluster;
use nix::sys::signal::Signal;

use super::setup::{Home, Killed, Ran};

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

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// First it says what it waits for, also to a log; then it gives up.
#[test]
fn a_query_on_a_cluster_without_workers_says_so_and_fails() {
    let home = Home::new();
    let cluster = Cluster::start(BINARY, &["--worker-timeout", "5"]);
    let data = home.write("t.csv", "n\n1\n2\n");
    let sql = format!("SELECT sum(n) FROM '{data}'");
    let ran = home.run(&["shell", "--connect", cluster.address(), "-c", &sql]);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let [waits, failed] = lines[..] else { panic!("{}", ran.stderr) };
    let said = "there is no worker; start one with `forebay worker --scheduler HOST:PORT`";
    assert_eq!(waits, format!("waiting: {said}"));
    assert!(failed.starts_with(&format!("error: {said}; none has come for 5 s")), "{failed}");
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""));
}

/// Nothing of it is changed, and nothing is begun.
#[test]
fn a_journal_that_cannot_be_used_is_named_with_the_reason() {
    let home = Home::new();
    let serve = |state: &str| {
        let ports = ["serve", "--bind", "127.0.0.1:0", "--flight-sql", "127.0.0.1:0"];
        let ran = home.run(&[&ports[..], &["--state", state]].concat());
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        ran.stderr
    };
    let journal = home.write("state/0000000000000001-00000000.journal", "not a journal");
    let state = journal.rsplit_once('/').unwrap().0.to_owned();
    let said = serve(&state);
    assert!(said.contains(&format!("{journal} does not begin as a scheduler's journal")), "{said}");
    assert_eq!(std::fs::read_to_string(&journal).unwrap(), "not a journal");
    let said = serve(&journal);
    assert!(said.contains(&format!("cannot use the scheduler's journal in {journal}")), "{said}");
}

/// The worker that comes in time runs what has waited for it.
#[test]
fn a_query_waits_for_the_first_worker() {
    let home = Home::new();
    let mut cluster = Cluster::start(BINARY, &["--worker-timeout", "60"]);
    let data = home.write("t.csv", "n\n1\n2\n");
    let sql = format!("SELECT sum(n) AS sum FROM '{data}'");
    let mut command = home.command(&["shell", "--connect", cluster.address(), "-c", &sql]);
    let shell = command.args(["--format", "csv"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut said = BufReader::new(shell.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains("there is no worker"));
    let jobs = "SELECT state, waits_for, name, queued <= now() AS was FROM forebay.jobs";
    let jobs = ["shell", "--connect", cluster.address(), "-q", "--format", "csv", "-c", jobs];
    let jobs = home.run(&jobs).succeeds();
    let row = jobs.lines().nth(1).unwrap();
    assert!(row.starts_with("queued,there is no worker") && row.ends_with(",true"), "{jobs}");
    assert!(row.contains("SELECT sum(n)"), "{jobs}");
    cluster.add_worker(&["--cpus", "1"]);
    assert_eq!(Ran::of(shell.wait_with_output().unwrap()).stdout, "sum\n3\n");
}

#[test]
fn a_port_of_another_server_is_named() {
    let home = Home::new();
    let serve = ["serve", "--bind", "127.0.0.1:0", "--flight-sql", "127.0.0.1:0"];
    let mut server = Killed(home.command(&serve).stdout(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let addresses = lines.take(2).map(|line| line.unwrap().rsplit(' ').next().unwrap().to_owned());
    let [scheduler, flight] = &addresses.collect::<Vec<_>>()[..] else { panic!("two doors") };
    for address in [flight, &format!("grpc://{scheduler}")] {
        let message = home.run(&["shell", "-c", "SELECT 1", "--connect", address]);
        assert!(message.stderr.contains("it is another kind of server"), "{}", message.stderr);
        assert!(message.stderr.contains(address), "{}", message.stderr);
    }
}

#[test]
fn workers_offer_the_memory_that_their_tasks_may_hold() {
    let home = Home::new();
    let mut cluster = Cluster::start(BINARY, &[]);
    cluster.add_worker(&["--cpus", "1", "--memory-limit", "100MB"]);
    let sql = "SELECT memory FROM forebay.workers";
    let shell = ["shell", "--connect", cluster.address(), "-q", "--format", "csv", "-c", sql];
    assert_eq!(home.run(&shell).succeeds(), "memory\n100000000\n");
}

/// Its scheduler's jobs end, and their rows are read; others are told to ask elsewhere.
#[test]
fn a_scheduler_that_is_told_to_end_finishes_what_runs() {
    let home = Home::new();
    home.run(&["model", "add", "slow", &home.package("slow", 100)]).succeeds();
    let mut cluster = Cluster::start(BINARY, &["--worker-timeout", "2"]);
    cluster.add_worker(&["--cpus", "1", "--emulated-accelerators", "1"]);
    let shell = |sql: &str| {
        let address = cluster.address();
        home.command(&["shell", "--connect", address, "-q", "--format", "csv", "-c", sql])
    };
    let numbers: String = (0..200).map(|n| format!("{n}\n")).collect();
    let data = home.write("t.csv", &format!("n\n{numbers}"));
    // Its last task begins when all rows have been computed.
    let query = format!(
        "select digest is not null as ok, count(*) as n from ml_predict((select n from '{data}'), \
         MODEL slow, DESCRIPTOR(n)) group by 1"
    );
    let running = shell(&query).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while cluster.tasks_begun() == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    cluster.scheduler().signal(Signal::SIGTERM);
    let refused = loop {
        let ran = Ran::of(shell(&format!("select count(*) from '{data}'")).output().unwrap());
        if ran.status != Some(0) {
            break ran.stderr;
        }
    };
    assert!(refused.contains("it is ending"), "{refused}");
    assert_eq!(Ran::of(running.wait_with_output().unwrap()).succeeds(), "ok,n\ntrue,200\n");
    assert_eq!(cluster.scheduler_mut().wait(), Some(0));
}
