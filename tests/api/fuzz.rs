//! What comes from outside, damaged at random: texts of SQL, messages of Flight clients, and files of
//! images and audio. There is an error or a result, and no panic. `make fuzz` does this for a minute
//! each, and elsewhere with other seeds: `FOREBAY_FUZZ_SEED`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::{
    CommandGetSqlInfo, CommandGetTables, CommandPreparedStatementQuery, CommandStatementQuery,
    CommandStatementUpdate, ProstMessageExt,
};
use arrow_flight::{Action, FlightDescriptor, FlightInfo, Ticket};
use datafusion::common::runtime::SpawnedTask;
use forebay::flight::FlightServer;
use forebay::{Catalog, ForebayContext, Inventory};
use forebay_planner::sql::Statement;
use forebay_planner::sql::execute::plan;
use forebay_testkit::random::Random;
use futures::TryStreamExt;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::flight::hostile::refused;

/// Damages bytes, as a seed says.
struct Damage(Random);

impl Damage {
    /// A few changes: bytes flipped, cut off, left out, doubled, or taken from another one.
    fn of(&mut self, bytes: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.0.index(3) {
            let at = self.0.index(bytes.len() + 1);
            let end = (at + self.0.index(20)).min(bytes.len());
            match self.0.index(5) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.0.index(8),
                1 => bytes.truncate(at),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
                _ => {
                    let from = self.0.index(other.len() + 1);
                    let to = (from + self.0.index(30)).min(other.len());
                    bytes.splice(at..end, other[from..to].iter().copied());
                }
            }
        }
        bytes
    }
}

