//! `url_download(url [, timeout_s])`: what a URL names, as bytes.
//!
//! Asynchronous: a batch of URLs is asked for together, a few at a time. What may pass (no answer, too
//! many requests, a server out of service) is tried again.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, BinaryViewBuilder, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility,
};
use futures::{StreamExt, TryStreamExt};
use url::Url;

use super::arguments::{OnBadValue, text, whole_number};
use crate::feature::documentation;

/// Downloads of one batch at one time.
const CONCURRENT_DOWNLOADS: usize = 16;
/// Bytes of one download at most.
const DOWNLOAD_BYTES_MAX: usize = 256 * 1024 * 1024;
/// How often a download is tried.
const ATTEMPTS: u32 = 3;
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
        let client = Client::new();
        let requests = (0..rows).map(|row| request(&columns, row)).collect::<Result<Vec<_>>>()?;
        let client = &client;
        let downloads = requests.into_iter().map(|request| async move {
            let Some((url, timeout)) = request else { return Ok(None) };
            let result = match client {
                Ok(client) => client.download(&url, timeout).await,
                Err(problem) => Err(problem.clone()),
            };
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

struct Client(reqwest::Client);

impl Client {
    fn new() -> std::result::Result<Self, String> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")));
        client.build().map(Self).map_err(|error| error.to_string())
    }

    async fn download(&self, url: &str, timeout: Duration) -> std::result::Result<Vec<u8>, String> {
        let parsed = Url::parse(url).map_err(|error| format!("'{url}' is no URL: {error}"))?;
        let mut attempt = 1;
        loop {
            let result = match tokio::time::timeout(timeout, self.fetch(&parsed)).await {
                Ok(result) => result,
                Err(_) => Err(Failure {
                    problem: format!("it took longer than {} s", timeout.as_secs()),
                    may_pass: true,
                }),
            };
            match result {
                Ok(bytes) => return Ok(bytes),
                Err(failure) if failure.may_pass && attempt < ATTEMPTS => {
                    tokio::time::sleep(BACKOFF * attempt).await;
                    attempt += 1;
                }
                Err(failure) => {
                    let times =
                        if attempt > 1 { format!(" ({attempt} attempts)") } else { String::new() };
                    return Err(format!("{url}: {}{times}", failure.problem));
                }
            }
        }
    }

    async fn fetch(&self, url: &Url) -> std::result::Result<Vec<u8>, Failure> {
        match url.scheme() {
            "http" | "https" => self.fetch_from_web(url).await,
            "file" => fetch_file(url).await,
            other => Err(Failure::lasting(format!(
                "'{other}' is not read here, only http, https and file; read_files reads object stores"
            ))),
        }
    }

    async fn fetch_from_web(&self, url: &Url) -> std::result::Result<Vec<u8>, Failure> {
        let response = self.0.get(url.clone()).send().await?;
        let status = response.status();
        if !status.is_success() {
            let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
            return Err(Failure { problem: format!("the server says {status}"), may_pass });
        }
        let mut bytes = vec![];
        let mut parts = response.bytes_stream();
        while let Some(part) = parts.next().await {
            let part = part?;
            check_size((bytes.len() + part.len()) as u64)?;
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    }
}

async fn fetch_file(url: &Url) -> std::result::Result<Vec<u8>, Failure> {
    let path =
        url.to_file_path().map_err(|()| Failure::lasting("it names no file of this machine"))?;
    let problem = |error: std::io::Error| Failure::lasting(error.to_string());
    let found = tokio::fs::metadata(&path).await.map_err(problem)?;
    // A device or a pipe may have no end.
    if !found.is_file() {
        return Err(Failure::lasting("it is no file"));
    }
    check_size(found.len())?;
    tokio::fs::read(&path).await.map_err(problem)
}

fn check_size(bytes: u64) -> std::result::Result<(), Failure> {
    match bytes <= DOWNLOAD_BYTES_MAX as u64 {
        true => Ok(()),
        false => Err(Failure::lasting(format!("it has more than {DOWNLOAD_BYTES_MAX} bytes"))),
    }
}
