//! Other workers of the same machine, whose files are read as they lie: over the network each byte would be copied some
//! times more. Spark does so, too (`spark.shuffle.readHostLocalDisk`).

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tonic::Status;

use super::block_file::BlockFile;
use super::failure::BlockError;
use super::job_blocks::Place;
use super::on_disk::on_disk;
use crate::protocol::BlocksClient;
use crate::protocol::connection::Peers;
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::{BlockFilePart, FetchRequest};

/// For how long a neighbour is asked where its files are, which it has not to look up on a disk.
const ASKED_FOR: Duration = Duration::from_secs(1);

/// After so many reads in a row that found no file, the worker is none of this machine, or one of another container.
const MISSES_MAX: u32 = 8;

/// The workers that are reached by the name by which this one is. They are asked for their files' paths, as the network may
/// lead elsewhere by that name, and files may not be where they seem to be: what is read is compared with what was sealed.
#[derive(Debug)]
pub struct Neighbours {
    host: String,
    /// By address, reads in a row that found no file.
    misses: Mutex<HashMap<String, u32>>,
}

impl Neighbours {
    /// Those of the worker that is reached by this name or address.
    pub fn at(host: String) -> Self {
        Self { host, misses: Mutex::default() }
    }

    /// Blocks of another worker, or segments of them, if it is a neighbour and its files are here. If not, for whatever
    /// reason, whoever fetches them from the worker is told why it cannot have them.
    pub(super) async fn read(&self, peers: &Peers, blocks: &[BlockLocation]) -> Option<Vec<Bytes>> {
        let address = &blocks.first()?.address;
        if !self.may_have(address) {
            return None;
        }
        let files = find(peers, address, blocks).await.ok()?;
        let blocks = blocks.to_vec();
        let read = on_disk(move || read_all(&blocks, &files)).await.ok()?;
        if let Err(error) = &read {
            tracing::debug!("fetched from {address}, as its files are not here: {error}");
        }
        self.count(address, read.is_err());
        read.ok()
    }

    fn may_have(&self, address: &str) -> bool {
        let is_here = address.rsplit_once(':').is_some_and(|(host, _)| host == self.host);
        is_here && self.misses.lock().get(address).is_none_or(|misses| *misses < MISSES_MAX)
    }

    fn count(&self, address: &str, is_miss: bool) {
        let mut misses = self.misses.lock();
        if is_miss {
            *misses.entry(address.to_owned()).or_default() += 1;
        } else {
            misses.remove(address);
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
    let mut worker = BlocksClient::new(peers.channel(address, ASKED_FOR)?);
    let answer = worker.find(FetchRequest::new(first.clone(), more.to_vec()));
    let late = |_| Status::deadline_exceeded("no answer");
    Ok(tokio::time::timeout(ASKED_FOR, answer).await.map_err(late)??.into_inner().files)
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

        async fn read(&self, neighbours: &Neighbours) -> Option<Vec<Bytes>> {
            neighbours.read(&self.peers, &self.blocks).await
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
        assert_eq!(stage.read(&here()).await.unwrap(), own);
        let other = Neighbours::at("127.0.0.2".to_owned());
        assert_eq!((stage.read(&other).await, stage.asked()), (None, 1));
    }

    #[tokio::test]
    async fn what_is_not_the_block_is_not_read() {
        let stage = Stage::new().await;
        let neighbours = here();
        stage.says(Says::Nothing);
        assert_eq!(stage.read(&neighbours).await, None);
        let pipe = stage.folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let whole = stage.folder.path().join("job/1/blocks/2-3.arrow");
        for path in [stage.folder.path().to_owned(), pipe, "/dev/zero".into(), whole.clone()] {
            stage.says(Says::Path(path));
            assert_eq!(stage.read(&neighbours).await, None);
        }
        stage.says(Says::Truth);
        let mut damaged = fs::read(&whole).unwrap();
        damaged[100] ^= 1;
        fs::write(&whole, damaged).unwrap();
        assert_eq!(stage.read(&neighbours).await, None);
        fs::remove_file(whole).unwrap();
        assert_eq!(stage.read(&neighbours).await, None);
    }

    #[tokio::test]
    async fn a_worker_whose_files_are_not_here_is_not_asked_for_ever() {
        let stage = Stage::new().await;
        let neighbours = here();
        let elsewhere = || stage.says(Says::Path(stage.folder.path().join("elsewhere")));
        elsewhere();
        for _ in 1..MISSES_MAX {
            assert_eq!(stage.read(&neighbours).await, None);
        }
        stage.says(Says::Truth);
        stage.read(&neighbours).await.unwrap();
        elsewhere();
        for _ in 0..2 * MISSES_MAX {
            assert_eq!(stage.read(&neighbours).await, None);
        }
        assert_eq!(stage.asked(), 2 * MISSES_MAX as usize);
    }

    #[tokio::test]
    async fn one_that_does_not_answer_is_not_waited_for() {
        let stage = Stage::new().await;
        stage.says(Says::Later);
        assert_eq!(stage.read(&here()).await, None);
    }
}
