//! What the door for Arrow Flight SQL costs and stands.
//!
//! - throughput: a result of 1 GB, against a server of arrow-flight that has the rows ready and does
//!   nothing else
//! - load: 64 clients for a minute: metadata, predictions for one row, and one that reads all of a
//!   large table; how long predictions take, and what the server's memory does. The first error ends it
//! - shuffle: a stream of 8 million rows in Parquet files, of which all are shuffled together, or in windows; when the
//!   first batch comes, and the last one. And the same to four readers, beside shuffling all into files that they read then
//!
//! `cargo bench --bench flight`, or one of them: `cargo bench --bench flight -- load`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot run should say why at once, and prints its result"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandGetTables, CommandStatementQuery, ProstMessageExt};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightClient, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use forebay::flight::FlightServer;
use forebay::{Catalog, ForebayContext};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH_ROWS: usize = 8192;
const VALUES: usize = 32;
const ROUNDS: usize = 7;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    runtime.block_on(async {
        if is_asked("throughput") {
            throughput().await;
        }
        if is_asked("load") {
            load().await;
        }
        if is_asked("shuffle") {
            shuffle().await;
        }
    });
}

/// `(id BIGINT, vector FLOAT[32])`.
fn batch(first: i64) -> RecordBatch {
    let ids = Int64Array::from_iter_values(first..first + BATCH_ROWS as i64);
    let values = (0..BATCH_ROWS * VALUES).map(|at| (at as f32).sqrt());
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let vectors = Float32Array::from_iter_values(values);
    let vectors = FixedSizeListArray::new(item, VALUES as i32, Arc::new(vectors), None);
    let columns = [("id", Arc::new(ids) as ArrayRef), ("vector", Arc::new(vectors) as _)];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Both servers in this process, so that the machine does the same beside them; in turn.
async fn throughput() {
    const BATCHES: usize = 898;
    let batches: Vec<_> = (0..BATCHES).map(|at| batch((at * BATCH_ROWS) as i64)).collect();
    let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
    let schema = batches[0].schema();
    let context = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .without_url_tables()
        .build()
        .unwrap();
    let table = MemTable::try_new(schema, vec![batches.clone()]).unwrap();
    context.session().register_table("t", Arc::new(table)).unwrap();
    let ours = FlightServer::new(context).bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let bare = TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap().with_nodelay(Some(true));
    let bare_address = bare.local_addr().unwrap();
    let service = FlightServiceServer::new(Bare { batches }).max_encoding_message_size(usize::MAX);
    let serving =
        SpawnedTask::spawn(Server::builder().add_service(service).serve_with_incoming(bare));
    let mut seconds = [vec![], vec![]];
    for _ in 0..ROUNDS {
        for (at, address) in [ours.address(), bare_address].into_iter().enumerate() {
            let start = Instant::now();
            let rows = read(&address.to_string(), "SELECT * FROM t").await;
            assert_eq!(rows, BATCHES * BATCH_ROWS);
            seconds[at].push(start.elapsed().as_secs_f64());
        }
    }
    drop(serving);
    let [ours, bare] = seconds.map(|seconds| median(&seconds));
    println!(
        "{{\"name\": \"flight, throughput\", \"megabytes\": {}, \"seconds\": {ours:.3}, \
         \"seconds_bare_arrow_flight\": {bare:.3}, \"ratio\": {:.3}}}",
        bytes / 1_000_000,
        bare / ours
    );
}

async fn channel(address: &str) -> Channel {
    let endpoint = Endpoint::try_from(format!("http://{address}")).unwrap();
    endpoint.tcp_nodelay(true).connect().await.unwrap()
}

fn statement(query: &str) -> FlightDescriptor {
    let command = CommandStatementQuery { query: query.to_owned(), transaction_id: None };
    FlightDescriptor::new_cmd(command.as_any().encode_to_vec())
}

/// The rows of a query.
async fn read(address: &str, query: &str) -> usize {
    let inner =
        arrow_flight::flight_service_client::FlightServiceClient::new(channel(address).await)
            .max_decoding_message_size(usize::MAX);
    let mut client = FlightClient::new_from_inner(inner);
    let flight = client.get_flight_info(statement(query)).await.unwrap();
    let ticket = flight.endpoint[0].ticket.clone().unwrap();
    let rows = client.do_get(ticket).await.unwrap();
    rows.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) }).await.unwrap()
}

/// A server that has rows, and gives them to everyone.
struct Bare {
    batches: Vec<RecordBatch>,
}

type Answer<T> = Result<Response<T>, Status>;

fn unused<T>() -> Answer<T> {
    Err(Status::unimplemented("not needed here"))
}

