//! Serves blocks to other workers, and fetches theirs.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use datafusion::common::Result;
use futures::stream;
use tonic::{Code, Request, Response, Status};

use super::block_file::verify;
use super::failure::BlockError;
use super::job_blocks::Place;
use super::on_disk::on_disk;
use super::serving::Serving;
use super::store::BlockStore;
use crate::protocol::blocks_server::Blocks;
use crate::protocol::connection::{Peers, said};
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::{BlockFilePart, BlockFiles, Chunk, FetchRequest, check_protocol};
use crate::protocol::{Answers, BlocksClient};

/// The pauses between attempts at reaching a worker: 100 and 200 ms. Few and short: an accelerator
/// may be held meanwhile, and the scheduler knows sooner whether the worker lives.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_factor(2.0)
    .with_max_times(2);

/// For how long a worker is called before it counts as not reached.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// For how long nothing may arrive.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(10);

/// The same of a worker that was silent before: what else is asked of it must not take as long
/// each time, as a task asks for many blocks and may hold an accelerator meanwhile.
const SILENCE_LIMIT_AGAIN: Duration = Duration::from_secs(1);

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
        request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let (store, locations) = (Arc::clone(self), asked_for(self, request)?);
        let mut all = ServingAll { store, locations, open: None };
        let all = answered(move || all.open_next().map(|()| all)).await?;
        // A piece is read once the reader has taken the one before, as far as the line buffers.
        let chunks = stream::try_unfold(all, |mut all| async {
            let (piece, all) = answered(move || Ok((all.next()?, all))).await?;
            Ok(piece.map(|bytes| (Chunk { bytes }, all)))
        });
        Ok(Response::new(Box::pin(chunks)))
    }

    async fn find(&self, request: Request<FetchRequest>) -> Result<Response<BlockFiles>, Status> {
        let blocks = asked_for(self, request)?;
        let files = blocks.iter().map(|block| file_part(self, block)).collect::<Result<_, _>>();
        let files = files.map_err(|error| Status::data_loss(error.problem))?;
        Ok(Response::new(BlockFiles { files }))
    }
}

/// The blocks that a reader of the same protocol wants, in their order.
fn asked_for(
    store: &BlockStore,
    request: Request<FetchRequest>,
) -> Result<VecDeque<BlockLocation>, Status> {
    let FetchRequest { protocol, version, block, more } = request.into_inner();
    let worker = format!("worker {}", store.worker());
    check_protocol("this reader", protocol, &version, &worker)?;
    Ok(iter::once(block).chain(more).collect())
}

fn file_part(store: &BlockStore, block: &BlockLocation) -> Result<BlockFilePart, BlockError> {
    let (path, place) = store.file_of(block)?;
    let no_text = |_| BlockError::new(block, "its file has no name that is text");
    let path = path.into_os_string().into_string().map_err(no_text)?;
    let (at, is_direct) = match place {
        Place::Whole => (None, false),
        Place::Part { at, is_direct, .. } => (Some(at), is_direct),
    };
    Ok(BlockFilePart { path, at, is_direct })
}

/// Blocks that are served one after the other.
struct ServingAll {
    store: Arc<BlockStore>,
    /// Those behind the one that is open.
    locations: VecDeque<BlockLocation>,
    open: Option<Serving>,
}

impl ServingAll {
    fn open_next(&mut self) -> Result<(), BlockError> {
        let next = self.locations.pop_front();
        self.open = next.map(|location| Serving::open(&self.store, location)).transpose()?;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Bytes>, BlockError> {
        while let Some(serving) = &mut self.open {
            match serving.next()? {
                Some(piece) => return Ok(Some(piece)),
                None => self.open_next()?,
            }
        }
        Ok(None)
    }
}

/// Reads what a worker asks for, and answers with what is wrong with it.
async fn answered<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, BlockError> + Send + 'static,
) -> Result<T, Status> {
    let read = on_disk(read).await;
    let read = read.map_err(|error| Status::internal(error.to_string()))?;
    read.map_err(|error| Status::data_loss(error.problem))
}

/// Blocks of another worker, or segments of them: the bytes of each, which are those that were sealed.
///
/// # Errors
/// A [`BlockError`] for the first one that cannot be had.
pub(super) async fn fetch(
    peers: &Peers,
    blocks: &[BlockLocation],
    reader: Reader,
) -> Result<Vec<Bytes>> {
    let Some(address) = blocks.first().map(|block| &block.address) else { return Ok(vec![]) };
    let gives_up =
        |missed: &Missed| missed.status.code() == Code::DeadlineExceeded && reader == Reader::Task;
    let ask = || async {
        let fetched = attempt_fetch(peers, address, blocks).await;
        match &fetched {
            Ok(_) => peers.answered(address),
            Err(missed) if is_answer(&missed.status) => {}
            Err(missed) => peers.hang_up(address, gives_up(missed)),
        }
        fetched
    };
    let again = |missed: &Missed| !is_answer(&missed.status) && !gives_up(missed);
    let fetched = ask.retry(PAUSES).when(again).await;
    fetched.map_err(|Missed { at, status }| {
        let (block, said) = (&blocks[at], said(&status));
        let error = if is_answer(&status) {
            BlockError::new(block, said)
        } else {
            BlockError::unreached(block, format!("cannot be fetched from {address}: {said}"))
        };
        error.into()
    })
}

