//! `url_download(url [, timeout_s])`: what a URL names, as bytes.
//!
//! Asynchronous: a batch of URLs is asked for together, a few at a time. What may pass (no answer, too
//! many requests, a server out of service) is tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, BinaryViewBuilder, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use datafusion::common::{Result, internal_err, resources_err};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility,
};
use futures::{StreamExt, TryStreamExt};
use url::Url;

use super::arguments::{OnBadValue, text, whole_number};
use crate::feature::docs::documentation;

/// Downloads of one batch at one time.
const CONCURRENT_DOWNLOADS: usize = 16;
/// Bytes of one download at most.
const DOWNLOAD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Bytes of all downloads of one batch at most, those that are on their way included. They are
/// together in memory, of which a function cannot reserve any: it does not know the query's pool.
const BATCH_BYTES_MAX: u64 = 4 << 30;
/// How often a download is tried.
const ATTEMPTS: usize = 3;
/// Before the second attempt; twice as long before the third.
const BACKOFF: Duration = Duration::from_millis(200);
/// For one attempt, until its last byte.
const TIMEOUT_S: i64 = 30;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// `url_download` and `try_url_download`.
pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    let under = |on_bad_value: OnBadValue| {
        let function = Download {
            name: on_bad_value.name_of(NAME),
            on_bad_value,
            signature: Signature::one_of(
                vec![
                    TypeSignature::Exact(vec![DataType::Utf8]),
                    TypeSignature::Exact(vec![DataType::Utf8, DataType::Int64]),
                ],
                Volatility::Volatile,
            ),
        };
        Arc::new(AsyncScalarUDF::new(Arc::new(function)).into_scalar_udf())
    };
    [OnBadValue::Fail, OnBadValue::Null].map(under).into()
}

const NAME: &str = "url_download";

/// Volatile: what is there may change, and no download should happen twice because an expression was
/// copied.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Download {
    name: String,
    on_bad_value: OnBadValue,
    signature: Signature,
}

impl ScalarUDFImpl for Download {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn return_type(&self, _found: &[DataType]) -> Result<DataType> {
        Ok(DataType::BinaryView)
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} is asynchronous", self.name)
    }
}

#[async_trait]
impl AsyncScalarUDFImpl for Download {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns: Vec<ArrayRef> =
            args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<_>>()?;
        let client = Client::new(BATCH_BYTES_MAX);
        let requests = (0..rows).map(|row| request(&columns, row)).collect::<Result<Vec<_>>>()?;
        let client = &client;
        let downloads = requests.into_iter().map(|request| async move {
            let Some((url, timeout)) = request else { return Ok(None) };
            let result = match client {
                Ok(client) => client.download(&url, timeout).await,
                Err(problem) => Err(problem.clone()),
            };
            if let Ok(client) = client {
                client.room.check(rows)?;
            }
            self.on_bad_value.apply(NAME, result)
        });
        let files: Vec<Option<Vec<u8>>> =
            futures::stream::iter(downloads).buffered(CONCURRENT_DOWNLOADS).try_collect().await?;
        let mut column = BinaryViewBuilder::new();
        for file in files {
            column.append_option(file);
        }
        let column: ArrayRef = Arc::new(column.finish());
        if !is_constant {
            return Ok(ColumnarValue::Array(column));
        }
        // One file for all rows, which share its bytes: DataFusion makes one row of a single value.
        let rows = UInt32Array::from(vec![0; args.number_rows]);
        Ok(ColumnarValue::Array(take(&column, &rows, None)?))
    }
}

/// The URL and time limit of a row.
fn request(columns: &[ArrayRef], row: usize) -> Result<Option<(String, Duration)>> {
    let [url, others @ ..] = columns else { return internal_err!("{NAME} without arguments") };
    let timeout = match others {
        [timeout] => whole_number(timeout, row)?,
        _ => Some(TIMEOUT_S),
    };
    let (Some(url), Some(timeout)) = (text(url, row)?, timeout) else { return Ok(None) };
    let timeout = Duration::from_secs(u64::try_from(timeout).unwrap_or_default());
    Ok(Some((url.to_owned(), timeout)))
}

