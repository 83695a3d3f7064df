//! A session's connection to a cluster.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_err};
use forebay_engine::{ErrorKind, RemoteError};
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use crate::ballista::session;
use crate::protocol::ClusterClient;
use crate::protocol::connection::{Peers, said};
use crate::protocol::messages::{
    Analysis, AnalyzeRequest, DescribeRequest, PROTOCOL, ReadAnswer, ReadRequest, RunRequest,
    RunUpdate, TableRequest, Worker,
};
use crate::protocol::schedulers::{Schedulers, Seeker};
use crate::protocol::tls::Tls;
use crate::tables::{self, SystemTable};

/// The pause before a scheduler is asked again that did not answer.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Whether nobody has answered, or one who ends.
fn is_broken(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unavailable
}

fn client(channel: Channel) -> ClusterClient<Channel> {
    let limit = session::MESSAGE_BYTES as usize;
    let client = ClusterClient::new(channel);
    client.max_decoding_message_size(limit).max_encoding_message_size(limit)
}

/// A connection to a scheduler.
#[derive(Clone, Debug)]
pub struct Cluster {
    schedulers: Arc<Schedulers>,
    /// The workers, who hold the rows.
    peers: Arc<Peers>,
    is_in_schedulers_process: bool,
}

impl Cluster {
    /// Connects to the scheduler at `host:port`, or the one that answers at one of several such addresses with commas
    /// between them; with `tls` if it has some, without if not.
    ///
    /// # Errors
    /// If nobody answers there, or one of both does not believe the other.
    pub async fn connect(scheduler: &str, tls: Option<Tls>) -> Result<Self> {
        let addresses = scheduler.strip_prefix("http://").unwrap_or(scheduler);
        let schedulers = Schedulers::reach(addresses, tls.as_ref(), Seeker::Session).await?;
        let peers = Arc::new(Peers::new(tls));
        Ok(Self { schedulers: Arc::new(schedulers), peers, is_in_schedulers_process: false })
    }

    /// The same, of a session in the process of the scheduler: neither outlives the other, so what it asks for is not
    /// written down for a successor.
    #[must_use]
    pub fn in_schedulers_process(self) -> Self {
        Self { is_in_schedulers_process: true, ..self }
    }

    /// Whether it ends with the scheduler.
    pub(crate) fn ends_with_scheduler(&self) -> bool {
        self.is_in_schedulers_process
    }

    /// `host:port` of the scheduler.
    pub fn scheduler(&self) -> &str {
        self.schedulers.address()
    }

