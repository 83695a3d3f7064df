//! A session's connection to a cluster.

use std::time::Duration;

use ballista_core::client::BallistaClient;
use ballista_core::error::BallistaError;
use ballista_core::serde::protobuf::PartitionLocation;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use prost::Message;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::session;
use crate::rpc::ClusterClient;
use crate::rpc::messages::{DescribeRequest, RunRequest, RunUpdate, Worker};

/// For how long a client tries to reach the scheduler.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Attempts at fetching a partition of the result, and the pause between them.
const FETCH_ATTEMPTS: u8 = 3;
const FETCH_PAUSE_MS: u64 = 200;

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

/// The rows of one partition, from the worker that holds it.
pub(super) async fn fetch(location: Vec<u8>) -> Result<SendableRecordBatchStream> {
    let location = PartitionLocation::decode(location.as_slice())
        .map_err(|e| internal_datafusion_err!("a partition's location: {e}"))?;
    let layout = location.layout();
    let missing = || internal_datafusion_err!("a partition's location is incomplete");
    let worker = location.executor_meta.ok_or_else(missing)?;
    let partition = location.partition_id.ok_or_else(missing)?;
    let port = u16::try_from(worker.port).map_err(|_| missing())?;
    let mut client = BallistaClient::try_new(
        &worker.host,
        port,
        session::MESSAGE_BYTES as usize,
        false,
        None,
        FETCH_ATTEMPTS,
        FETCH_PAUSE_MS,
        0,
        0,
    )
    .await
    .map_err(BallistaError::into_datafusion)?;
    let (id, file) = (partition.into(), location.file_id);
    let rows = client.fetch_partition(&worker.id, &id, file, layout, true).await;
    rows.map_err(BallistaError::into_datafusion)
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