#[tonic::async_trait]
impl FlightService for Bare {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        let endpoint = arrow_flight::FlightEndpoint::new().with_ticket(Ticket::new("rows"));
        let info = FlightInfo::new().with_endpoint(endpoint);
        Ok(Response::new(info.with_descriptor(request.into_inner())))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Answer<Self::DoGetStream> {
        let rows = stream::iter(self.batches.clone()).map(Ok::<_, FlightError>);
        let encoded = FlightDataEncoderBuilder::new().build(rows);
        Ok(Response::new(encoded.map_err(Status::from).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        unused()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        unused()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<PollInfo> {
        unused()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        unused()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        unused()
    }

    async fn do_action(&self, _: Request<Action>) -> Answer<Self::DoActionStream> {
        unused()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        unused()
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        unused()
    }
}

/// A `forebay serve` of its own, whose memory can be looked at.
struct Served {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = std::path::absolute("tests/models/echo").unwrap();
        let init = folder.path().join("init.sql");
        let model = format!("CREATE MODEL echo LOCATION '{}';", model.display());
        std::fs::write(&init, model).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["--catalog", folder.path().join("catalog").to_str().unwrap()])
            .args(["serve", "--embedded", "--flight-sql", "127.0.0.1:0"])
            .args(["--init", init.to_str().unwrap(), "--emulated-accelerators", "1"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.map_while(Result::ok).find(|line| line.contains(" on ")).unwrap();
        let address = line.rsplit(' ').next().unwrap().to_owned();
        Self { process, address, _folder: folder }
    }

    /// MB that it has in memory.
    fn memory_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1000
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Counts of what clients got.
#[derive(Default)]
struct Counts {
    predictions: AtomicU64,
    listings: AtomicU64,
    rows: AtomicU64,
}

async fn load() {
    const CLIENTS: usize = 64;
    const SECONDS: u64 = 60;
    let server = Served::start();
    let counts = Arc::new(Counts::default());
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut clients = vec![];
    for client in 0..CLIENTS {
        let (address, counts) = (server.address.clone(), Arc::clone(&counts));
        clients.push(SpawnedTask::spawn(async move {
            match client {
                0 => scan(&address, &counts, end).await,
                client if client % 4 == 1 => list(&address, &counts, end).await,
                client => return predict(&address, client, &counts, end).await,
            }
            vec![]
        }));
    }
    // What it takes at first, when everyone has come.
    tokio::time::sleep(Duration::from_secs(SECONDS / 6)).await;
    let early = server.memory_mb();
    let mut times = vec![];
    for client in clients {
        times.extend(client.join().await.unwrap());
    }
    let late = server.memory_mb();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(times.len() as f64 * share) as usize] * 1000.0;
    println!(
        "{{\"name\": \"flight, load\", \"clients\": {CLIENTS}, \"seconds\": {SECONDS}, \
         \"predictions\": {}, \"listings\": {}, \"rows_scanned\": {}, \"prediction_ms_p50\": \
         {:.1}, \"prediction_ms_p99\": {:.1}, \"memory_mb_after_10_s\": {early}, \
         \"memory_mb_at_the_end\": {late}}}",
        counts.predictions.load(Ordering::Relaxed),
        counts.listings.load(Ordering::Relaxed),
        counts.rows.load(Ordering::Relaxed),
        at(0.5),
        at(0.99),
    );
}

/// A large result, over and over.
async fn scan(address: &str, counts: &Counts, end: Instant) {
    const QUERY: &str = "SELECT value, repeat('x', 100) AS text FROM range(0, 1000000)";
    while Instant::now() < end {
        let rows = read(address, QUERY).await;
        assert_eq!(rows, 1_000_000);
        counts.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }
}

async fn list(address: &str, counts: &Counts, end: Instant) {
    let mut client = FlightSqlServiceClient::new(channel(address).await);
    while Instant::now() < end {
        let flight = client.get_tables(CommandGetTables::default()).await.unwrap();
        let ticket = flight.endpoint[0].ticket.clone().unwrap();
        let rows: Vec<RecordBatch> =
            client.do_get(ticket).await.unwrap().try_collect().await.unwrap();
        assert!(rows[0].num_rows() > 0);
        counts.listings.fetch_add(1, Ordering::Relaxed);
    }
}

/// Seconds that each prediction took, from the question to the row.
async fn predict(address: &str, client: usize, counts: &Counts, end: Instant) -> Vec<f64> {
    let query =
        format!("SELECT digest FROM ml_predict((SELECT {client} AS n), MODEL echo, DESCRIPTOR(n))");
    let mut flight = FlightClient::new(channel(address).await);
    let mut times = vec![];
    while Instant::now() < end {
        let start = Instant::now();
        let info = flight.get_flight_info(statement(&query)).await.unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let rows: Vec<_> = flight.do_get(ticket).await.unwrap().try_collect().await.unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        times.push(start.elapsed().as_secs_f64());
        counts.predictions.fetch_add(1, Ordering::Relaxed);
        // People and dashboards think between questions.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    times
}

async fn shuffle() {
    const ROWS: usize = 8_000_000;
    let folder = tempfile::tempdir().unwrap();
    let context = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .without_url_tables()
        .build()
        .unwrap();
    let at = folder.path().display();
    for statement in [
        format!(
            "COPY (SELECT value AS id, md5(value::varchar) AS text FROM range(0, {ROWS})) TO '{at}/' \
             STORED AS PARQUET OPTIONS ('max_row_group_size' '100000')"
        ),
        format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{at}/'"),
    ] {
        context.sql(&statement).await.unwrap().collect().await.unwrap();
    }
    let server = FlightServer::new(context.clone()).bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = server.address().to_string();
    for round in 0..ROUNDS {
        for window in ["null", "\"16 MiB\"", "\"64 MiB\""] {
            let name = format!("{round} {}", window.trim_matches('"'));
            let definition = format!(
                "{{\"name\": \"{name}\", \"query\": \"SELECT * FROM t\", \"shuffle\": {round}, \
                 \"shuffle_window\": {window}}}"
            );
            let start = Instant::now();
            let (found, first) = read_stream(address.clone(), definition).await;
            assert_eq!(found, ROWS);
            println!(
                "{{\"name\": \"flight, shuffle\", \"window\": {window}, \"seconds_to_first_batch\": {:.3}, \
                 \"seconds\": {:.3}}}",
                first.duration_since(start).as_secs_f64(),
                start.elapsed().as_secs_f64()
            );
        }
        ingest(&context, &address, round, ROWS).await;
    }
}

/// Four readers of shuffled rows, from the same server: as they are shuffled in windows, and from files that were
/// shuffled as a whole before.
async fn ingest(context: &ForebayContext, address: &str, round: usize, rows: usize) {
    let streamed = {
        let definition = format!(
            "{{\"name\": \"ingest {round}\", \"query\": \"SELECT * FROM t\", \"readers\": 4, \
             \"shuffle\": {round}, \"shuffle_window\": \"16 MiB\"}}"
        );
        four_readers(address, &definition, Instant::now(), rows).await
    };
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let start = Instant::now();
    for statement in [
        format!(
            "COPY (SELECT * FROM t ORDER BY row_hash({round}, id)) TO '{at}/' STORED AS PARQUET"
        ),
        format!("CREATE OR REPLACE EXTERNAL TABLE shuffled STORED AS PARQUET LOCATION '{at}/'"),
    ] {
        context.sql(&statement).await.unwrap().collect().await.unwrap();
    }
    let definition = format!(
        "{{\"name\": \"materialised {round}\", \"query\": \"SELECT * FROM shuffled\", \"readers\": 4}}"
    );
    let materialised = four_readers(address, &definition, start, rows).await;
    println!(
        "{{\"name\": \"flight, shuffled ingest of four readers\", \"seconds_to_first_batch\": {:.3}, \
         \"seconds\": {:.3}, \"seconds_to_first_batch_materialised\": {:.3}, \"seconds_materialised\": {:.3}, \
         \"ratio\": {:.2}}}",
        streamed[0],
        streamed[1],
        materialised[0],
        materialised[1],
        materialised[1] / streamed[1]
    );
}

/// Seconds from the start to the first batch and to the last one, of all readers.
async fn four_readers(address: &str, definition: &str, start: Instant, rows: usize) -> [f64; 2] {
    let read = |_| SpawnedTask::spawn(read_stream(address.to_owned(), definition.to_owned()));
    let readers: Vec<_> = (0..4).map(read).collect();
    let (mut found, mut firsts) = (0, vec![]);
    for reader in readers {
        let (rows, first) = reader.join().await.unwrap();
        found += rows;
        firsts.push(first.duration_since(start).as_secs_f64());
    }
    assert_eq!(found, rows);
    [firsts.into_iter().fold(f64::INFINITY, f64::min), start.elapsed().as_secs_f64()]
}

/// Reads a stream to its end: its rows, and when the first of them came.
async fn read_stream(address: String, definition: String) -> (usize, Instant) {
    let mut client = FlightClient::new(channel(&address).await);
    let path = vec!["forebay.stream".to_owned(), definition];
    let flight = client.get_flight_info(FlightDescriptor::new_path(path)).await.unwrap();
    let mut rows = client.do_get(flight.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    let (mut found, mut first) = (0, None);
    while let Some(batch) = rows.try_next().await.unwrap() {
        first.get_or_insert_with(Instant::now);
        found += batch.num_rows();
    }
    (found, first.unwrap_or_else(Instant::now))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