    /// Asks the scheduler; if nobody answers, one at another address, should there be one.
    async fn ask<T, F>(&self, ask: impl Fn(ClusterClient<Channel>) -> F) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let asked = self.schedulers.current();
        let mut answer = ask(self.client()).await;
        let is_gone = matches!(&answer, Err(status) if is_broken(status));
        if is_gone && self.schedulers.find_other(asked).await {
            answer = ask(self.client()).await;
        }
        Ok(answer.map_err(|status| self.failed(&status))?.into_inner())
    }

    /// The workers at this moment.
    ///
    /// # Errors
    /// If the scheduler does not answer.
    pub async fn workers(&self) -> Result<Vec<Worker>> {
        let describe = |mut scheduler: ClusterClient<Channel>| async move {
            scheduler.describe(DescribeRequest::new()).await
        };
        Ok(self.ask(describe).await?.workers)
    }

    /// The rows of a system table at this moment, of a user's jobs or of all.
    ///
    /// # Errors
    /// If the scheduler does not answer, or is of another version.
    pub async fn table(&self, table: SystemTable, owner: Option<&str>) -> Result<RecordBatch> {
        let request = TableRequest {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            table: table.name().to_owned(),
            owner: owner.unwrap_or_default().to_owned(),
        };
        let ask = |mut scheduler: ClusterClient<Channel>| {
            let request = request.clone();
            async move { scheduler.table(request).await }
        };
        let rows = self.ask(ask).await?;
        let batch = tables::read(&rows.stream)?;
        if batch.schema() != table.schema()? {
            return exec_err!(
                "the scheduler at {} has other columns in {table}; run the same version on all \
                 machines",
                self.scheduler()
            );
        }
        Ok(batch)
    }

    /// What was measured of a job, for people.
    ///
    /// # Errors
    /// If the scheduler does not answer or knows no such job.
    pub(crate) async fn analysis(&self, job: String) -> Result<Analysis> {
        let (protocol, version) = (PROTOCOL, env!("CARGO_PKG_VERSION").to_owned());
        let request = AnalyzeRequest { protocol, version, job };
        let ask = |mut scheduler: ClusterClient<Channel>| {
            let request = request.clone();
            async move { scheduler.analyze(request).await }
        };
        self.ask(ask).await
    }

    /// Runs a plan for as long as the answer is held.
    pub(crate) async fn run(&self, request: RunRequest) -> Result<Streaming<RunUpdate>> {
        let ask = |mut scheduler: ClusterClient<Channel>| {
            let request = request.clone();
            async move { scheduler.run(request).await }
        };
        self.ask(ask).await
    }

    /// What the client of a job reads next, once there is something. If the scheduler may have a successor, it
    /// is asked until one answers: whoever calls knows how long to wait.
    pub(crate) async fn read(
        &self,
        request: ReadRequest,
        patience: Duration,
    ) -> Result<ReadAnswer> {
        loop {
            match self.client().read(request.clone()).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if !patience.is_zero() && is_broken(&status) => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
                Err(status) => return Err(self.failed(&status)),
            }
        }
    }

    /// What becomes of a job, of a successor of the scheduler that had it: `known` has the job's id, its owner, and the
    /// state of that one.
    ///
    /// # Errors
    /// If none has come for so long, or it does not know the job as this owner's.
    pub(crate) async fn find_again(
        &self,
        known: RunRequest,
        patience: Duration,
    ) -> Result<Streaming<RunUpdate>> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let known = RunRequest { protocol: PROTOCOL, version, is_known: true, ..known };
        let since = Instant::now();
        for turn in 0.. {
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
            let request = known.clone();
            let ask = |channel| async move { client(channel).run(request).await };
            match self.schedulers.ask(turn, ask).await {
                Ok(updates) => return Ok(updates.into_inner()),
                // Another one's scheduler, at one of several addresses.
                Err(status)
                    if status.code() == Code::Aborted
                        && self.schedulers.are_several()
                        && since.elapsed() < patience => {}
                Err(status) if !is_broken(&status) => return Err(self.failed(&status)),
                Err(_) if since.elapsed() < patience => {}
                Err(_) => break,
            }
        }
        Err(self.gone_for(patience))
    }

    fn gone_for(&self, patience: Duration) -> DataFusionError {
        let message = format!(
            "the scheduler at {} is gone, and has had no successor for {} s",
            self.scheduler(),
            patience.as_secs()
        );
        RemoteError::new(ErrorKind::Unavailable, message).into()
    }

    fn client(&self) -> ClusterClient<Channel> {
        client(self.schedulers.channel())
    }

    /// The workers, as this session reaches them.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    pub(crate) fn failed(&self, status: &Status) -> DataFusionError {
        let message = format!("the scheduler at {}: {}", self.scheduler(), said(status));
        let kind = match status.code() {
            Code::InvalidArgument => ErrorKind::InvalidArgument,
            Code::NotFound => ErrorKind::NotFound,
            // Of another version, or another kind of server.
            Code::FailedPrecondition | Code::Unimplemented | Code::AlreadyExists => {
                ErrorKind::FailedPrecondition
            }
            Code::ResourceExhausted | Code::OutOfRange => ErrorKind::ResourceExhausted,
            Code::Internal => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        };
        RemoteError::new(kind, message).into()
    }

    pub(crate) fn stopped(&self) -> DataFusionError {
        let message = format!("the scheduler at {} stopped", self.scheduler());
        RemoteError::new(ErrorKind::Unavailable, message).into()
    }
}