/// A block that did not come, by its place among those that were asked for, and why.
struct Missed {
    at: usize,
    status: Status,
}

/// Whether the worker answered: asking again gives the same answer.
fn is_answer(status: &Status) -> bool {
    matches!(status.code(), Code::DataLoss | Code::FailedPrecondition)
}

async fn attempt_fetch(
    peers: &Peers,
    address: &str,
    blocks: &[BlockLocation],
) -> Result<Vec<Bytes>, Missed> {
    let mut whole = vec![];
    let come = come(peers, address, blocks, &mut whole).await;
    match come {
        Ok(()) => Ok(whole),
        // What has come was whole, so this is about the next one.
        Err(status) => Err(Missed { at: whole.len().min(blocks.len() - 1), status }),
    }
}

async fn come(
    peers: &Peers,
    address: &str,
    blocks: &[BlockLocation],
    whole: &mut Vec<Bytes>,
) -> Result<(), Status> {
    let was_silent = peers.was_silent(address);
    let limit = if was_silent { SILENCE_LIMIT_AGAIN } else { SILENCE_LIMIT };
    let silent = |_| Status::deadline_exceeded(format!("nothing for {limit:?}"));
    let mut client = BlocksClient::new(peers.channel(address, CONNECT_LIMIT)?);
    let Some((first, more)) = blocks.split_first() else { return Ok(()) };
    let answer = client.fetch(FetchRequest::new(first.clone(), more.to_vec()));
    let answer = tokio::time::timeout(limit, answer);
    let mut chunks = answer.await.map_err(silent)??.into_inner();
    for (at, block) in blocks.iter().enumerate() {
        let mut arriving = Arriving { block, bytes: vec![] };
        // Behind the last one there is nothing, or a word on what is wrong with it.
        while at + 1 == blocks.len() || arriving.is_short() {
            match tokio::time::timeout(limit, chunks.message()).await.map_err(silent)?? {
                Some(chunk) => arriving.add(&chunk.bytes)?,
                None => break,
            }
        }
        verify(block, &arriving.bytes).map_err(|error| Status::data_loss(error.problem))?;
        whole.push(Bytes::from(arriving.bytes));
    }
    Ok(())
}

/// What has come of a block. It takes no more memory than the block's size, which is reserved; and if
/// what the scheduler says of that is wrong, little more than what has come.
struct Arriving<'a> {
    block: &'a BlockLocation,
    bytes: Vec<u8>,
}

