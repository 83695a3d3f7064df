//! What one client may say to end the server for all: it is refused, and another's query runs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{FlightDescriptor, Ticket};
use datafusion::common::runtime::SpawnedTask;
use forebay::flight::{Role, Users};
use futures::TryStreamExt;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// A server of its own that has so much address space, until it is dropped.
struct Server {
    process: Child,
    address: String,
    token: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let users = folder.join("users.toml");
        let mut all = Users::default();
        let token = all.set_token("reader", Role::Read).unwrap();
        all.save(&users).unwrap();
        let mut process = Command::new("bash")
            .args(["-c", "ulimit -v 8000000 -c 0; exec \"$@\"", "serve"])
            .arg(env!("CARGO_BIN_EXE_forebay"))
            .args(["--catalog", folder.join("catalog").to_str().unwrap()])
            .args(["serve", "--embedded", "--memory-limit", "1GB", "--cpus", "2"])
            .args(["--flight-sql", "127.0.0.1:0", "--users", users.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("Arrow Flight SQL on ")).unwrap();
        let address = line.rsplit(' ').next().unwrap().to_owned();
        Self { process, address, token }
    }

    async fn client(&self) -> Client {
        let endpoint = Endpoint::try_from(format!("http://{}", self.address)).unwrap();
        let client = FlightServiceClient::new(endpoint.connect().await.unwrap());
        Client { client, token: format!("Bearer {}", self.token) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A connection, and so a session.
struct Client {
    client: FlightServiceClient<Channel>,
    token: String,
}

impl Client {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.parse().unwrap());
        request
    }

    /// Runs a statement; gives back the number of messages that its rows are.
    async fn run(&mut self, query: &str) -> Result<usize, Status> {
        let command = CommandStatementQuery { query: query.to_owned(), transaction_id: None };
        let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        let info = self.client.get_flight_info(self.request(descriptor)).await?.into_inner();
        let ticket: Ticket = info.endpoint[0].ticket.clone().unwrap();
        let rows = self.client.do_get(self.request(ticket)).await?.into_inner();
        Ok(rows.try_collect::<Vec<_>>().await?.len())
    }
}

/// Statements, and what is said of each.
fn statements() -> Vec<(String, &'static str)> {
    let many = |first: &str, next: &str, times: usize| format!("{first}{}", next.repeat(times));
    let fixed = [
        ("RESET datafusion.runtime.memory_limit", "not an option that clients"),
        ("SET datafusion.runtime.memory_limit = '9G'", "not an option that clients"),
        ("SET datafusion.sql_parser.recursion_limit = 100000000", "not an option that clients"),
        ("SET datafusion.optimizer.max_passes = 100000000", "not an option that clients"),
        ("SET datafusion.execution.batch_size = 1000000000", "from 1 to 65536"),
        ("SET datafusion.execution.batch_size = 9223372036854775807", "from 1 to 65536"),
        ("SET DataFusion.execution.target_partitions = 100000000", "from 1 to 256"),
        ("SELECT CAST(NULL AS FLOAT[2147483647])", "a vector of 2147483647 values"),
        (
            "SELECT approx_percentile_cont(column1, 0.5, 100000000000000) FROM (VALUES (1), (2))",
            "100000000000000 is more than 100000",
        ),
        ("SELECT lpad('x', 1000000000)", "lpad: 1000000000 is more than"),
        ("SELECT rpad('x', 1000000000)", "rpad: 1000000000 is more than"),
        ("SELECT repeat('x', 1000000000)", "repeat: 1000000000 is more than"),
        ("SELECT array_repeat(1, 1000000000)", "array_repeat: 1000000000 is more than"),
    ];
    let deep = [
        (many("SELECT 1", " UNION ALL SELECT 1", 2390), "more than 200 UNION"),
        (many("SELECT 1", " EXCEPT SELECT 1", 2390), "more than 200 UNION"),
        (many("SELECT 1 FROM t", " CROSS JOIN t", 2390), "more than 100 JOIN"),
        (many("SELECT 1", " + 1", 2600), "more than 500 operators"),
        (format!("{}SELECT 1", "EXPLAIN ".repeat(1288)), "more than 50 EXPLAIN"),
        (format!("SELECT {}'1'", "INTERVAL ".repeat(1500)), "more than 50 EXPLAIN"),
        (format!("SELECT {}1{}", "(".repeat(20_000), ")".repeat(20_000)), "nested too deeply"),
    ];
    fixed.into_iter().map(|(text, said)| (text.to_owned(), said)).chain(deep).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_of_a_reader_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let over = Arc::new(AtomicBool::new(false));
    let (mut beside, ended) = (server.client().await, Arc::clone(&over));
    let others = SpawnedTask::spawn(async move {
        let mut answers = 0;
        while !ended.load(Ordering::Relaxed) {
            beside.run("SELECT 1").await.unwrap();
            answers += 1;
        }
        answers
    });
    for (statement, said) in statements() {
        let short = &statement[..statement.len().min(60)];
        let answer = server.client().await.run(&statement).await;
        let error = answer.expect_err(short);
        assert!(error.message().contains(said), "{short}: {error}");
    }
    // What is within bounds is as it was, at the bounds too.
    let mut client = server.client().await;
    for statement in [
        "SET datafusion.execution.batch_size = 65536".to_owned(),
        "RESET datafusion.execution.batch_size".to_owned(),
        "SET forebay.byte_budget = '3MB'".to_owned(),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(200)),
        format!("SELECT 1{}", " + 1".repeat(499)),
    ] {
        client.run(&statement).await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    assert!(others.join().await.unwrap() > 0, "nobody else was answered");
}