fn seed() -> u64 {
    std::env::var("FOREBAY_FUZZ_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// So many rounds in `make test`, the same ones each time however fast the machine is; or as many as
/// `FOREBAY_FUZZ_SECONDS` hold.
fn rounds(in_tests: usize) -> impl Iterator<Item = usize> {
    let seconds = std::env::var("FOREBAY_FUZZ_SECONDS").ok();
    let time = seconds.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let began = Instant::now();
    (0..).take_while(move |round| time.map_or(*round < in_tests, |time| began.elapsed() < time))
}

/// All statements of the SQL tests.
fn statements(folder: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            statements(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            let text = fs::read_to_string(&path).unwrap();
            let records = text.split("\n\n").filter_map(|record| record.split_once('\n'));
            let sql = records.map(|(_, sql)| sql.split("\n----").next().unwrap_or(sql));
            found.extend(sql.map(str::to_owned));
        }
    }
}

async fn context() -> ForebayContext {
    let context = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_emulated(1, 1 << 30))
        .without_url_tables()
        .build()
        .unwrap();
    for model in ["echo", "sentiment"] {
        context.register_model(model, &format!("tests/models/{model}")).await.unwrap();
    }
    let table = "CREATE TABLE t AS SELECT column1 AS id, column2 AS text FROM (VALUES (1, 'a'))";
    context.sql(table).await.unwrap().collect().await.unwrap();
    context
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_sql_is_an_error_or_a_plan() {
    let mut texts = vec![];
    statements(Path::new("tests/sql"), &mut texts);
    assert!(texts.len() > 300, "{} statements", texts.len());
    let context = context().await;
    let mut damage = Damage(Random::new(seed()));
    let mut planned = 0;
    for _ in rounds(400) {
        let (at, other) = (damage.0.index(texts.len()), damage.0.index(texts.len()));
        let bytes = damage.of(texts[at].as_bytes(), texts[other].as_bytes());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Ok(statements) = context.parse(&text) else { continue };
        for statement in statements {
            let Statement::Sql(sql) = statement else { continue };
            let session = context.session().clone();
            // A panic names the text.
            let task = SpawnedTask::spawn(async move {
                let plan = plan(&session, *sql).await?;
                session.state().optimize(&plan)
            });
            let result = task.join().await.unwrap_or_else(|panic| panic!("{panic}: {text:?}"));
            planned += usize::from(result.is_ok());
        }
    }
    assert!(planned > 0, "nothing was left to plan");
}

/// Commands of all kinds, whole; the last of them are what other tests find refused.
fn commands() -> Vec<Vec<u8>> {
    let query = |query: &str| {
        let command = CommandStatementQuery { query: query.to_owned(), transaction_id: None };
        command.as_any().encode_to_vec()
    };
    let update = CommandStatementUpdate { query: "SELECT 1".to_owned(), transaction_id: None };
    let prepared = CommandPreparedStatementQuery { prepared_statement_handle: vec![7; 16].into() };
    let mut all = vec![
        query("SELECT id, digest FROM ml_predict(TABLE t, MODEL echo, DESCRIPTOR(id))"),
        query("SELECT text FROM t WHERE id = $1"),
        update.as_any().encode_to_vec(),
        prepared.as_any().encode_to_vec(),
        CommandGetTables { include_schema: true, ..Default::default() }.as_any().encode_to_vec(),
        CommandGetSqlInfo { info: vec![1, 2, 500] }.as_any().encode_to_vec(),
    ];
    all.extend(refused().iter().map(|(statement, _)| query(statement)));
    all
}

const STREAM: &str = r#"{"name": "a", "query": "SELECT id FROM t", "mode": "coordinated", "readers": 1,
                         "reader": 0, "batch_rows": 8, "length": "id", "shuffle": 7}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_messages_of_clients_are_errors() {
    let server = FlightServer::new(context().await).bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let endpoint = Endpoint::try_from(format!("http://{}", server.address())).unwrap();
    let mut client = FlightServiceClient::new(endpoint.connect().await.unwrap());
    let mut damage = Damage(Random::new(seed()));
    let commands = commands();
    let whole = FlightDescriptor::new_cmd(commands[0].clone());
    let good = client.get_flight_info(whole).await.unwrap().into_inner();
    let good = good.endpoint[0].ticket.clone().unwrap().ticket;
    let is_there = |status: tonic::Status, what: &[u8]| {
        let code = status.code();
        assert!(!matches!(code, Code::Unavailable | Code::Unknown), "{status}: {what:?}");
    };
    for _ in rounds(300) {
        let (at, other) = (damage.0.index(commands.len()), damage.0.index(commands.len()));
        let bytes = damage.of(&commands[at], &commands[other]);
        let descriptor = FlightDescriptor::new_cmd(bytes.clone());
        match damage.0.index(5) {
            0 => match client.get_flight_info(descriptor).await {
                Ok(info) => first_rows(&mut client, info.into_inner()).await,
                Err(status) => Err(status),
            },
            1 => client.poll_flight_info(descriptor).await.map(drop),
            2 => client.get_schema(descriptor).await.map(drop),
            3 => {
                let kinds = ["CreatePreparedStatement", "CancelFlightInfo", "SetSessionOptions"];
                let action = Action::new(kinds[damage.0.index(kinds.len())], bytes.clone());
                client.do_action(action).await.map(drop)
            }
            _ => {
                let text = damage.of(STREAM.as_bytes(), STREAM.as_bytes());
                let text = String::from_utf8_lossy(&text).into_owned();
                let path = vec!["forebay.stream".to_owned(), text];
                client.get_flight_info(FlightDescriptor::new_path(path)).await.map(drop)
            }
        }
        .unwrap_or_else(|status| is_there(status, &bytes));
        // A ticket that differs from the one that was given is none.
        let forged = damage.of(&good, &commands[other]);
        let answer = client.do_get(Ticket::new(forged.clone())).await;
        match answer {
            Ok(rows) => drop(rows.into_inner().try_collect::<Vec<_>>().await),
            Err(status) => is_there(status, &forged),
        }
    }
    let whole = client.get_flight_info(FlightDescriptor::new_cmd(commands[0].clone())).await;
    let ticket = whole.unwrap().into_inner().endpoint[0].ticket.clone().unwrap();
    let rows = client.do_get(ticket).await.unwrap().into_inner();
    assert!(!rows.try_collect::<Vec<_>>().await.unwrap().is_empty(), "the server is as it was");
}

/// Runs a query as far as its first message: damage may have left it within bounds, and long.
async fn first_rows(
    client: &mut FlightServiceClient<Channel>,
    info: FlightInfo,
) -> Result<(), Status> {
    let Some(ticket) = info.endpoint.into_iter().find_map(|endpoint| endpoint.ticket) else {
        return Ok(());
    };
    let rows = async { client.do_get(ticket).await?.into_inner().message().await };
    let first = tokio::time::timeout(Duration::from_secs(1), rows).await;
    first.map_or(Ok(()), |message| message.map(drop))
}

