//! Serves blocks to other workers, and fetches theirs.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use futures::stream;
use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::failure::BlockError;
use super::location::BlockLocation;
use super::store::BlockStore;
use crate::rpc::blocks_server::Blocks;
use crate::rpc::messages::Chunk;
use crate::rpc::{Answers, BlocksClient};

/// Bytes in one message.
const CHUNK_BYTES: usize = 1 << 20;

/// Attempts at reaching a worker, and the pause between them. Few and short: an accelerator may be
/// held meanwhile, and the scheduler knows sooner whether the worker lives.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// For how long a worker is called before it counts as not reached.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// For how long nothing may arrive.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The same of a worker that was silent before: what else is asked of it must not take as long
/// each time, as a task asks for many blocks and may hold an accelerator meanwhile.
const SILENCE_LIMIT_AGAIN: Duration = Duration::from_secs(1);

/// For how long a worker counts as one that was silent.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// Who waits for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// A task, which can read another copy.
    Task,
    /// A session, for which there is no other copy.
    Session,
}

#[tonic::async_trait]
impl Blocks for Arc<BlockStore> {
    type FetchStream = Answers<Chunk>;

    async fn fetch(
        &self,
        request: Request<BlockLocation>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let (store, location) = (Arc::clone(self), request.into_inner());
        let read = SpawnedTask::spawn_blocking(move || store.read(&location)).join().await;
        let bytes =
            read.map_err(|error| Status::internal(error.to_string()))?.map_err(|error| {
                match BlockError::find(&error) {
                    Some(error) => Status::data_loss(error.problem.clone()),
                    None => Status::data_loss(error.strip_backtrace()),
                }
            })?;
        let chunks = (0..bytes.len()).step_by(CHUNK_BYTES).map(move |start| {
            let end = (start + CHUNK_BYTES).min(bytes.len());
            Ok(Chunk { bytes: bytes.slice(start..end) })
        });
        Ok(Response::new(Box::pin(stream::iter(chunks))))
    }
}

/// The file of a block of another worker.
///
/// # Errors
/// A [`BlockError`] if it cannot be had.
pub(super) async fn fetch(block: &BlockLocation, reader: Reader) -> Result<Bytes> {
    let mut attempt = 1;
    loop {
        let status = match attempt_fetch(block).await {
            Ok(bytes) => {
                PEERS.lock().silent.remove(&block.address);
                return Ok(bytes);
            }
            Err(status) => status,
        };
        if status.code() == Code::DataLoss {
            // The worker answered: asking again gives the same answer.
            return Err(BlockError::new(block, status.message()).into());
        }
        let gives_up = status.code() == Code::DeadlineExceeded && reader == Reader::Task;
        PEERS.lock().failed(&block.address, gives_up);
        if gives_up || attempt == ATTEMPTS {
            let problem =
                format!("cannot be fetched from {}: {}", block.address, root_cause(&status));
            return Err(BlockError::new(block, problem).into());
        }
        tokio::time::sleep(PAUSE * attempt).await;
        attempt += 1;
    }
}

/// What broke, without the layers that passed it on.
fn root_cause(status: &Status) -> String {
    let mut cause: &dyn Error = status;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None => cause.to_string(),
    }
}

async fn attempt_fetch(block: &BlockLocation) -> Result<Bytes, Status> {
    let (channel, limit) = PEERS.lock().reach(&block.address)?;
    let silent = |_| Status::deadline_exceeded(format!("nothing for {limit:?}"));
    let mut client = BlocksClient::new(channel);
    let answer = tokio::time::timeout(limit, client.fetch(block.clone()));
    let mut chunks = answer.await.map_err(silent)??.into_inner();
    // What the scheduler says of its size is checked later; a wrong one must not cost memory now.
    let mut bytes = BytesMut::new();
    loop {
        let chunk = tokio::time::timeout(limit, chunks.message()).await.map_err(silent)??;
        match chunk {
            Some(chunk) => bytes.extend_from_slice(&chunk.bytes),
            None => return Ok(bytes.freeze()),
        }
    }
}

/// Other workers, as all tasks of this process know them.
static PEERS: LazyLock<Mutex<Peers>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Peers {
    /// Connections by address.
    channels: HashMap<String, Channel>,
    /// Addresses where nobody answered, and when that was.
    silent: HashMap<String, Instant>,
}

impl Peers {
    /// The connection to a worker, and how long it may be silent.
    fn reach(&mut self, address: &str) -> Result<(Channel, Duration), Status> {
        self.silent.retain(|_, since| since.elapsed() < SILENT_FOR);
        let limit = match self.silent.contains_key(address) {
            true => SILENCE_LIMIT_AGAIN,
            false => SILENCE_LIMIT,
        };
        if let Some(channel) = self.channels.get(address) {
            return Ok((channel.clone(), limit));
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Status::invalid_argument(format!("'{address}': {error}")))?
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_LIMIT);
        let channel = endpoint.connect_lazy();
        self.channels.insert(address.to_owned(), channel.clone());
        Ok((channel, limit))
    }

    /// The next fetch takes another connection.
    fn failed(&mut self, address: &str, was_silent: bool) {
        self.channels.remove(address);
        if was_silent {
            self.silent.insert(address.to_owned(), Instant::now());
        }
    }
}
