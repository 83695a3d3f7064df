//! `forebay shell --connect grpc://…`: the shell is a client like any other; and who may be one.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use forebay_testkit::certificates::{Authority, Identity};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// A `forebay serve` of its own, on a free port, until it is dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let model = std::path::absolute("tests/models/echo").unwrap();
        let init = folder.join("init.sql");
        let model = format!("CREATE OR REPLACE MODEL echo LOCATION '{}';", model.display());
        let words = "CREATE TABLE words AS SELECT column1 AS id, column2 AS word \
                     FROM (VALUES (1, 'red'), (2, 'green'), (3, NULL));";
        std::fs::write(&init, format!("{words}\n{model}")).unwrap();
        let mut process = Command::new(FOREBAY)
            .args(["--catalog", folder.join("catalog").to_str().unwrap()])
            .args(["serve", "--embedded", "--emulated-accelerators", "1"])
            .args(["--flight-sql", "127.0.0.1:0", "--init", init.to_str().unwrap()])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("Arrow Flight SQL on ")).unwrap();
        let address = line.rsplit(' ').next().unwrap().to_owned();
        Self { process, address }
    }

    fn shell(&self, scheme: &str, arguments: &[&str]) -> Output {
        shell(&format!("{scheme}://{}", self.address), arguments)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn shell(uri: &str, arguments: &[&str]) -> Output {
    Command::new(FOREBAY)
        .args(["shell", "-q", "--format", "csv", "--connect", uri])
        .args(arguments)
        .env("FOREBAY_PASSWORD", "secret of ada")
        .env_remove("FOREBAY_TOKEN")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn printed(output: Output) -> String {
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn statements_run_in_one_session_on_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let shell = |sql: &str| server.shell("grpc", &["-c", sql]);
    assert_eq!(printed(shell("SELECT * FROM words ORDER BY id")), "id,word\n1,red\n2,green\n3,\n");
    let predict = "SELECT id, digest IS NOT NULL AS ok FROM ml_predict(TABLE words, MODEL echo, \
                   DESCRIPTOR(id)) ORDER BY id";
    assert_eq!(printed(shell(predict)), "id,ok\n1,true\n2,true\n3,true\n");
    let several = "SET forebay.byte_budget = '3MB'; -- with a ';' in a comment\n\
                   SHOW forebay.byte_budget; CREATE TABLE t AS SELECT ';' AS a; \
                   INSERT INTO t VALUES ('x'); SELECT * FROM t ORDER BY a";
    let found = printed(shell(several));
    assert!(found.contains("forebay.byte_budget") && found.ends_with("a\n;\nx\n"), "{found}");
    let found = printed(server.shell("grpc", &["-c", r"\d echo", "-c", r"\d words"]));
    assert!(found.contains("input,n,BIGINT") && found.contains("word,Utf8,YES"), "{found}");
    // Another shell is another session; tables are the server's.
    let found = printed(shell("SHOW forebay.byte_budget; SELECT count(*) AS n FROM t"));
    assert!(!found.contains("3MB") && found.ends_with("n\n2\n"), "{found}");
}

#[test]
fn a_mistake_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let shell = |sql: &str| refused(server.shell("grpc", &["-c", sql]));
    let nearest = "error: table 'wrods' not found (did you mean 'words'?)\n";
    assert_eq!(shell("SELECT * FROM wrods"), nearest);
    assert_eq!(shell("SELECT 1 / (value - 5) FROM range(0, 9)"), "error: Divide by zero error\n");
    assert!(shell("SELEC 1").starts_with("error: syntax error: "), "{}", shell("SELEC 1"));
    let said = refused(self::shell("127.0.0.1:1", &["--user", "ada", "-c", "SELECT 1"]));
    assert!(said.contains("--user and --server-ca are for a server of Arrow Flight SQL"), "{said}");
    let said = refused(self::shell("grpc://127.0.0.1:1", &["-c", "SELECT 1"]));
    assert!(said.contains("no Flight SQL server at grpc://127.0.0.1:1"), "{said}");
}

/// More than a message of gRPC has unless somebody asks for more, and small ones beside them.
#[test]
fn rows_of_many_megabytes_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]);
    let sql = "SELECT value, CASE WHEN value % 40 = 7 THEN repeat('x', 10000000) ELSE 'y' END AS text \
               FROM range(0, 60) ORDER BY value";
    let found = printed(server.shell("grpc", &["-c", sql]));
    let lengths = found.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().len());
    let expected = (0..60).map(|value| if value % 40 == 7 { 10_000_000 } else { 1 });
    assert!(lengths.eq(expected), "{} bytes", found.len());
}

/// Arguments, and a query.
fn with<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &["-c", "SELECT 1 AS n"]].concat()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn served_by(server: &Identity) -> [&str; 4] {
    let Identity { certificate, key, .. } = server;
    ["--flight-tls-cert", text(certificate), "--flight-tls-key", text(key)]
}

#[test]
fn secrets_are_encrypted_and_the_server_is_who_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(&folder.path().join("ours"));
    let other = Authority::new(&folder.path().join("other"));
    let own = authority.issue("server", &["127.0.0.1"]);
    let users = folder.path().join("users.toml");
    let mut adding = Command::new(FOREBAY)
        .args(["user", "add", "ada", "--role", "admin", "--users", text(&users)])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut adding.stdin.take().unwrap(), b"secret of ada\n").unwrap();
    assert!(adding.wait().unwrap().success());
    let arguments = [&served_by(&own)[..], &["--users", text(&users)]].concat();
    let server = Server::start(folder.path(), &arguments);
    let ca = ["--server-ca", text(&own.authority)];
    let found = server.shell("grpc+tls", &with(&[&ca[..], &["--user", "ada"]].concat()));
    assert_eq!(printed(found), "n\n1\n");
    let stranger = server.shell("grpc+tls", &with(&ca));
    assert!(refused(stranger).contains("who you are"));
    let wrong = server.shell("grpc+tls", &with(&[&ca[..], &["--user", "eve"]].concat()));
    assert!(refused(wrong).contains("the user or the password is wrong"));
    let unknown = other.issue("x", &["127.0.0.1"]);
    let unknown = ["--server-ca", text(&unknown.authority)];
    let said = refused(server.shell("grpc+tls", &with(&unknown)));
    assert!(said.contains("no Flight SQL server at grpc+tls://"), "{said}");
    let said = refused(server.shell("grpc+tls", &with(&[])));
    assert!(said.contains("needs --server-ca"), "{said}");
    let said = refused(server.shell("grpc", &with(&["--user", "ada"])));
    assert!(said.contains("grpc://"), "{said}");
}

#[test]
fn clients_need_a_certificate_where_one_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(&folder.path().join("ours"));
    let other = Authority::new(&folder.path().join("other"));
    let own = authority.issue("server", &["127.0.0.1"]);
    let client = authority.issue("client", &["127.0.0.1"]);
    let stranger = other.issue("stranger", &["127.0.0.1"]).believing(&client);
    let demands = ["--flight-tls-client-ca", text(&own.authority)];
    let server = Server::start(folder.path(), &[&served_by(&own)[..], &demands].concat());
    assert_eq!(printed(server.shell("grpc+tls", &with(&client.arguments()))), "n\n1\n");
    refused(server.shell("grpc+tls", &with(&stranger.arguments())));
    refused(server.shell("grpc+tls", &with(&["--server-ca", text(&own.authority)])));
}
