//! The codes by which clients tell what they may do, the same in one process and on a cluster.

use std::fs;

use tonic::{Code, Status};

use super::process::{Client, Server};

const EMBEDDED: &[&str] = &["--embedded"];
const CLUSTER: &[&str] = &["--worker", "--bind", "127.0.0.1:0"];

async fn refused(client: &mut Client, query: &str) -> Status {
    client.run(query).await.map(|_| ()).unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_query_its_rows_or_its_files_is_told_apart() {
    for mode in [EMBEDDED, CLUSTER] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), mode);
        let mut client = server.client("").await;
        let fragile = fs::canonicalize("tests/models/fragile").unwrap();
        let fragile = format!("CREATE MODEL fragile LOCATION '{}'", fragile.display());
        client.run(&fragile).await.unwrap();
        let asked = |options: &str| {
            let rows = "(SELECT CAST(n AS VARCHAR) AS text FROM t)";
            format!("SELECT * FROM ml_predict({rows}, MODEL fragile, DESCRIPTOR(text), {options})")
        };
        let (too_many, too_much) = (asked("gpus => 900"), asked("memory => '900 TiB'"));
        let contradiction = asked("device => 'cpu'");
        let cases = [
            (too_many.as_str(), Code::ResourceExhausted),
            (too_much.as_str(), Code::ResourceExhausted),
            (contradiction.as_str(), Code::InvalidArgument),
            ("SELECT nothing FROM t", Code::InvalidArgument),
            ("SELECT 1 / (n - 5) FROM t", Code::InvalidArgument),
            ("SELECT CAST('x' || n AS INT) FROM t", Code::InvalidArgument),
            (
                "SELECT ml_predict(MODEL fragile, CASE n WHEN 7 THEN 'poison' ELSE 'good' END) FROM t",
                Code::FailedPrecondition,
            ),
        ];
        for (query, code) in cases {
            let status = refused(&mut client, query).await;
            assert_eq!(status.code(), code, "{mode:?}: {query}: {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_workers_may_have_some_later() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--bind", "127.0.0.1:0", "--worker-timeout", "2"];
    let server = Server::start(folder.path(), &arguments);
    let mut client = server.client("").await;
    let status = refused(&mut client, "SELECT max(n) FROM t").await;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("there is no worker"), "{status}");
}
