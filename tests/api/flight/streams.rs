//! Rows come while they are made, wait for slow clients, and end with those that go.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{CancelFlightInfoRequest, FlightDescriptor, FlightInfo};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use forebay::flight::{FlightServer, Limits, Listening};
use forebay::{Catalog, ForebayContext, Functions, Inventory};
use forebay_udf::runtime::Device;
use futures::TryStreamExt;
use prost::Message;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

/// Rows that a function has seen, of a million.
const ROWS: i64 = 1_000_000;
/// Nothing here takes nearly as long, unless it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);
const COUNTED: &str = "SELECT value, seen(value) AS seen, repeat('x', 100) AS text \
                       FROM range(0, 1000000)";

/// A server whose queries can call `seen`, which counts rows.
async fn server(limits: Limits) -> (Listening, ForebayContext, Arc<AtomicI64>) {
    let seen = Arc::new(AtomicI64::new(0));
    let count = Arc::clone(&seen);
    let count = move |values: &[ColumnarValue]| {
        let rows = values[0].to_array(1)?.len() as i64;
        count.fetch_add(rows, Ordering::Relaxed);
        let zeros = Int64Array::from(vec![0; rows as usize]);
        Ok(ColumnarValue::Array(Arc::new(zeros) as ArrayRef))
    };
    let (int, volatile) = (DataType::Int64, Volatility::Volatile);
    let count = create_udf("seen", vec![int.clone()], int, volatile, Arc::new(count));
    let functions = Functions { scalar: vec![Arc::new(count)], ..Functions::default() };
    let context = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_functions(functions)
        .without_url_tables()
        .build()
        .unwrap();
    let server = FlightServer::new(context.clone()).with_limits(limits);
    (server.bind(([127, 0, 0, 1], 0).into()).await.unwrap(), context, seen)
}

async fn channel(server: &Listening) -> Channel {
    let endpoint = Endpoint::try_from(format!("http://{}", server.address())).unwrap();
    endpoint.connect().await.unwrap()
}

async fn begin(
    client: &mut FlightSqlServiceClient<Channel>,
    sql: &str,
) -> (FlightInfo, FlightRecordBatchStream) {
    let info = client.execute(sql.to_owned(), None).await.unwrap();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let rows = client.do_get(ticket).await.unwrap();
    (info, rows)
}

