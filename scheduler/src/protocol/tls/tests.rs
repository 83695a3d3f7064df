use std::error::Error;
use std::path::Path;

use datafusion::common::runtime::SpawnedTask;
use forebay_testkit::certificates::{Authority, Identity};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::protocol::ClusterServer;
use crate::protocol::connection::{endpoint, reach_scheduler, serve};
use crate::protocol::membership::Membership;
use crate::protocol::server::{ClusterService, NoJobs};

fn open(identity: &Identity) -> Tls {
    Tls::open(&identity.certificate, &identity.key, &identity.authority).unwrap()
}

/// A scheduler's port, as long as the task is held.
async fn listen(tls: Option<Tls>) -> (String, SpawnedTask<()>) {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap().to_string();
    let service = ClusterService::new(Membership::new(), Arc::new(NoJobs));
    let routes = tonic::transport::Server::builder().add_service(ClusterServer::new(service));
    let serving = async move { serve(routes, port, tls).await.unwrap() };
    (address, SpawnedTask::spawn(serving))
}

/// What a caller is told, without the number of the port.
async fn call(address: &str, tls: Option<&Tls>) -> Result<(), String> {
    let port = address.rsplit(':').next().unwrap();
    let reached = reach_scheduler(endpoint(address, tls).unwrap(), address, tls).await;
    reached.map(drop).map_err(|error| error.strip_backtrace().replace(port, "PORT"))
}

struct Cast {
    folder: TempDir,
    authority: Authority,
    other: Authority,
}