/// A WAV of one channel with 16 bits per sample.
fn wav(samples: u32) -> Vec<u8> {
    let mut file = b"RIFF".to_vec();
    file.extend((36 + 2 * samples).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(8_000u32.to_le_bytes());
    file.extend(16_000u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((2 * samples).to_le_bytes());
    file.extend((0..samples).flat_map(|at| (at as i16).wrapping_mul(999).to_le_bytes()));
    file
}

/// An MP3 of silence: 128 kbit/s at 44100 Hz, one channel.
fn mp3(frames: usize) -> Vec<u8> {
    let mut frame = vec![0xff, 0xfb, 0x90, 0xc0];
    frame.resize(417, 0);
    frame.repeat(frames)
}

/// A header of a FLAC, and a frame that begins and does not go on.
fn flac() -> Vec<u8> {
    let mut file = b"fLaC\x80\x00\x00\x22\0\x10\0\x10\0\0\0\0\0\0".to_vec();
    // 16000 Hz (20 bits), 1 channel (3), 16 bits (5), 16 samples (36); no checksum of them.
    file.extend(((16_000u64 << 44) | (15 << 36) | 16).to_be_bytes());
    file.extend([0; 16]);
    file.extend([0xff, 0xf8, 0x60, 0x08, 0x00, 15, 0xac, 0x02]);
    file.extend([7; 34]);
    file
}

/// Small enough that many are tried.
const FILE_BYTES_MAX: u64 = 64 << 10;

fn media() -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = ["good", "bad"]
        .map(|folder| fs::read_dir(format!(".forebay/images/{folder}")).unwrap())
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| fs::metadata(path).unwrap().len() <= FILE_BYTES_MAX)
        .collect();
    paths.sort();
    assert!(paths.len() > 20, "{} images", paths.len());
    let images = paths.into_iter().map(|path| fs::read(path).unwrap());
    images.chain([wav(200), mp3(4), flac()]).collect()
}

const DECODED: &str = "SELECT id, try_image_decode(bytes) AS decoded, \
    try_image_preprocess(bytes, 32, 24) AS pixels, try_image_info(bytes) AS info, \
    try_audio_decode(bytes, 16000) AS audio FROM damaged";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_of_images_and_audio_are_null_or_decoded() {
    const ROWS: usize = 16;
    let context = context().await;
    let files = media();
    let mut damage = Damage(Random::new(seed()));
    let mut decoded = [0; 4];
    for _ in rounds(60) {
        let rows = (0..ROWS).map(|_| {
            let (at, other) = (damage.0.index(files.len()), damage.0.index(files.len()));
            damage.of(&files[at], &files[other])
        });
        let rows: Vec<Vec<u8>> = rows.collect();
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(&rows));
        let batch = RecordBatch::try_from_iter([("id", ids), ("bytes", bytes)]).unwrap();
        context.session().deregister_table("damaged").unwrap();
        context.session().register_batch("damaged", batch).unwrap();
        let query = async { context.sql(DECODED).await?.collect().await };
        // Whatever a file says of itself, it does not take long.
        let result = tokio::time::timeout(Duration::from_secs(60), query).await;
        let batches = result.unwrap_or_else(|_| panic!("{}", kept(&rows)));
        let batches = batches.unwrap_or_else(|error| panic!("{error}: {}", kept(&rows)));
        let found: usize = batches.iter().map(RecordBatch::num_rows).sum();
        assert_eq!(found, ROWS, "{}", kept(&rows));
        for batch in batches {
            for (at, count) in decoded.iter_mut().enumerate() {
                let column = batch.column(at + 1);
                *count += column.len() - column.null_count();
            }
        }
    }
    assert!(decoded.iter().all(|count| *count > 0), "nothing was left to decode: {decoded:?}");
}

/// Where the files of a failure are to be looked at.
fn kept(rows: &[Vec<u8>]) -> String {
    let folder = tempfile::tempdir().unwrap().keep();
    for (at, bytes) in rows.iter().enumerate() {
        fs::write(folder.join(at.to_string()), bytes).unwrap();
    }
    format!("the files are in {}", folder.display())
}
