//! Processes of different versions, which must not work together.

use std::process::{Command, Stdio};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use forebay_scheduler::protocol::ClusterClient;
use forebay_scheduler::protocol::messages::{
    AnalyzeRequest, DealtRequest, DescribeRequest, FromWorker, Hello, Inventory, PROTOCOL,
    ReadRequest, RunRequest, TableRequest, Worker, from_worker,
};
use futures::stream;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};

use super::setup::{Stage, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_refuses_a_worker_of_another_version() {
    let stage = Stage::new(10, &[]);
    let address = format!("http://{}", stage.cluster.address());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let inventory = Inventory { cpus: 4, memory: 1 << 30, ..Inventory::default() };
    let (id, address) = ("w-new".to_owned(), "127.0.0.1:1".to_owned());
    let worker = Worker { id, address, inventory, draining: false, busy_milli: 0 };
    let version = "9.9.9".to_owned();
    let hello = Hello { protocol: PROTOCOL + 1, version, ..Hello::new(worker) };
    let hello = FromWorker { say: Some(from_worker::Say::Hello(hello)) };
    let refused = ClusterClient::new(channel).attend(stream::iter([hello])).await.unwrap_err();
    let expected = format!(
        "worker w-new speaks protocol {} (forebay 9.9.9), this scheduler {PROTOCOL} (forebay {}); \
         run the same version on all machines",
        PROTOCOL + 1,
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(refused.message(), expected);
    let session = stage.session().await;
    assert_eq!(run(&session, "SHOW WORKERS").await.unwrap(), [""; 0]);
}

/// Everything that a client may ask, by one of another version, and by one of none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_another_version_is_refused_whatever_it_asks() {
    let stage = Stage::new(10, &[]);
    let address = format!("http://{}", stage.cluster.address());
    let client =
        ClusterClient::new(Channel::from_shared(address).unwrap().connect().await.unwrap());
    for (protocol, version) in [(PROTOCOL + 1, "9.9.9".to_owned()), (0, String::new())] {
        let version = || version.clone();
        let mut ask = client.clone();
        let describe = DescribeRequest { protocol, version: version() };
        let read = ReadRequest { protocol, version: version(), ..ReadRequest::default() };
        let run = RunRequest { protocol, version: version(), ..RunRequest::default() };
        let table = TableRequest { protocol, version: version(), ..TableRequest::default() };
        let analyze = AnalyzeRequest { protocol, version: version(), ..AnalyzeRequest::default() };
        let refusals = [
            ask.describe(describe).await.unwrap_err(),
            stage.bounded(ask.read(read)).await.unwrap_err(),
            ask.run(run).await.map(|_| ()).unwrap_err(),
            ask.table(table).await.unwrap_err(),
            ask.analyze(analyze).await.unwrap_err(),
        ];
        let said = format!("this client speaks protocol {protocol} (forebay {})", version());
        for refused in refusals {
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            assert!(refused.message().starts_with(&said), "{refused}");
        }
        let dealt = DealtRequest { protocol, version: version(), ..DealtRequest::default() };
        let refused = ask.dealt(dealt).await.unwrap_err();
        let said = said.replace("client", "worker");
        assert!(refused.message().starts_with(&said), "{refused}");
    }
}

/// One that never was, and one that was forgotten: its client has gone before there was a worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_the_rows_of_a_job_that_is_not_there() {
    let stage = Stage::new(60, &[]);
    let address = format!("http://{}", stage.cluster.address());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let mut client = ClusterClient::new(channel);
    let request = |job: &str| ReadRequest::new(job.to_owned(), None);
    let unknown = stage.bounded(client.read(request("j-never"))).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    assert!(unknown.message().starts_with("there is no job j-never"), "{unknown}");

    let session = stage.session().await;
    // No model: without workers there is nothing that it could be planned for.
    let waits = stage.start(&session, "SELECT word, count(*) FROM words GROUP BY word");
    let jobs = "SELECT job_id FROM forebay.jobs";
    let job = loop {
        if let [job] = &run(&session, jobs).await.unwrap()[..] {
            break job.clone();
        }
        assert!(!waits.is_over(), "without a worker");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let mut other = client.clone();
    let read = request(&job);
    let reader = SpawnedTask::spawn(async move { other.read(read).await });
    let early = tokio::time::timeout(Duration::from_millis(300), client.read(request(&job))).await;
    assert!(early.is_err(), "the job waits for a worker, and so does who reads it");
    drop(waits);
    let gone = stage.bounded(async { reader.join().await.unwrap() }).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    let gone = stage.bounded(client.read(request(&job))).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_refused_says_why_and_ends() {
    const REFUSAL: &str = "this scheduler speaks protocol 99; run the same version on all machines";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let refuse = |_: Request<()>| Err(Status::failed_precondition(REFUSAL));
    let server = Server::builder()
        .layer(InterceptorLayer::new(refuse))
        .add_routes(Routes::default())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let _serving = SpawnedTask::spawn(async move { server.await.unwrap() });
    let folder = tempfile::TempDir::new().unwrap();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_forebay"));
    worker.args(["worker", "--scheduler", &address, "--cpus", "1", "--gpus", "none"]);
    worker.args(["--port", "0", "--work-dir"]).arg(folder.path());
    worker.stdin(Stdio::null());
    let ended = SpawnedTask::spawn_blocking(move || worker.output().unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(120), ended.join()).await;
    let ended = ended.expect("it goes on trying").unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && said.contains(REFUSAL), "{}: {said}", ended.status);
    assert!(said.contains(&address), "{said}");
}