/// Why an attempt failed, and whether another can succeed.
#[derive(Debug)]
struct Failure {
    problem: String,
    may_pass: bool,
}

impl Failure {
    fn lasting(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), may_pass: false }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        let may_pass = error.is_timeout() || error.is_connect() || error.is_body();
        // The innermost reason; what is around it names the URL again.
        let mut reason: &dyn std::error::Error = &error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let kind = if error.is_timeout() { "it took too long: " } else { "" };
        Self { problem: format!("{kind}{reason}"), may_pass }
    }
}

/// How many bytes the downloads of one batch may still have.
#[derive(Debug)]
struct Room {
    bytes_max: u64,
    bytes_left: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Room {
    fn new(bytes_max: u64) -> Self {
        let (bytes_left, is_exceeded) = (AtomicU64::new(bytes_max), AtomicBool::new(false));
        Self { bytes_max, bytes_left, is_exceeded }
    }

    fn take(&self, bytes: u64) -> std::result::Result<(), Failure> {
        let take = |left: u64| left.checked_sub(bytes);
        let taken = self.bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_err() {
            self.is_exceeded.store(true, Ordering::Relaxed);
            return Err(Failure::lasting("the files of its batch have too many bytes"));
        }
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        self.bytes_left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// That there is no room is the whole batch's error: no URL is at fault, whose row could be NULL.
    fn check(&self, rows: usize) -> Result<()> {
        if !self.is_exceeded.load(Ordering::Relaxed) {
            return Ok(());
        }
        resources_err!(
            "the files that {rows} rows name have more than {} bytes, and all files of a batch are in \
             memory at once; SET datafusion.execution.batch_size = {}",
            self.bytes_max,
            (rows / 8).max(1)
        )
    }
}

/// Bytes of one download in the room of its batch, given back if it does not succeed.
struct Taken<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Taken<'_> {
    fn grow(&mut self, bytes: usize) -> std::result::Result<(), Failure> {
        check_size(self.bytes + bytes as u64)?;
        self.room.take(bytes as u64)?;
        self.bytes += bytes as u64;
        Ok(())
    }

    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.give_back(self.bytes);
    }
}

/// What the downloads of one batch share.
struct Client {
    web: reqwest::Client,
    room: Room,
}

impl Client {
    fn new(bytes_max: u64) -> std::result::Result<Self, String> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")));
        let web = client.build().map_err(|error| error.to_string())?;
        Ok(Self { web, room: Room::new(bytes_max) })
    }

    async fn download(&self, url: &str, timeout: Duration) -> std::result::Result<Vec<u8>, String> {
        let parsed =
            Url::parse(url).map_err(|error| format!("'{url}' is not a valid URL: {error}"))?;
        let attempt = || async {
            let late = |_| Failure {
                problem: format!("it took longer than {} s", timeout.as_secs()),
                may_pass: true,
            };
            tokio::time::timeout(timeout, self.fetch(&parsed)).await.map_err(late)?
        };
        let mut attempts = 1;
        let result = attempt
            .retry(
                ExponentialBuilder::new()
                    .with_min_delay(BACKOFF)
                    .with_factor(2.0)
                    .with_max_times(ATTEMPTS - 1),
            )
            .when(|failure: &Failure| failure.may_pass)
            .notify(|_: &Failure, _| attempts += 1)
            .await;
        result.map_err(|failure| {
            let times =
                if attempts > 1 { format!(" ({attempts} attempts)") } else { String::new() };
            format!("{url}: {}{times}", failure.problem)
        })
    }

    async fn fetch(&self, url: &Url) -> std::result::Result<Vec<u8>, Failure> {
        match url.scheme() {
            "http" | "https" => self.fetch_from_web(url).await,
            "file" => self.fetch_file(url).await,
            other => Err(Failure::lasting(format!(
                "'{other}' is not read here, only http, https and file; read_files reads object stores"
            ))),
        }
    }

    async fn fetch_from_web(&self, url: &Url) -> std::result::Result<Vec<u8>, Failure> {
        let response = self.web.get(url.clone()).send().await?;
        let status = response.status();
        if !status.is_success() {
            let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
            return Err(Failure { problem: format!("the server says {status}"), may_pass });
        }
        let mut bytes = vec![];
        let mut taken = self.taken();
        let mut parts = response.bytes_stream();
        while let Some(part) = parts.next().await {
            let part = part?;
            taken.grow(part.len())?;
            bytes.extend_from_slice(&part);
        }
        taken.keep();
        Ok(bytes)
    }

    async fn fetch_file(&self, url: &Url) -> std::result::Result<Vec<u8>, Failure> {
        let path = url
            .to_file_path()
            .map_err(|()| Failure::lasting("it does not name a file of this machine"))?;
        let problem = |error: std::io::Error| Failure::lasting(error.to_string());
        let found = tokio::fs::metadata(&path).await.map_err(problem)?;
        // A device or a pipe may have no end.
        if !found.is_file() {
            return Err(Failure::lasting("it is not a regular file"));
        }
        check_size(found.len())?;
        let mut taken = self.taken();
        taken.grow(usize::try_from(found.len()).unwrap_or(usize::MAX))?;
        let bytes = tokio::fs::read(&path).await.map_err(problem)?;
        taken.keep();
        Ok(bytes)
    }

    fn taken(&self) -> Taken<'_> {
        Taken { room: &self.room, bytes: 0 }
    }
}

