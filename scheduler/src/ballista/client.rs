//! A session's connection to a cluster.

use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::session;
use crate::rpc::ClusterClient;
use crate::rpc::messages::{
    Analysis, AnalyzeRequest, DescribeRequest, PROTOCOL, RunRequest, RunUpdate, TableRequest,
    Worker,
};
use crate::tables::{self, SystemTable};

/// For how long a client tries to reach the scheduler.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A connection to a scheduler.
#[derive(Clone, Debug)]
pub struct Cluster {
    scheduler: String,
    channel: Channel,
}

impl Cluster {
    /// Connects to the scheduler at `host:port`.
    ///
    /// # Errors
    /// If nobody answers there.
    pub async fn connect(scheduler: &str) -> Result<Self> {
        let address = scheduler.strip_prefix("http://").unwrap_or(scheduler);
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| exec_datafusion_err!("'{scheduler}' is no HOST:PORT: {e}"))?
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_LIMIT);
        let channel = endpoint.connect().await.map_err(|error| {
            exec_datafusion_err!(
                "no scheduler answers at {address}: {}; start one with `forebay serve`",
                root_cause(&error)
            )
        })?;
        Ok(Self { scheduler: address.to_owned(), channel })
    }

    /// `host:port` of the scheduler.
    pub fn scheduler(&self) -> &str {
        &self.scheduler
    }

    /// The workers at this moment.
    ///
    /// # Errors
    /// If the scheduler does not answer.
    pub async fn workers(&self) -> Result<Vec<Worker>> {
        let answer = self.client().describe(DescribeRequest {}).await;
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner().workers)
    }

    /// The rows of a system table at this moment, of one job or of all.
    ///
    /// # Errors
    /// If the scheduler does not answer, or is of another version.
    pub async fn table(&self, table: SystemTable, job: Option<&str>) -> Result<RecordBatch> {
        let request = TableRequest {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            table: table.name().to_owned(),
            job: job.unwrap_or_default().to_owned(),
        };
        let answer = self.client().table(request).await;
        let rows = answer.map_err(|status| self.failed(&status))?.into_inner();
        let batch = tables::read(&rows.stream)?;
        if batch.schema() != table.schema()? {
            return exec_err!(
                "the scheduler at {} has other columns in {table}; run the same version on all \
                 machines",
                self.scheduler
            );
        }
        Ok(batch)
    }

    /// What was measured of a job, for people.
    ///
    /// # Errors
    /// If the scheduler does not answer or knows no such job.
    pub(super) async fn analysis(&self, job: String) -> Result<Analysis> {
        let (protocol, version) = (PROTOCOL, env!("CARGO_PKG_VERSION").to_owned());
        let answer = self.client().analyze(AnalyzeRequest { protocol, version, job }).await;
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner())
    }

    /// Runs a plan for as long as the answer is held.
    pub(super) async fn run(&self, request: RunRequest) -> Result<Streaming<RunUpdate>> {
        let answer = self.client().run(request).await;
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner())
    }

    fn client(&self) -> ClusterClient<Channel> {
        let limit = session::MESSAGE_BYTES as usize;
        ClusterClient::new(self.channel.clone())
            .max_decoding_message_size(limit)
            .max_encoding_message_size(limit)
    }

    pub(super) fn failed(&self, status: &Status) -> DataFusionError {
        exec_datafusion_err!("the scheduler at {}: {}", self.scheduler, status.message())
    }
}

/// What people want to know of a chain of errors.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
