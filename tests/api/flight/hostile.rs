//! What one client may say to end or block the server for all: it is refused, or takes a while, and
//! another's query is answered meanwhile.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, NullArray, RecordBatch, StringArray};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any,
    CommandPreparedStatementQuery, CommandStatementQuery, ProstMessageExt,
};
use arrow_flight::{Action, FlightData, FlightDescriptor, Ticket};
use forebay::flight::{Role, Users};
use futures::future::{Either, join_all, select};
use futures::{TryStreamExt, stream};
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// A server of its own that has so much address space, until it is dropped.
struct Server {
    process: Child,
    address: String,
    hostile: String,
    other: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let users = folder.join("users.toml");
        let mut all = Users::default();
        let hostile = all.set_token("hostile", Role::Read).unwrap();
        let other = all.set_token("other", Role::Read).unwrap();
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
        Self { process, address, hostile, other }
    }

    async fn client(&self, token: &str) -> Client {
        let endpoint = Endpoint::try_from(format!("http://{}", self.address)).unwrap();
        let client = FlightServiceClient::new(endpoint.connect().await.unwrap());
        Client { client, token: format!("Bearer {token}") }
    }

    async fn hostile(&self) -> Client {
        self.client(&self.hostile).await
    }

    /// What a hostile client's work gives, and how often another client was answered while that was
    /// done. It is always answered, and not after the other one.
    async fn beside<T>(&self, what: &str, work: impl Future<Output = T>) -> (T, usize) {
        let mut other = self.client(&self.other).await;
        let (mut work, mut answers) = (pin!(work), 0);
        loop {
            let query = pin!(tokio::time::timeout(ANSWER_LIMIT, other.run("SELECT 1")));
            let (given, query) = match select(work.as_mut(), query).await {
                Either::Left((given, query)) => (Some(given), query.await),
                Either::Right((answer, _)) => (None, answer),
            };
            let answer = query.unwrap_or_else(|_| panic!("nobody else is answered beside {what}"));
            answer.unwrap_or_else(|error| panic!("beside {what}: {error}"));
            match given {
                Some(given) => return (given, answers),
                None => answers += 1,
            }
        }
    }
}

/// Far more than an answer takes on a busy machine, and less than what once blocked others.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

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

/// A statement's first words.
fn short(statement: &str) -> &str {
    &statement[..statement.len().min(60)]
}

/// Statements, and what is said of each.
#[allow(clippy::too_many_lines, reason = "a table of cases")]
pub(crate) fn refused() -> Vec<(String, &'static str)> {
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
            "SELECT arrow_cast(NULL, 'FixedSizeList(2147483647, Float32)')",
            "a vector of 2147483647 values",
        ),
        (
            "SELECT approx_percentile_cont(column1, 0.5, 100000000000000) FROM (VALUES (1), (2))",
            "100000000000000 is more than 100000",
        ),
        (
            "SELECT approx_percentile_cont(column1, 0.5, 10000000 * 10000000) FROM (VALUES (1), (2))",
            "100000000000000 is more than 100000",
        ),
        ("SELECT lpad('x', 1000000000)", "lpad would make more than"),
        ("SELECT lpad('x', 1000000000::bigint)", "lpad would make more than"),
        ("SELECT lpad('x', '1000000000'::int)", "lpad would make more than"),
        ("SELECT rpad('x', n) FROM (VALUES (1000000000)) AS t(n)", "rpad would make more than"),
        ("SELECT repeat('x', 1000000000)", "repeat would make more than"),
        ("SELECT repeat(repeat('x', 1000000), 1000000)", "repeat would make more than"),
        (
            "WITH t AS (SELECT repeat('x', 1000000) AS c) SELECT replace(c, 'x', c) FROM t",
            "replace would make more than",
        ),
        (
            "SELECT concat_ws(repeat('x', 60000000), 'a', 'b', 'c', 'd', 'e', 'f')",
            "concat_ws would make more than",
        ),
        ("SELECT array_repeat(1, 1000000000)", "array_repeat would make more than"),
        (
            "SELECT range(TIMESTAMP '1900-01-01', TIMESTAMP '2100-01-01', INTERVAL '1 microsecond')",
            "range would make more than",
        ),
        (
            "EXPLAIN ANALYZE SELECT length(array_to_string(range(1000000), repeat('x', 1000000)))",
            "array_to_string would make more than",
        ),
    ];
    let doubled = (1..40).map(|at| format!("t{at} AS (SELECT c || c AS c FROM t{})", at - 1));
    let doubled = doubled.collect::<Vec<_>>().join(", ");
    let unions = (1..40)
        .map(|at| format!("t{at} AS (SELECT * FROM t{0} UNION ALL SELECT * FROM t{0})", at - 1));
    let unions = unions.collect::<Vec<_>>().join(", ");
    let sums = (0..450).map(|at| format!("{} AS c{at}", many("1", " + 1", 49)));
    let deep = [
        (
            format!(
                "WITH t0 AS (SELECT repeat('x', 1000) AS c), {doubled} SELECT length(c) FROM t39"
            ),
            "|| would make more than",
        ),
        (
            format!("WITH t0 AS (SELECT 1), {unions} SELECT * FROM t39"),
            "more than 20000 tables, those of WITH",
        ),
        (format!("SELECT {}", sums.collect::<Vec<_>>().join(", ")), "more than 20000 operators"),
        (format!("SELECT {}1", "1,".repeat(300_000)), "more than 500000 words"),
        (format!("SELECT '{}'", "x".repeat(5 << 20)), "more than 4194304 bytes"),
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
    for (statement, said) in refused() {
        let what = short(&statement);
        let mut client = server.hostile().await;
        let (answer, _) = server.beside(what, client.run(&statement)).await;
        let error = answer.expect_err(what);
        assert!(error.message().contains(said), "{what}: {error}");
    }
    // What is within bounds is as it was.
    let mut client = server.hostile().await;
    for statement in [
        "SET datafusion.execution.batch_size = 65536".to_owned(),
        "RESET datafusion.execution.batch_size".to_owned(),
        "SET forebay.byte_budget = '3MB'".to_owned(),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(200)),
        format!("SELECT 1{}", " + 1".repeat(200)),
        "SELECT length(repeat('x', 200000000)), length(lpad('x', 60000000, 'ä'))".to_owned(),
        "PREPARE p AS SELECT repeat('x', 1000000000)".to_owned(),
    ] {
        client
            .run(&statement)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", short(&statement)));
    }
    let error = client.run("EXECUTE p").await.unwrap_err();
    assert!(error.message().contains("repeat would make more than"), "{error}");
}

