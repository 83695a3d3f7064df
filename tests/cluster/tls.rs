//! Clusters whose connections are encrypted, and who is let in.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use forebay::Tls;
use forebay_testkit::certificates::{Authority, Identity};
use tempfile::TempDir;

use super::setup::{ACCELERATOR, CPU, Stage, run};

/// Rows of all workers meet in each task of the second stage, and again in the join.
const SHUFFLE: &str = "
    SELECT a.letter, a.n, b.longest FROM
      (SELECT substr(word, 1, 1) AS letter, count(*) AS n FROM words GROUP BY 1) a
      JOIN (SELECT substr(word, 1, 1) AS letter, max(id) AS longest FROM words GROUP BY 1) b
      ON a.letter = b.letter";

/// A scheduler and two workers, and sessions, all with certificates of one authority.
struct Encrypted {
    stage: Stage,
    authority: Authority,
    other: Authority,
    server: Identity,
    _folder: TempDir,
}

/// What the model takes for 16 rows.
const SERVICE_MS: u32 = 12;

impl Encrypted {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let authority = Authority::new(&folder.path().join("own"));
        let other = Authority::new(&folder.path().join("other"));
        let server = authority.issue("server", &["127.0.0.1", "localhost"]);
        let client = authority.issue("client", &[]);
        let tls = Tls::open(&client.certificate, &client.key, &client.authority).unwrap();
        let shown = server.arguments();
        let (cpu, accelerator) = ([CPU, &shown].concat(), [ACCELERATOR, &shown].concat());
        let stage = Stage::open(SERVICE_MS, &shown, &[&cpu, &accelerator], Some(tls));
        Self { stage, authority, other, server, _folder: folder }
    }

    /// What a process says that is not let in.
    fn refused(&self, command: &[&str], identity: Option<&Identity>) -> String {
        let arguments = identity.map(Identity::arguments).into_iter().flatten();
        let output = forebay(&[command, &arguments.collect::<Vec<_>>()].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        said.replace(self.stage.cluster.address(), "ADDRESS")
    }

    fn shell(&self) -> [&str; 5] {
        ["shell", "--connect", self.stage.cluster.address(), "-c", "SELECT 1"]
    }

    fn worker<'a>(&'a self, work_dir: &'a str) -> [&'a str; 5] {
        ["worker", "--scheduler", self.stage.cluster.address(), "--work-dir", work_dir]
    }
}

