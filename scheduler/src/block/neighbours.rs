//! Other workers of the same machine, whose files are read as they lie: over the network each byte would be copied some
//! times more. Spark does so, too (`spark.shuffle.readHostLocalDisk`).

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use datafusion::common::Result;
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::Status;

use super::block_file::BlockFile;
use super::failure::BlockError;
use super::job_blocks::Place;
use super::on_disk::on_disk_of_neighbour;
use super::service::{CONNECT_LIMIT, SILENCE_LIMIT};
use crate::protocol::BlocksClient;
use crate::protocol::connection::Peers;
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::{BlockFilePart, FetchRequest};

/// For how long a neighbour is asked where its files are, which it has not to look up on a disk.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// For how long its files are read, if its disk does not answer. What is read nevertheless takes memory that is not reserved,
/// as many blocks at most as [there are threads](super::on_disk).
const READ_FOR: Duration = SILENCE_LIMIT;

/// After so many reads in a row that found none of the files, which the worker has all the same, it is on no disk of this
/// machine, or on one of another container.
const MISSES_MAX: u32 = 8;

/// The workers that are reached by the name by which this one is. They are asked for their files' paths, as the network may
/// lead elsewhere by that name, and files may not be where they seem to be: what is read is compared with what was sealed.
#[derive(Debug)]
pub struct Neighbours {
    host: String,
    /// By worker, reads in a row that found no file.
    misses: Mutex<HashMap<String, u32>>,
}

impl Neighbours {
    /// Those of the worker that is reached by this name or address.
    pub fn at(host: String) -> Self {
        Self { host, misses: Mutex::default() }
    }

    /// Blocks of another worker, or segments of them: from its files if it is a neighbour. If they are not to be had there, for
    /// whatever reason, they are fetched, and whoever does that is told why.
    ///
    /// # Errors
    /// If they cannot be fetched either.
    pub(super) async fn read_or(
        &self,
        peers: &Peers,
        blocks: &[BlockLocation],
        fetch: impl Future<Output = Result<Vec<Bytes>>>,
    ) -> Result<Vec<Bytes>> {
        let neighbour = blocks.first().filter(|block| self.may_have(peers, block));
        let Some(BlockLocation { worker, address, .. }) = neighbour else { return fetch.await };
        let Ok(files) = find(peers, address, blocks).await else { return fetch.await };
        match read(blocks.to_vec(), files).await {
            Ok(bytes) => {
                self.misses.lock().remove(worker);
                Ok(bytes)
            }
            Err(problem) => {
                let fetched = fetch.await?;
                self.count_miss(worker, &problem);
                Ok(fetched)
            }
        }
    }

    fn may_have(&self, peers: &Peers, block: &BlockLocation) -> bool {
        let BlockLocation { worker, address, .. } = block;
        let is_here = address.rsplit_once(':').is_some_and(|(host, _)| host == self.host);
        let may_be_found = || self.misses.lock().get(worker).is_none_or(|had| *had < MISSES_MAX);
        is_here && may_be_found() && !peers.was_silent(address)
    }

    fn count_miss(&self, worker: &str, problem: &str) {
        let mut misses = self.misses.lock();
        let had = misses.entry(worker.to_owned()).or_default();
        *had += 1;
        if *had == MISSES_MAX {
            tracing::info!(
                "blocks of worker {worker} are fetched from now on: its files are not read here, \
                 though it has the same --host: {problem}"
            );
        }
    }
}

/// Asks a worker where the files of blocks are.
async fn find(
    peers: &Peers,
    address: &str,
    blocks: &[BlockLocation],
) -> Result<Vec<BlockFilePart>, Status> {
    let Some((first, more)) = blocks.split_first() else { return Ok(vec![]) };
    let mut worker = BlocksClient::new(peers.channel(address, CONNECT_LIMIT)?);
    let answer = worker.find(FetchRequest::new(first.clone(), more.to_vec()));
    let late = |_| Status::deadline_exceeded("no answer");
    Ok(timeout(ASKED_FOR, answer).await.map_err(late)??.into_inner().files)
}