impl Arriving<'_> {
    fn is_short(&self) -> bool {
        (self.bytes.len() as u64) < self.block.bytes
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), Status> {
        let (before, after) = (self.bytes.len(), self.bytes.len() + chunk.len());
        let most = usize::try_from(self.block.bytes).unwrap_or(usize::MAX);
        if after > most {
            return Err(Status::data_loss(format!("at least {after} bytes instead of {most}")));
        }
        if after > self.bytes.capacity() {
            self.bytes.reserve_exact(after.max(2 * before).min(most) - before);
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion::common::runtime::SpawnedTask;
    use tokio::net::TcpListener;

    use super::*;
    use crate::protocol::blocks_server::BlocksServer;
    use crate::protocol::connection::serve;

    /// A worker that says this for the first calls, and then sends three bytes.
    #[derive(Clone)]
    struct Worker {
        code: Code,
        failures: usize,
        calls: Arc<AtomicUsize>,
    }

    #[tonic::async_trait]
    impl Blocks for Worker {
        type FetchStream = Answers<Chunk>;

        async fn fetch(
            &self,
            _: Request<FetchRequest>,
        ) -> Result<Response<Self::FetchStream>, Status> {
            if self.calls.fetch_add(1, Ordering::Relaxed) < self.failures {
                return Err(Status::new(self.code, "not now"));
            }
            let chunk = Chunk { bytes: Bytes::from_static(b"abc") };
            Ok(Response::new(Box::pin(stream::iter([Ok(chunk)]))))
        }

        async fn find(&self, _: Request<FetchRequest>) -> Result<Response<BlockFiles>, Status> {
            Err(Status::unimplemented("only fetched"))
        }
    }

    /// What a task gets of such a worker, and how often it called.
    async fn fetched(code: Code, failures: usize) -> (Result<Bytes, String>, usize) {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap().to_string();
        let worker = Worker { code, failures, calls: Arc::default() };
        let service = BlocksServer::new(worker.clone());
        let routes = tonic::transport::Server::builder().add_service(service);
        let _serving = SpawnedTask::spawn(serve(routes, port, None));
        let checksum = crc32fast::hash(b"abc");
        let block = BlockLocation { address, bytes: 3, checksum, ..BlockLocation::default() };
        let found = fetch(&Peers::default(), std::slice::from_ref(&block), Reader::Task).await;
        let found = found.map(|blocks| Bytes::from(blocks.concat()));
        let found = found.map_err(|error| error.strip_backtrace().replace(&block.address, "IT"));
        (found, worker.calls.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_worker_that_may_answer_later_is_asked_three_times_and_one_that_answered_once() {
        let whole = Ok(Bytes::from_static(b"abc"));
        assert_eq!(fetched(Code::Unavailable, 0).await, (whole.clone(), 1));
        assert_eq!(fetched(Code::Unavailable, 2).await, (whole, 3));
        let (error, calls) = fetched(Code::Unavailable, 3).await;
        assert_eq!(calls, 3);
        let error = error.unwrap_err();
        assert!(error.ends_with("cannot be fetched from IT: not now"), "{error}");
        let (error, calls) = fetched(Code::DataLoss, 1).await;
        assert_eq!(calls, 1);
        assert!(error.unwrap_err().ends_with(": not now"));
        // A task does not wait for one that is silent: there may be another copy.
        assert_eq!(fetched(Code::DeadlineExceeded, 1).await.1, 1);
    }

    #[test]
    fn a_block_that_arrives_takes_its_size_and_no_more() {
        let block = BlockLocation { bytes: 1000, ..BlockLocation::default() };
        let mut arriving = Arriving { block: &block, bytes: vec![] };
        for _ in 0..9 {
            arriving.add(&[7; 110]).unwrap();
            let (length, capacity) = (arriving.bytes.len(), arriving.bytes.capacity());
            assert!(capacity <= 1000 && capacity <= 2 * length, "{capacity} for {length}");
        }
        arriving.add(&[7; 10]).unwrap();
        assert_eq!((arriving.bytes.len(), arriving.bytes.capacity()), (1000, 1000));
        let error = arriving.add(&[7]).unwrap_err();
        assert!(is_answer(&error), "it would be the same again");
        assert_eq!(error.message(), "at least 1001 bytes instead of 1000");
        assert_eq!(arriving.bytes.capacity(), 1000);
    }

    /// A worker that serves a file of three segments, and those.
    async fn segments(folder: &tempfile::TempDir) -> (SpawnedTask<()>, Vec<BlockLocation>) {
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let content: Vec<u8> = (0..3_500_000).map(|at| (at % 251) as u8).collect();
        let blocks = folder.path().join("job/1/blocks");
        std::fs::create_dir_all(&blocks).unwrap();
        std::fs::write(blocks.join("2-3.arrow"), &content).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = port.local_addr().unwrap().to_string();
        let service = BlocksServer::new(Arc::new(store));
        let routes = tonic::transport::Server::builder().add_service(service);
        let serving = SpawnedTask::spawn(async move { drop(serve(routes, port, None).await) });
        let segment = |(from, to): (usize, usize)| BlockLocation {
            job: "job".to_owned(),
            id: crate::protocol::location::FileId { stage: 1, task: 2, seq: 3 },
            worker: "w".to_owned(),
            address: address.clone(),
            bytes: (to - from) as u64,
            rows: 1,
            checksum: crc32fast::hash(&content[from..to]),
            segment_at: Some(from as u64),
        };
        let ends = [(0, 10), (10, 2_000_000), (2_000_000, 3_500_000)];
        (serving, ends.into_iter().map(segment).collect())
    }

    #[tokio::test]
    async fn segments_come_one_after_the_other_and_the_first_that_is_damaged_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (_serving, segments) = segments(&folder).await;
        let peers = Peers::default();
        let whole = fetch(&peers, &segments, Reader::Task).await.unwrap();
        let sizes: Vec<_> = whole.iter().map(Bytes::len).collect();
        assert_eq!(sizes, [10, 1_999_990, 1_500_000]);
        for damaged in 0..3 {
            let mut asked = segments.clone();
            asked[damaged].checksum ^= 1;
            let error = fetch(&peers, &asked, Reader::Task).await.unwrap_err();
            let error = BlockError::find(&error).unwrap();
            assert!(error.problem.contains("checksum"), "{error}");
            assert!(error.problem.contains(&format!("{:08x}", asked[damaged].checksum)), "{error}");
            assert!(!error.is_one_of_many);
            let mut asked = segments.clone();
            asked[damaged].segment_at = Some(3_499_995);
            let error = fetch(&peers, &asked, Reader::Task).await.unwrap_err();
            assert!(error.to_string().contains("begin at 3499995 are wanted"), "{error}");
        }
    }
}