fn forebay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env("RUST_LOG", "error").stdin(Stdio::null());
    command.output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_cluster_gives_the_rows_of_one_process() {
    let encrypted = Encrypted::new();
    let stage = &encrypted.stage;
    let (session, local) = (stage.session().await, stage.local().await);
    // The model runs on the second worker only, on blocks of both.
    stage.undisturbed(&session).await;
    let begun = || [0, 1].map(|worker| stage.cluster.tasks_begun_by(worker));
    let before = begun();
    assert!(before.iter().all(|tasks| *tasks > 0), "{}", stage.cluster.said());

    let rows = stage.run(&session, SHUFFLE).await.unwrap();
    assert_eq!(rows.len(), 16, "one per hexadecimal digit");
    assert_eq!(rows, run(&local, SHUFFLE).await.unwrap());
    let both_did_some = begun().iter().zip(before).all(|(after, before)| *after > before);
    assert!(both_did_some, "{}", stage.cluster.said());
    let plan = run(&session, &format!("EXPLAIN {SHUFFLE}")).await.unwrap().join("\n");
    assert_eq!(plan.matches("HashWriter").count(), 2, "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_sessions_with_a_certificate_of_the_authority_are_let_in() {
    let encrypted = Encrypted::new();
    let shell = encrypted.shell();
    assert_eq!(
        encrypted.refused(&shell, None),
        "error: the scheduler at ADDRESS wants TLS; give --tls-cert, --tls-key and --tls-ca\n"
    );
    let stranger = encrypted.other.issue("stranger", &["127.0.0.1"]);
    let refused = encrypted.refused(&shell, Some(&stranger));
    assert!(refused.contains("is not signed by the authority"), "{refused}");
    let refused = encrypted.refused(&shell, Some(&stranger.believing(&encrypted.server)));
    assert!(refused.contains("refuses the certificate"), "{refused}");
    let expired = encrypted.authority.issue_expired("expired", &[]);
    let refused = encrypted.refused(&shell, Some(&expired));
    assert!(refused.contains("it has expired"), "{refused}");
    let scheduler = encrypted.stage.cluster.scheduler().log();
    assert!(scheduler.contains("was refused: it shows a certificate that"), "{scheduler}");

    let client = encrypted.authority.issue("shell", &[]);
    let let_in = forebay(&[&shell[..], &client.arguments()].concat());
    assert!(let_in.status.success(), "{let_in:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_workers_with_a_certificate_of_the_authority_are_let_in() {
    let encrypted = Encrypted::new();
    let folder = encrypted.stage.folder().join("refused").display().to_string();
    let worker = encrypted.worker(&folder);
    assert_eq!(
        encrypted.refused(&worker, None),
        "error: the scheduler at ADDRESS wants TLS; give --tls-cert, --tls-key and --tls-ca\n"
    );
    let stranger = encrypted.other.issue("stranger", &["127.0.0.1"]);
    let refused = encrypted.refused(&worker, Some(&stranger));
    assert!(refused.contains("is not signed by the authority"), "{refused}");
    let refused = encrypted.refused(&worker, Some(&stranger.believing(&encrypted.server)));
    assert!(refused.contains("stranger.pem"), "{refused}");
    let elsewhere = encrypted.authority.issue("elsewhere", &["gpu-1.example"]);
    let refused = encrypted.refused(&worker, Some(&elsewhere));
    assert!(refused.contains("does not name 127.0.0.1 but gpu-1.example"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_certificates_nobody_joins_a_cluster_without() {
    let folder = TempDir::new().unwrap();
    let stage = Stage::new(10, &[]);
    let client = Authority::new(folder.path()).issue("client", &["127.0.0.1"]);
    let shell = ["shell", "--connect", stage.cluster.address(), "-c", "SELECT 1"];
    let output = forebay(&[&shell[..], &client.arguments()].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("does not speak TLS; start it with --tls-cert"), "{said}");
}

#[test]
fn without_certificates_no_port_is_opened_to_other_machines() {
    let open = |flag: &str, address: &str| {
        format!(
            "error: {flag} {address} can be reached from other machines, by anyone: give --tls-cert, \
             --tls-key and --tls-ca, or --insecure on a network that you trust\n"
        )
    };
    let worker = ["worker", "--scheduler", "127.0.0.1:1"];
    for (arguments, flag, address) in [
        (&["serve", "--bind", "0.0.0.0:0"][..], "--bind", "0.0.0.0"),
        (&["serve", "--bind", "[::]:0"], "--bind", "::"),
        (&["serve", "--bind", "127.0.0.1:0", "--metrics", "0.0.0.0:0"], "--metrics", "0.0.0.0"),
        (&[&worker[..], &["--bind", "0.0.0.0"]].concat(), "--bind", "0.0.0.0"),
        (&[&worker[..], &["--metrics", "0.0.0.0:0"]].concat(), "--metrics", "0.0.0.0"),
    ] {
        let output = forebay(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), open(flag, address));
    }
    let mut insecure = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["serve", "--bind", "0.0.0.0:0", "--insecure", "--flight-sql", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(insecure.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    insecure.kill().unwrap();
    insecure.wait().unwrap();
    assert!(ready.starts_with("listening on 0.0.0.0:"), "{ready}");
}

#[test]
fn the_three_files_are_given_together_and_for_a_cluster() {
    let folder = TempDir::new().unwrap();
    let own = Authority::new(folder.path()).issue("own", &["127.0.0.1"]);
    let [certificate, path, ..] = own.arguments();
    let some = forebay(&["serve", "--bind", "127.0.0.1:0", certificate, path]);
    let said = String::from_utf8(some.stderr).unwrap();
    assert_eq!(some.status.code(), Some(2), "{said}");
    assert!(said.contains("--tls-key <FILE>") && said.contains("--tls-ca <FILE>"), "{said}");

    let alone = forebay(&[&["shell", "-c", "SELECT 1"][..], &own.arguments()].concat());
    let said = String::from_utf8(alone.stderr).unwrap();
    assert_eq!(said, "error: --tls-cert is for a cluster: say which one with --connect\n");

    std::fs::remove_file(&own.key).unwrap();
    let gone = forebay(&[&["serve", "--bind", "127.0.0.1:0"][..], &own.arguments()].concat());
    let said = String::from_utf8(gone.stderr).unwrap();
    assert_eq!(gone.status.code(), Some(1), "{said}");
    let expected = format!("error: the TLS key {} cannot be read: No such", own.key.display());
    assert!(said.starts_with(&expected), "{said}");
}

/// Whether a port answers one who does not encrypt.
fn answers_plainly(address: &str) -> bool {
    let mut port = TcpStream::connect(address).unwrap();
    port.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    port.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        .unwrap();
    let mut first = [0];
    match port.read(&mut first) {
        Ok(0) => false,
        // Nothing but an alert, which begins with 21.
        Ok(_) => first[0] != 21,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_port_of_an_encrypted_cluster_answers_plainly() {
    let mut encrypted = Encrypted::new();
    let session = encrypted.stage.session().await;
    let known = run(&session, "SELECT address FROM forebay.workers").await.unwrap();
    assert_eq!(known.len(), 2);
    let known: Vec<_> = known.iter().map(|at| at.replace("localhost", "127.0.0.1")).collect();
    let processes = [
        encrypted.stage.cluster.scheduler().id(),
        encrypted.stage.cluster.worker(0).id(),
        encrypted.stage.cluster.worker(1).id(),
    ];
    let ports: Vec<u16> = processes.into_iter().flat_map(listens_on).collect();
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let scheduler = encrypted.stage.cluster.address();
    let is_internal = |address: &&String| *address == scheduler || known.contains(*address);
    let (internal, public): (Vec<_>, Vec<_>) = addresses.iter().partition(is_internal);
    assert_eq!(internal.len(), 3, "one port per process");
    assert_eq!(public.len(), 1, "Flight SQL's, which has certificates of its own");
    for address in internal {
        assert!(!answers_plainly(address), "{address}");
    }
    let plain = Stage::new(10, &[]);
    assert!(answers_plainly(plain.cluster.address()), "the question is a wrong one");
}

/// The TCP ports on which a process listens, as Linux tells.
fn listens_on(process: u32) -> Vec<u16> {
    const LISTENS: &str = "0A";
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .filter_map(|link| {
            let link = link.to_string_lossy().into_owned();
            Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let mut ports = vec![];
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (local, state, socket) = (fields[1], fields[3], fields[9]);
            if state == LISTENS && sockets.iter().any(|own| own == socket) {
                let port = local.rsplit(':').next().unwrap();
                ports.push(u16::from_str_radix(port, 16).unwrap());
            }
        }
    }
    ports
}
