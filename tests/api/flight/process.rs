//! A `forebay serve` in a process of its own, and those who call it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use arrow::array::RecordBatch;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{Action, FlightData, FlightDescriptor, HandshakeRequest, Ticket};
use base64::prelude::{BASE64_STANDARD, Engine};
use futures::{Stream, TryStreamExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Rows of the table `t`.
pub(super) const ROWS: usize = 20_000;

/// A server, killed when it is dropped.
pub(super) struct Server {
    pub(super) process: Child,
    pub(super) address: String,
    log: PathBuf,
}

impl Server {
    /// `forebay serve` with these arguments. It has the numbers below [`ROWS`] in a table `t`, and a
    /// model `slow` that takes 100 ms for four of them.
    pub(super) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let package = folder.join("slow");
        fs::create_dir_all(&package).unwrap();
        let echo = fs::read_to_string("tests/models/echo/model.toml").unwrap();
        let slow = echo.replace("service_ms = 1", "service_ms = 100");
        fs::write(package.join("model.toml"), slow).unwrap();
        let numbers: String = (0..ROWS).map(|n| format!("{n}\n")).collect();
        fs::write(folder.join("t.csv"), format!("n\n{numbers}")).unwrap();
        let init = folder.join("init.sql");
        let folder_name = folder.display();
        let objects = format!(
            "CREATE OR REPLACE MODEL slow LOCATION '{folder_name}/slow'; \
             CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{folder_name}/t.csv'"
        );
        fs::write(&init, objects).unwrap();
        let log = folder.join("log");
        let mut process = Command::new(FOREBAY)
            .args(["--catalog", text(&folder.join("catalog"))])
            .args(["serve", "--cpus", "1", "--gpus", "none", "--emulated-accelerators", "1"])
            .args(["--flight-sql", "127.0.0.1:0", "--init", text(&init)])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("Arrow Flight SQL on ")).unwrap();
        let address = line.rsplit(' ').next().unwrap().to_owned();
        Self { process, address, log }
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
    }

    /// A connection that shows this with each call.
    pub(super) async fn client(&self, authorization: &str) -> Client {
        let endpoint = Endpoint::try_from(format!("http://{}", self.address)).unwrap();
        let client = FlightServiceClient::new(endpoint.connect().await.unwrap());
        Client { client, authorization: authorization.to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// `forebay user` with these arguments and a users file; gives back what it prints.
pub(super) fn user(arguments: &[&str], users: &Path, password: &str) -> String {
    let mut command = Command::new(FOREBAY)
        .arg("user")
        .args(arguments)
        .args(["--users", text(users)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    command.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes()).ok();
    let output = command.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What a user with a password shows.
pub(super) fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A connection, and so a session.
#[derive(Clone)]
pub(super) struct Client {
    client: FlightServiceClient<Channel>,
    authorization: String,
}

impl Client {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if !self.authorization.is_empty() {
            request.metadata_mut().insert("authorization", self.authorization.parse().unwrap());
        }
        request
    }

    /// The token that a handshake gives.
    pub(super) async fn greet(&mut self) -> Result<String, Status> {
        let hello = self.request(futures::stream::iter([HandshakeRequest::default()]));
        let answer = self.client.handshake(hello).await?;
        Ok(answer.metadata().get("authorization").unwrap().to_str().unwrap().to_owned())
    }

    /// A ticket for a query.
    pub(super) async fn ask(&mut self, query: &str) -> Result<Ticket, Status> {
        let command = CommandStatementQuery { query: query.to_owned(), transaction_id: None };
        let descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
        let info = self.client.get_flight_info(self.request(descriptor)).await?.into_inner();
        Ok(info.endpoint[0].ticket.clone().unwrap())
    }

    /// Begins to read.
    pub(super) async fn begin(&mut self, query: &str) -> Result<Streaming<FlightData>, Status> {
        let ticket = self.ask(query).await?;
        Ok(self.client.do_get(self.request(ticket)).await?.into_inner())
    }

    /// What an action without a body answers.
    pub(super) async fn act(&mut self, action: &str) -> Result<Vec<u8>, Status> {
        let action = Action { r#type: action.to_owned(), body: Default::default() };
        let answers = self.client.do_action(self.request(action)).await?.into_inner();
        let bodies: Vec<_> = answers.map_ok(|answer| answer.body.to_vec()).try_collect().await?;
        Ok(bodies.concat())
    }

    /// All rows of a query.
    pub(super) async fn run(&mut self, query: &str) -> Result<Vec<RecordBatch>, Status> {
        rest(self.begin(query).await?).await
    }
}

/// All rows of what is read.
pub(super) async fn rest(
    messages: impl Stream<Item = Result<FlightData, Status>> + Send + 'static,
) -> Result<Vec<RecordBatch>, Status> {
    let messages = messages.map_err(|status| FlightError::Tonic(Box::new(status)));
    let rows = FlightRecordBatchStream::new_from_flight_data(messages);
    rows.try_collect().await.map_err(|error| match error {
        FlightError::Tonic(status) => *status,
        other => panic!("{other}"),
    })
}

pub(super) fn count(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// Rows as text, one line each.
pub(super) fn lines(batches: &[RecordBatch]) -> String {
    let mut csv = arrow::csv::WriterBuilder::new().with_header(false).build(vec![]);
    batches.iter().for_each(|batch| csv.write(batch).unwrap());
    String::from_utf8(csv.into_inner()).unwrap()
}