async fn rows(client: &mut FlightSqlServiceClient<Channel>, sql: &str) -> usize {
    let (_, rows) = begin(client, sql).await;
    let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    batches.iter().map(RecordBatch::num_rows).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_before_it_is_read_and_a_client_that_does_not_read_holds_it_back() {
    let (server, _, seen) = server(Limits::default()).await;
    let mut client = FlightSqlServiceClient::new(channel(&server).await);
    let info = client.execute(COUNTED.to_owned(), None).await.unwrap();
    assert_eq!(info.clone().try_decode_schema().unwrap().fields().len(), 3);
    assert_eq!(seen.load(Ordering::Relaxed), 0, "asking for it runs nothing");
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let mut stream = client.do_get(ticket).await.unwrap();
    let first = stream.try_next().await.unwrap().unwrap();
    // While others read as much twice, it could have run to its end.
    let mut other = FlightSqlServiceClient::new(channel(&server).await);
    for _ in 0..2 {
        assert_eq!(self::rows(&mut other, COUNTED).await as i64, ROWS);
    }
    let held = seen.load(Ordering::Relaxed) - 2 * ROWS;
    assert!(held < ROWS / 2, "{held} of {ROWS} rows were made for a client that reads nothing");
    let rest: Vec<RecordBatch> = stream.try_collect().await.unwrap();
    let rows = first.num_rows() + rest.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!((rows as i64, seen.load(Ordering::Relaxed)), (ROWS, 3 * ROWS));
}

/// It would take hours: a server that waits for it to end shows whether it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_or_cancels_ends_its_query() {
    let endless = "SELECT value, seen(value) AS s FROM ml_predict(\
                   (SELECT value FROM range(0, 100000000)), MODEL echo, DESCRIPTOR(value))";
    for how in ["goes", "cancels"] {
        let (server, context, _) = server(Limits::default()).await;
        context.register_model("echo", "tests/models/echo").await.unwrap();
        let mut client = FlightSqlServiceClient::new(channel(&server).await);
        let (info, mut stream) = begin(&mut client, endless).await;
        assert!(stream.try_next().await.unwrap().is_some());
        match how {
            "goes" => drop((stream, client)),
            _ => {
                let request = CancelFlightInfoRequest::new(info);
                let mut flight = arrow_flight::FlightClient::new(channel(&server).await);
                flight.cancel_flight_info(request).await.unwrap();
                let ended = stream.try_collect::<Vec<_>>().await.unwrap_err().to_string();
                assert!(ended.contains("the query was canceled"), "{ended}");
            }
        }
        let drained = tokio::time::timeout(HANGS_AFTER, server.drain()).await;
        drained.unwrap_or_else(|_| panic!("{how}: the query still runs")).unwrap();
        // A batch that was begun ends by itself.
        while context.devices().leased_millis(Device::Emulated(0)) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_begins_a_query_and_says_when_there_is_something_to_read() {
    let (server, _, seen) = server(Limits::default()).await;
    let channel = channel(&server).await;
    let mut flight = FlightServiceClient::new(channel.clone());
    let command = CommandStatementQuery { query: COUNTED.to_owned(), transaction_id: None };
    let mut descriptor = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let info = loop {
        let poll = flight.poll_flight_info(descriptor).await.unwrap().into_inner();
        assert!(poll.progress.is_none_or(|done| (0.0..=1.0).contains(&done)));
        match poll.flight_descriptor {
            Some(next) => descriptor = next,
            None => break poll.info.unwrap(),
        }
    };
    assert!(seen.load(Ordering::Relaxed) > 0, "it runs");
    let mut client = FlightSqlServiceClient::new(channel);
    let rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>() as i64, ROWS);
    assert_eq!(seen.load(Ordering::Relaxed), ROWS, "it ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_kept_and_named() {
    let limits = Limits {
        queries_per_client_max: 2,
        statements_max: 3,
        result_bytes_max: Some(10_000_000),
        ..Limits::default()
    };
    let (server, ..) = server(limits).await;
    let mut client = FlightSqlServiceClient::new(channel(&server).await);
    let small = COUNTED.replace("1000000)", "10000)");
    assert_eq!(rows(&mut client, &small).await, 10_000);
    let (_, mut stream) = begin(&mut client, COUNTED).await;
    let error = loop {
        match stream.try_next().await {
            Ok(batch) => assert!(batch.is_some(), "the whole result came"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("more than 10000000 bytes"), "{error}");
    let large = COUNTED.replace("1000000)", "60000)");
    let held = [begin(&mut client, &large).await, begin(&mut client, &large).await];
    let info = client.execute(small.clone(), None).await.unwrap();
    let refused = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await;
    let refused = refused.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("this client runs 2 queries"), "{refused}");
    drop(held);
    let mut prepared = vec![];
    let error = loop {
        match client.prepare("SELECT 1".to_owned(), None).await {
            Ok(statement) => prepared.push(statement),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(prepared.len(), 3);
    assert!(error.contains("holds 3 prepared statements"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_messages_are_errors_and_the_server_stays() {
    let (server, ..) = server(Limits::default()).await;
    let channel = channel(&server).await;
    let mut flight = FlightServiceClient::new(channel.clone());
    let mut random = forebay_testkit::random::Random::new(7);
    for length in 0..300 {
        let bytes = random.bytes(length);
        let descriptor = FlightDescriptor::new_cmd(bytes.clone());
        let refused = flight.get_flight_info(descriptor).await.map(|_| ());
        assert!(refused.is_err_and(|status| status.code() != Code::Unavailable));
        let ticket = arrow_flight::Ticket::new(bytes);
        let refused = flight.do_get(ticket).await.map(|_| ());
        assert!(refused.is_err_and(|status| status.code() != Code::Unavailable));
    }
    let huge = FlightDescriptor::new_cmd(vec![0; 65 << 20]);
    assert!(flight.get_flight_info(huge).await.is_err());
    for _ in 0..1000 {
        tokio::net::TcpStream::connect(server.address()).await.unwrap();
    }
    let mut client = FlightSqlServiceClient::new(self::channel(&server).await);
    assert_eq!(rows(&mut client, "SELECT 1").await, 1);
}