impl Cast {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let (authority, other) = (folder.path().join("a"), folder.path().join("b"));
        Self { authority: Authority::new(&authority), other: Authority::new(&other), folder }
    }

    /// A message without the folder.
    fn plain(&self, said: Result<(), String>) -> String {
        let said = said.unwrap_err();
        said.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

const LOOPBACK: &[&str] = &["127.0.0.1"];

#[tokio::test]
async fn those_of_one_authority_reach_each_other_and_nobody_else_does() {
    let cast = Cast::new();
    let server = cast.authority.issue("server", LOOPBACK);
    let (address, _serving) = listen(Some(open(&server))).await;

    let client = cast.authority.issue("client", &[]);
    assert_eq!(call(&address, Some(&open(&client))).await, Ok(()));

    assert_eq!(
        cast.plain(call(&address, None).await),
        "Execution error: the scheduler at 127.0.0.1:PORT wants TLS; give --tls-cert, --tls-key and \
         --tls-ca"
    );
    let stranger = cast.other.issue("stranger", LOOPBACK);
    assert_eq!(
        cast.plain(call(&address, Some(&open(&stranger))).await),
        "Execution error: the scheduler at 127.0.0.1:PORT has a certificate that is not signed by \
         the authority b/authority.pem"
    );
    let stranger = stranger.believing(&server);
    assert_eq!(
        cast.plain(call(&address, Some(&open(&stranger))).await),
        "Execution error: the scheduler at 127.0.0.1:PORT refuses the certificate b/stranger.pem: \
         it is not signed by the authority that counts there"
    );
    let expired = cast.authority.issue_expired("expired", &[]);
    assert_eq!(
        cast.plain(call(&address, Some(&open(&expired))).await),
        "Execution error: the scheduler at 127.0.0.1:PORT refuses the certificate a/expired.pem: \
         it has expired, or is not valid yet"
    );
    // Who was refused takes nothing from those who are welcome.
    assert_eq!(call(&address, Some(&open(&client))).await, Ok(()));
}

#[tokio::test]
async fn a_caller_without_a_certificate_is_refused() {
    let cast = Cast::new();
    let server = cast.authority.issue("server", LOOPBACK);
    let (address, _serving) = listen(Some(open(&server))).await;
    let authority = std::fs::read(&server.authority).unwrap();
    let anonymous = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    let endpoint = tonic::transport::Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(anonymous).unwrap().connect().await;
    let refused = match channel {
        Ok(channel) => {
            let asked = crate::protocol::messages::DescribeRequest::new();
            crate::protocol::ClusterClient::new(channel).describe(asked).await.is_err()
        }
        Err(_) => true,
    };
    assert!(refused);
}

#[tokio::test]
async fn a_server_that_is_not_whom_it_should_be_is_not_believed() {
    let cast = Cast::new();
    let client = open(&cast.authority.issue("client", &[]));
    let elsewhere = open(&cast.authority.issue("elsewhere", &["gpu-1.example", "10.0.0.7"]));
    let (address, _serving) = listen(Some(elsewhere)).await;
    assert_eq!(
        cast.plain(call(&address, Some(&client)).await),
        "Execution error: the scheduler at 127.0.0.1:PORT has a certificate that does not name \
         127.0.0.1 but gpu-1.example, 10.0.0.7"
    );
    let expired = open(&cast.authority.issue_expired("expired", LOOPBACK));
    let (address, _serving) = listen(Some(expired)).await;
    assert_eq!(
        cast.plain(call(&address, Some(&client)).await),
        "Execution error: the scheduler at 127.0.0.1:PORT has a certificate that has expired"
    );
    let (address, _serving) = listen(None).await;
    assert_eq!(
        cast.plain(call(&address, Some(&client)).await),
        "Execution error: the scheduler at 127.0.0.1:PORT does not speak TLS; start it with \
         --tls-cert, --tls-key and --tls-ca, or leave them out here"
    );
}

#[tokio::test]
async fn who_says_nothing_keeps_nobody_waiting() {
    let cast = Cast::new();
    let server = open(&cast.authority.issue("server", LOOPBACK));
    let (address, _serving) = listen(Some(server)).await;
    let silent = TcpStream::connect(&address).await.unwrap();
    let client = open(&cast.authority.issue("client", &[]));
    assert_eq!(call(&address, Some(&client)).await, Ok(()));
    drop(silent);
}

/// What the port says to one who does not speak TLS, and that it hangs up then.
#[tokio::test]
async fn a_caller_who_does_not_speak_tls_is_hung_up_on() {
    let cast = Cast::new();
    let server = open(&cast.authority.issue("server", LOOPBACK));
    let (address, _serving) = listen(Some(server)).await;
    let mut plain = TcpStream::connect(&address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut said = vec![];
    plain.read_to_end(&mut said).await.ok();
    // An alert, which begins with 21, unless it was lost when the connection ended.
    assert_eq!(said.first().copied().unwrap_or(21), 21);
}

fn problem(certificate: &Path, key: &Path, authority: &Path) -> String {
    Tls::open(certificate, key, authority).unwrap_err().strip_backtrace()
}

#[test]
fn each_file_that_is_wrong_is_named() {
    let cast = Cast::new();
    let Identity { certificate, key, authority } = cast.authority.issue("own", LOOPBACK);
    let other = cast.authority.issue("other", LOOPBACK);
    let plain = |said: String| cast.plain(Err(said));
    let nowhere = cast.folder.path().join("nowhere.pem");
    let text = cast.folder.path().join("text.pem");
    std::fs::write(&text, "no PEM").unwrap();
    let missing = "cannot be read: No such file or directory (os error 2)";
    assert_eq!(
        plain(problem(&nowhere, &key, &authority)),
        format!("Execution error: the TLS certificate nowhere.pem {missing}")
    );
    assert_eq!(
        plain(problem(&certificate, &nowhere, &authority)),
        format!("Execution error: the TLS key nowhere.pem {missing}")
    );
    assert_eq!(
        plain(problem(&certificate, &key, &nowhere)),
        format!("Execution error: the TLS authority nowhere.pem {missing}")
    );
    assert_eq!(
        plain(problem(&text, &key, &authority)),
        "Execution error: the TLS certificate text.pem holds no certificate; it must be PEM: \
         'BEGIN CERTIFICATE'"
    );
    assert_eq!(
        plain(problem(&certificate, &text, &authority)),
        "Execution error: the TLS key text.pem: it holds no key that can be read; it must be PEM \
         and not encrypted: 'BEGIN PRIVATE KEY'"
    );
    assert_eq!(
        plain(problem(&certificate, &other.key, &authority)),
        "Execution error: the TLS key a/other.key is not that of the certificate a/own.pem"
    );
}

#[test]
fn a_process_that_nobody_would_believe_does_not_start() {
    let cast = Cast::new();
    let own = cast.authority.issue("own", &["gpu-1.example"]);
    assert!(open(&own).check_host("gpu-1.example").is_ok());
    let check = |identity: &Identity, host: &str| {
        let checked = open(identity).check_host(host);
        cast.plain(checked.map_err(|error| error.strip_backtrace()))
    };
    assert_eq!(
        check(&own, "gpu-2.example"),
        "Execution error: the TLS certificate a/own.pem does not name gpu-2.example but \
         gpu-1.example; others call this process gpu-2.example: make a certificate for that, of the \
         authority a/authority.pem, or give another --host"
    );
    let expired = cast.authority.issue_expired("expired", &["gpu-1.example"]);
    assert!(check(&expired, "gpu-1.example").contains("has expired"));
    let stranger = cast.other.issue("stranger", &["gpu-1.example"]).believing(&own);
    assert!(check(&stranger, "gpu-1.example").contains("is not signed by the authority"));
}

#[test]
fn what_io_errors_wrap_is_found() {
    let inner = rustls::Error::NoCertificatesPresented;
    let error = std::io::Error::other(std::io::Error::other(inner.clone()));
    let error: &(dyn Error + 'static) = &error;
    assert_eq!(refusal::find(error), Some(&inner));
}