/// Statements within the bounds that take long to plan, more of them than there are cores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planning_of_one_client_blocks_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let sum = |name: usize| format!("column1{} AS c{name}", " + column1".repeat(450));
    let sums: Vec<_> = (0..20).map(sum).collect();
    let statement = format!("SELECT {} FROM (VALUES (1), (2))", sums.join(", "));
    let mut clients = vec![];
    for _ in 0..6 {
        clients.push(server.hostile().await);
    }
    let planned = join_all(clients.iter_mut().map(|client| client.run(&statement)));
    let (given, answers) = server.beside(short(&statement), planned).await;
    for rows in given {
        // Several are planned at a time; the last may have waited too long for its turn.
        let waited = |error: &Status| error.message().contains("was not planned");
        assert!(
            rows.as_ref().is_ok_and(|rows| *rows > 0) || rows.as_ref().is_err_and(waited),
            "{rows:?}"
        );
    }
    assert!(answers >= 3, "another client was answered {answers} times meanwhile");
}

/// One batch takes minutes on any machine, and cannot be interrupted.
const SLOW: &str = "SELECT sum(levenshtein(repeat('a', 3000 + value % 7), repeat('b', 3000 + value % 5))) \
                    FROM generate_series(1, 100000)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_of_one_client_that_computes_for_minutes_blocks_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let mut clients = vec![];
    // More than there are threads.
    for _ in 0..4 {
        clients.push(server.hostile().await);
    }
    let run = |client| tokio::time::timeout(Duration::from_secs(5), Client::run(client, SLOW));
    let (given, answers) = server.beside(SLOW, join_all(clients.iter_mut().map(run))).await;
    assert!(given.iter().all(Result::is_err), "there are rows already: {given:?}");
    assert!(answers >= 3, "another client was answered {answers} times meanwhile");
    // Those who asked have gone, what they asked for still computes.
    let ((), answers) = server.beside(SLOW, tokio::time::sleep(Duration::from_secs(2))).await;
    assert!(answers >= 1, "another client was not answered when they had gone");
}

/// What is bound to a statement's parameter, as it is sent.
async fn bind(client: &mut Client, values: ArrayRef, damage: impl Fn(&mut FlightData)) -> Status {
    let request =
        ActionCreatePreparedStatementRequest { query: "SELECT ?".to_owned(), transaction_id: None };
    let action = Action::new("CreatePreparedStatement", request.as_any().encode_to_vec());
    let mut made = client.client.do_action(client.request(action)).await.unwrap().into_inner();
    let made = Any::decode(&*made.message().await.unwrap().unwrap().body).unwrap();
    let made = made.unpack::<ActionCreatePreparedStatementResult>().unwrap().unwrap();
    let command =
        CommandPreparedStatementQuery { prepared_statement_handle: made.prepared_statement_handle };
    let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let batch = RecordBatch::try_from_iter([("1", values)]).unwrap();
    let options =
        IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let data = FlightDataEncoderBuilder::new()
        .with_options(options)
        .with_flight_descriptor(Some(descriptor))
        .build(stream::iter([Ok(batch)]));
    let mut data: Vec<FlightData> = data.try_collect().await.unwrap();
    data.iter_mut().for_each(damage);
    let answer = client.client.do_put(client.request(stream::iter(data))).await;
    match answer {
        Ok(answer) => answer.into_inner().try_collect::<Vec<_>>().await.unwrap_err(),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_of_a_reader_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(10_000)]));
    for (claimed, said) in [
        (1 << 45, "claim 35184372088832 bytes"),
        (i64::MAX, "claim 9223372036854775807 bytes"),
        (i64::MIN, "claims -9223372036854775808 bytes"),
    ] {
        // The offsets are the first buffer of the body, and the text behind it.
        let claim = |data: &mut FlightData| {
            let mut body = data.data_body.to_vec();
            if let Some(first) = body.first_chunk_mut() {
                *first = i64::to_le_bytes(claimed);
            }
            data.data_body = body.into();
        };
        let mut client = server.hostile().await;
        let (error, _) = server.beside(said, bind(&mut client, Arc::clone(&text), claim)).await;
        assert!(error.message().contains(said), "{error}");
    }
    let cut =
        |data: &mut FlightData| data.data_body = data.data_body.slice(..data.data_body.len() / 2);
    let mut client = server.hostile().await;
    let (error, _) = server.beside("a cut body", bind(&mut client, text, cut)).await;
    assert!(error.message().contains("outside of its message's body"), "{error}");
    let nulls: ArrayRef = Arc::new(NullArray::new(100_000_000));
    let (error, _) = server.beside("nulls", bind(&mut client, nulls, |_| ())).await;
    assert!(error.message().contains("100000000 values are bound"), "{error}");
}