/// Reads files; if that fails, says why.
async fn read(blocks: Vec<BlockLocation>, files: Vec<BlockFilePart>) -> Result<Vec<Bytes>, String> {
    let read = on_disk_of_neighbour(move || read_all(&blocks, &files));
    let read = timeout(READ_FOR, read).await;
    let read = read.map_err(|_| format!("nothing for {READ_FOR:?}"))?;
    read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn read_all(blocks: &[BlockLocation], files: &[BlockFilePart]) -> Result<Vec<Bytes>, BlockError> {
    let read = |(at, block): (usize, &BlockLocation)| {
        let file =
            files.get(at).ok_or_else(|| BlockError::new(block, "nobody says where it is"))?;
        let place = match file.at {
            None => Place::Whole,
            Some(at) => Place::Part { of: block.id, at, is_direct: file.is_direct },
        };
        BlockFile::open(block, Path::new(&file.path), place)?.whole(block)
    };
    blocks.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use datafusion::common::exec_err;
    use datafusion::common::runtime::SpawnedTask;
    use tempfile::TempDir;
    use tokio::net::TcpListener;
    use tonic::{Request, Response};

    use super::super::open_block::OpenBlock;
    use super::super::store::BlockStore;
    use super::*;
    use crate::protocol::Answers;
    use crate::protocol::blocks_server::{Blocks, BlocksServer};
    use crate::protocol::connection::serve;
    use crate::protocol::location::FileId;
    use crate::protocol::messages::{BlockFiles, Chunk};

    const FETCHED: &[u8] = b"fetched";

    /// What a worker says of where its files are.
    #[derive(Clone, Debug, PartialEq)]
    enum Says {
        Truth,
        Nothing,
        /// Another path for each of them.
        Path(PathBuf),
        /// Not before the reader has lost patience.
        Later,
    }

    /// A worker that says where its files are, and has nothing fetched.
    #[derive(Clone)]
    struct Worker {
        store: Arc<BlockStore>,
        says: Arc<Mutex<Says>>,
        asked: Arc<AtomicUsize>,
    }

    #[tonic::async_trait]
    impl Blocks for Worker {
        type FetchStream = Answers<Chunk>;

        async fn fetch(
            &self,
            _: Request<FetchRequest>,
        ) -> Result<Response<Self::FetchStream>, Status> {
            Err(Status::unimplemented("files only"))
        }

        async fn find(
            &self,
            request: Request<FetchRequest>,
        ) -> Result<Response<BlockFiles>, Status> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let mut found = self.store.find(request).await?;
            let says = self.says.lock().clone();
            match says {
                Says::Truth => {}
                Says::Nothing => found.get_mut().files.clear(),
                Says::Path(other) => {
                    for file in &mut found.get_mut().files {
                        file.path = other.display().to_string();
                    }
                }
                Says::Later => std::future::pending().await,
            }
            Ok(found)
        }
    }

    /// A worker with blocks of a run, of which all but the first are past the page cache, and one of whose file segments are
    /// read; they are numbered by `seq`.
    struct Stage {
        worker: Worker,
        peers: Peers,
        blocks: Vec<BlockLocation>,
        folder: TempDir,
        _serving: SpawnedTask<()>,
    }

    fn rows(seed: i64) -> RecordBatch {
        let numbers = (0..20_000_i64).map(|at| (at ^ seed).wrapping_mul(0x5851_f42d_4c95_7f2d));
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    impl Stage {
        async fn new() -> Self {
            let folder = TempDir::new().unwrap();
            let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
            let store = Arc::new(store.with_cached_max(1));
            let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = port.local_addr().unwrap().to_string();
            let (says, asked) = (Arc::new(Mutex::new(Says::Truth)), Arc::default());
            let worker = Worker { store: Arc::clone(&store), says, asked };
            let service = BlocksServer::new(worker.clone());
            let routes = tonic::transport::Server::builder().add_service(service);
            let serving = SpawnedTask::spawn(async move { drop(serve(routes, port, None).await) });
            let mut blocks = vec![];
            for seq in 0..4 {
                let id = FileId { stage: 1, task: 2, seq };
                let rows = rows(seq.into());
                let mut block = OpenBlock::create_run(&store, "job", id, &rows).unwrap();
                block.write(&rows).await.unwrap();
                let (sealed, ended, written) = block.seal_within().unwrap();
                let id_behind = FileId { stage: 2, ..id };
                let mut behind = OpenBlock::within(written.for_block(id_behind), &rows).unwrap();
                behind.write(&rows).await.unwrap();
                let (sealed_behind, ended_behind, written) = behind.seal_within().unwrap();
                drop(written);
                for (id, sealed, ended) in
                    [(id, sealed, ended), (id_behind, sealed_behind, ended_behind)]
                {
                    ended.keep().await.unwrap();
                    blocks.push(BlockLocation {
                        job: "job".to_owned(),
                        id,
                        worker: "w".to_owned(),
                        address: address.clone(),
                        bytes: sealed.bytes,
                        rows: sealed.rows,
                        checksum: sealed.checksum,
                        segment_at: None,
                    });
                }
            }
            let segment = fs::read(folder.path().join("job/1/blocks/2-0.arrow")).unwrap();
            let id = FileId { stage: 3, task: 0, seq: 0 };
            let dealt = folder.path().join("job/3/blocks");
            fs::create_dir_all(&dealt).unwrap();
            fs::write(dealt.join("0-0.arrow"), &segment).unwrap();
            for (at, bytes) in [(0, 1000), (1000, 50_000), (300_000, 1)] {
                let checksum = crc32fast::hash(&segment[at..at + bytes]);
                let (at, bytes) = (Some(at as u64), bytes as u64);
                let first = blocks[0].clone();
                blocks.push(BlockLocation { id, bytes, checksum, segment_at: at, ..first });
            }
            Self { worker, peers: Peers::default(), blocks, folder, _serving: serving }
        }

        /// What is read, or what is fetched instead.
        async fn read(&self, neighbours: &Neighbours) -> Vec<Bytes> {
            let fetch = async { Ok(vec![Bytes::from_static(FETCHED)]) };
            neighbours.read_or(&self.peers, &self.blocks, fetch).await.unwrap()
        }

        /// Whether they are fetched.
        async fn fetches(&self, neighbours: &Neighbours) -> bool {
            self.read(neighbours).await == [FETCHED]
        }

        fn says(&self, says: Says) {
            *self.worker.says.lock() = says;
        }

        fn asked(&self) -> usize {
            self.worker.asked.load(Ordering::Relaxed)
        }
    }

    fn here() -> Neighbours {
        Neighbours::at("127.0.0.1".to_owned())
    }

    #[tokio::test]
    async fn the_files_of_a_neighbour_are_read_as_it_reads_them_itself() {
        let stage = Stage::new().await;
        let own = stage.blocks.iter().map(|block| stage.worker.store.read(block).unwrap());
        let own: Vec<Bytes> = own.collect();
        assert_eq!(stage.read(&here()).await, own);
        assert!(stage.fetches(&Neighbours::at("127.0.0.2".to_owned())).await);
        assert_eq!(stage.asked(), 1);
        stage.peers.hang_up(&stage.blocks[0].address, true);
        assert!(stage.fetches(&here()).await);
        assert_eq!(stage.asked(), 1, "one that was silent is not asked");
    }

    #[tokio::test]
    async fn what_is_not_the_block_is_fetched() {
        let stage = Stage::new().await;
        let whole = stage.folder.path().join("job/1/blocks/2-3.arrow");
        let damage = || {
            let mut bytes = fs::read(&whole).unwrap();
            bytes[100] ^= 1;
            fs::write(&whole, bytes).unwrap();
        };
        stage.says(Says::Nothing);
        assert!(stage.fetches(&here()).await);
        stage.says(Says::Path(whole.clone()));
        assert!(stage.fetches(&here()).await);
        stage.says(Says::Truth);
        assert!(!stage.fetches(&here()).await);
        damage();
        assert!(stage.fetches(&here()).await);
        damage();
        assert!(!stage.fetches(&here()).await);
        fs::remove_file(&whole).unwrap();
        assert!(stage.fetches(&here()).await);
        assert_eq!(stage.asked(), 6);
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let block = BlockLocation::default();
        for path in [folder.path().to_owned(), pipe, "/dev/zero".into()] {
            for is_direct in [false, true] {
                let path = path.display().to_string();
                let file = BlockFilePart { path: path.clone(), at: Some(0), is_direct };
                let error = read_all(std::slice::from_ref(&block), &[file]).unwrap_err();
                assert!(error.problem.contains("is no file"), "{path}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn a_worker_whose_files_are_not_here_is_not_asked_for_ever() {
        let stage = Stage::new().await;
        let neighbours = here();
        let elsewhere = || stage.says(Says::Path(stage.folder.path().join("elsewhere")));
        elsewhere();
        for _ in 1..MISSES_MAX {
            assert!(stage.fetches(&neighbours).await);
        }
        stage.says(Says::Truth);
        assert!(!stage.fetches(&neighbours).await);
        elsewhere();
        // What nobody can have, as it was removed, is none.
        for _ in 0..MISSES_MAX {
            let fetch = async { exec_err!("gone") };
            neighbours.read_or(&stage.peers, &stage.blocks, fetch).await.unwrap_err();
        }
        for _ in 0..2 * MISSES_MAX {
            assert!(stage.fetches(&neighbours).await);
        }
        assert_eq!(stage.asked(), 3 * MISSES_MAX as usize);
    }

    #[tokio::test]
    async fn one_that_does_not_answer_is_not_waited_for() {
        let stage = Stage::new().await;
        stage.says(Says::Later);
        assert!(stage.fetches(&here()).await);
        assert_eq!(stage.asked(), 1);
    }
}