fn check_size(bytes: u64) -> std::result::Result<(), Failure> {
    if bytes <= DOWNLOAD_BYTES_MAX as u64 {
        Ok(())
    } else {
        Err(Failure::lasting(format!("it has more than {DOWNLOAD_BYTES_MAX} bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(folder: &tempfile::TempDir, name: &str, bytes: usize) -> Url {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![7; bytes]).unwrap();
        Url::from_file_path(path).unwrap()
    }

    #[tokio::test]
    async fn the_files_of_a_batch_are_bounded_together_whatever_bad_values_become() {
        let folder = tempfile::tempdir().unwrap();
        let client = Client::new(1000).unwrap();
        let (small, large) = (url(&folder, "small", 400), url(&folder, "large", 300));
        let limit = Duration::from_secs(10);
        for _ in 0..2 {
            let file = client.download(small.as_str(), limit).await.unwrap();
            assert_eq!(file.len(), 400);
            client.room.check(16).unwrap();
        }
        client.download("file:///no/such/file", limit).await.unwrap_err();
        client.room.check(16).unwrap();
        client.download(large.as_str(), limit).await.unwrap_err();
        let error = client.room.check(16).unwrap_err().strip_backtrace();
        for part in ["16 rows name have more than 1000 bytes", "batch_size = 2"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    /// A server that gives these answers to one request each, and its address.
    fn server(answers: &'static [&'static str]) -> (std::thread::JoinHandle<()>, String) {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let serve = move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                let rest = "Connection: close\r\nContent-Length: 2\r\n\r\nok";
                write!(stream, "HTTP/1.1 {answer}\r\n{rest}").unwrap();
            }
        };
        (std::thread::spawn(serve), url)
    }

    #[tokio::test]
    async fn what_may_pass_is_tried_three_times_and_all_else_once() {
        const BUSY: &str = "503 Service Unavailable";
        let client = Client::new(1000).unwrap();
        for (answers, expected) in [
            (&[BUSY, "429 Too Many Requests", "200 OK"][..], Ok(b"ok".to_vec())),
            (&[BUSY, BUSY, BUSY], Err(format!("the server says {BUSY} (3 attempts)"))),
            (
                &[BUSY, "404 Not Found"],
                Err("the server says 404 Not Found (2 attempts)".to_owned()),
            ),
            (&["404 Not Found"], Err("the server says 404 Not Found".to_owned())),
        ] {
            let (server, url) = server(answers);
            let found = client.download(&url, Duration::from_secs(10)).await;
            assert_eq!(found, expected.map_err(|problem| format!("{url}: {problem}")));
            server.join().unwrap();
        }
    }

    #[test]
    fn what_does_not_arrive_gives_its_room_back() {
        let room = Room::new(1000);
        let mut taken = Taken { room: &room, bytes: 0 };
        taken.grow(900).unwrap();
        drop(taken);
        let mut taken = Taken { room: &room, bytes: 0 };
        taken.grow(1000).unwrap();
        taken.keep();
        assert!(room.take(1).is_err());
    }
}
