//! The block files of one worker, and the room that they take.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{Result, exec_err};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::block_file::BlockFile;
use super::compression::ByteCost;
use super::failure::BlockError;
use super::job_blocks::{JobBlocks, Place};
use super::past_cache;
use super::room::{Full, Room};
use crate::protocol::location::{BlockLocation, FileId};

/// Writes, keeps, finds and removes block files, within a number of bytes.
#[derive(Debug)]
pub struct BlockStore {
    worker: String,
    folder: PathBuf,
    room: Arc<Room>,
    /// With so many bytes of blocks the page cache has enough.
    cached_max: u64,
    direct_files: Arc<Semaphore>,
    cost: ByteCost,
    /// What is sealed, by job.
    sealed: Mutex<HashMap<String, JobBlocks>>,
    /// Jobs that need no blocks any more; a task of theirs may still run for a moment.
    forgotten: Mutex<VecDeque<String>>,
}

/// Jobs to remember as forgotten.
const FORGOTTEN_MAX: usize = 1000;

impl BlockStore {
    /// The blocks of `worker` in `folder`, at most `bytes_max` bytes of them.
    pub fn new(worker: String, folder: PathBuf, bytes_max: u64) -> Self {
        Self {
            worker,
            folder,
            room: Room::new(bytes_max),
            cached_max: u64::MAX,
            direct_files: Arc::new(Semaphore::new(past_cache::FILES_MAX)),
            cost: ByteCost::default(),
            sealed: Mutex::default(),
            forgotten: Mutex::default(),
        }
    }

    /// The same, where bytes cost this much.
    #[must_use]
    pub fn with_cost(self, cost: ByteCost) -> Self {
        Self { cost, ..self }
    }

    /// The same, of whose blocks the page cache is to have about so many bytes.
    #[must_use]
    pub fn with_cached_max(self, bytes: u64) -> Self {
        Self { cached_max: bytes, ..self }
    }

    /// Whether the page cache has enough of them: what is written now would not be there any more when it is read, or in the
    /// place of other blocks.
    pub(super) fn fills_cache(&self) -> bool {
        self.room.taken() >= self.cached_max
    }

    /// How many files more may be written past it at a time.
    pub(super) fn direct_files(&self) -> &Arc<Semaphore> {
        &self.direct_files
    }

    pub(super) fn cost(&self) -> &ByteCost {
        &self.cost
    }

    /// Seconds that a byte costs, if that is known. Where room is limited it costs what no clock tells.
    pub(super) fn seconds_per_byte(&self) -> Option<f64> {
        if self.room.is_limited() { None } else { self.cost.seconds() }
    }

    /// The worker whose blocks these are.
    pub fn worker(&self) -> &str {
        &self.worker
    }

    pub(super) fn room(&self) -> Arc<Room> {
        Arc::clone(&self.room)
    }

    /// Jobs of which there are files.
    pub fn jobs(&self) -> Vec<String> {
        self.sealed.lock().keys().cloned().collect()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.room.taken()
    }

    /// Until a task waits for room.
    pub async fn wanted(&self) {
        self.room.wanted().await;
    }

    /// Where a block will be.
    ///
    /// # Errors
    /// If the job is over, or its name is none.
    pub(super) fn place_of(&self, job: &str, id: FileId) -> Result<PathBuf> {
        let path = self.path(job, id)?;
        if self.is_forgotten(job) {
            return exec_err!("job {job} is over");
        }
        Ok(path)
    }

    /// The file of a block that is here, or its segment, if it is as it was sealed: all of it at once, as many bytes as
    /// [`BlockLocation::bytes`] says, which the caller reserves before.
    ///
    /// # Errors
    /// If it is gone or damaged.
    pub fn read(&self, location: &BlockLocation) -> Result<Bytes, BlockError> {
        self.open(location)?.whole(location)
    }

    /// The file of a block that is here, from where what is wanted of it begins.
    ///
    /// # Errors
    /// If it is gone, or its file has another size, or is too short where it has others, too.
    pub(super) fn open(&self, location: &BlockLocation) -> Result<BlockFile, BlockError> {
        let (path, place) = self.file_of(location)?;
        BlockFile::open(location, &path, place)
    }

    /// The file where a block lies if it is here, and its place in it. Whether there is such a file is not looked at.
    ///
    /// # Errors
    /// If the job's name is none.
    pub(super) fn file_of(&self, location: &BlockLocation) -> Result<(PathBuf, Place), BlockError> {
        let (job, id) = (&location.job, location.id);
        let place = self.sealed.lock().get(job).and_then(|sealed| sealed.place(id));
        let place = place.unwrap_or(Place::Whole);
        let path = self.path(job, place.file(id));
        let path = path.map_err(|error| BlockError::new(location, error.strip_backtrace()))?;
        Ok((path, place))
    }

    /// Removes a block, if it is here; its file, once that has no other.
    pub fn remove(&self, job: &str, id: FileId) {
        let gone = match self.sealed.lock().get_mut(job) {
            Some(sealed) => sealed.remove(id),
            None => Some((id, 0)),
        };
        let Some((file, bytes)) = gone else { return };
        let Ok(path) = self.path(job, file) else { return };
        fs::remove_file(&path).ok();
        self.room.give_back_sealed(bytes);
    }

    /// Removes all that a job has. What a task of it still completes is not kept.
    pub fn forget(&self, job: &str) {
        self.remember_forgotten(job);
        self.remove_job(job);
    }

    /// Removes all that a job has until now.
    pub fn remove_job(&self, job: &str) {
        let Ok(folder) = self.job_folder(job) else { return };
        remove_folder(&folder);
        let sealed = self.sealed.lock().remove(job).unwrap_or_default();
        self.room.give_back_sealed(sealed.bytes());
    }

    /// Removes all that some stages of a job have until now.
    pub fn remove_stages(&self, job: &str, stages: &[u32]) {
        let Ok(folder) = self.job_folder(job) else { return };
        for stage in stages {
            remove_folder(&folder.join(stage.to_string()));
        }
        let removed = self.sealed.lock().get_mut(job).map(|sealed| sealed.remove_stages(stages));
        self.room.give_back_sealed(removed.unwrap_or(0));
    }

    /// Counts a block that is complete.
    pub(super) fn keep(&self, job: &str, id: FileId, bytes: u64, place: Place) -> Result<()> {
        let mut sealed = self.sealed.lock();
        // Under the lock: a job is not forgotten between this and the next line.
        if self.is_forgotten(job) {
            return exec_err!("job {job} is over");
        }
        if !sealed.entry(job.to_owned()).or_default().keep(id, bytes, place) {
            return exec_err!("block {id} of job {job}: its file was removed while it was written");
        }
        self.room.seal(bytes);
        Ok(())
    }

    fn remember_forgotten(&self, job: &str) {
        let mut forgotten = self.forgotten.lock();
        forgotten.push_back(job.to_owned());
        if forgotten.len() > FORGOTTEN_MAX {
            forgotten.pop_front();
        }
    }

    fn is_forgotten(&self, job: &str) -> bool {
        self.forgotten.lock().iter().any(|forgotten| forgotten == job)
    }

    fn path(&self, job: &str, id: FileId) -> Result<PathBuf> {
        let stage = self.job_folder(job)?.join(id.stage.to_string()).join(BLOCKS);
        Ok(stage.join(format!("{}-{}.arrow", id.task, id.seq)))
    }

    /// A job's name comes from outside: it must not lead out of the folder.
    fn job_folder(&self, job: &str) -> Result<PathBuf> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if job.is_empty() || !job.chars().all(is_plain) {
            return exec_err!("'{job}' is not a valid name of a job");
        }
        Ok(self.folder.join(job))
    }

    /// What is full.
    pub(super) fn taken(&self, full: Full) -> String {
        let (worker, folder) = (&self.worker, self.folder.display());
        format!("blocks of worker {worker} take {full} in {folder}")
    }
}

/// Within a stage's folder.
const BLOCKS: &str = "blocks";

fn remove_folder(folder: &Path) {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} stays: {error}", folder.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::ipc::reader::StreamReader;
    use forebay_testkit::disk::SmallDisk;
    use futures::FutureExt;
    use tempfile::TempDir;

    use datafusion::common::DataFusionError;

    use super::super::DiskError;
    use super::super::counted_file::CountedFile;
    use super::super::open_block::OpenBlock;
    use super::super::serving::Serving;
    use super::*;

    const ID: FileId = FileId { stage: 1, task: 2, seq: 3 };

    fn rows() -> RecordBatch {
        let column = Arc::new(Int64Array::from_iter_values(0..1000)) as ArrayRef;
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    fn store(folder: &TempDir, bytes_max: u64) -> Arc<BlockStore> {
        Arc::new(BlockStore::new("w".to_owned(), folder.path().to_owned(), bytes_max))
    }

    async fn written(store: &Arc<BlockStore>) -> BlockLocation {
        let mut block = OpenBlock::create(store, "job", ID, &rows()).unwrap();
        block.write(&rows()).await.unwrap();
        let sealed = block.seal().unwrap();
        BlockLocation {
            job: "job".to_owned(),
            id: ID,
            worker: "w".to_owned(),
            address: String::new(),
            bytes: sealed.bytes,
            rows: sealed.rows,
            checksum: sealed.checksum,
            segment_at: None,
        }
    }

    #[tokio::test]
    async fn a_block_is_read_as_it_was_sealed_and_counted_until_it_is_removed() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        let location = written(&store).await;
        assert_eq!((location.rows, location.bytes), (1000, store.bytes()));
        assert_eq!(store.read(&location).unwrap().len() as u64, location.bytes);
        store.remove("job", ID);
        assert_eq!(store.bytes(), 0);
        assert!(store.read(&location).unwrap_err().to_string().contains("block 1/2/3 on worker w"));
    }

    #[tokio::test]
    async fn damage_is_found() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        let location = written(&store).await;
        let path = store.path("job", ID).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let error = store.read(&location).unwrap_err().to_string();
            assert!(error.contains("checksum"), "{error}");
        }
        for other in [whole[..whole.len() - 1].to_vec(), [&whole[..], b"!"].concat()] {
            fs::write(&path, other).unwrap();
            let error = store.read(&location).unwrap_err().to_string();
            assert!(error.contains("bytes instead of"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_full_store_says_so_and_keeps_nothing_of_the_block() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, 1000);
        let mut block = OpenBlock::create(&store, "job", ID, &rows()).unwrap();
        let error = block.write(&rows()).await.and_then(|()| block.seal().map(|_| ())).unwrap_err();
        assert!(error.to_string().contains("of 1000 bytes"), "{error}");
        assert_eq!(store.bytes(), 0);
        assert_eq!(fs::read_dir(folder.path().join("job/1/blocks")).unwrap().count(), 0);
    }

    /// Why a block of a hundred thousand rows cannot be written.
    async fn write_error(store: &Arc<BlockStore>) -> DiskError {
        let column = Arc::new(Int64Array::from_iter((0..100_000).map(|n| n * 7919 % 100_003)));
        let rows = RecordBatch::try_from_iter([("n", column as ArrayRef)]).unwrap();
        let write = async {
            let mut block = OpenBlock::create(store, "job", ID, &rows)?;
            block.write(&rows).await?;
            block.seal()
        };
        let DataFusionError::External(error) = write.await.unwrap_err() else { panic!("no kind") };
        *error.downcast().unwrap()
    }

    #[tokio::test]
    async fn a_file_system_without_room_is_full_and_one_that_refuses_is_broken() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        match SmallDisk::mount(folder.path(), 64 << 10) {
            Ok(_disk) => {
                let error = write_error(&store).await;
                assert!(matches!(error, DiskError::Full(_)), "{error:?}");
                for part in ["No space left on device", "make room on that disk"] {
                    assert!(error.to_string().contains(part), "{error}");
                }
            }
            Err(problem) => println!("not tried on a full file system: {problem}"),
        }
        assert_eq!(store.bytes(), 0);
        // Refused to root as well.
        fs::write(folder.path().join("job"), "a file where a folder should be").unwrap();
        let error = write_error(&store).await;
        assert!(matches!(error, DiskError::Broken(_)), "{error:?}");
        for part in ["Not a directory", "job/1/blocks", "another --work-dir"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn what_the_device_refuses_in_the_middle_of_a_block_keeps_its_kind() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        let path = store.path("job", ID).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Opens well, and is full at the first byte that is written through.
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        assert!(matches!(write_error(&store).await, DiskError::Full(_)));
    }

    #[tokio::test]
    async fn a_block_that_is_dropped_leaves_nothing() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        let mut block = OpenBlock::create(&store, "job", ID, &rows()).unwrap();
        block.write(&rows()).await.unwrap();
        drop(block);
        assert_eq!(store.bytes(), 0);
        assert_eq!(fs::read_dir(folder.path().join("job/1/blocks")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn blocks_in_one_file_are_read_and_removed_one_by_one() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        let id = |seq| FileId { seq, ..ID };
        let mut file = CountedFile::create(&store, "job", id(0)).unwrap();
        let mut locations = vec![];
        for seq in 0..3 {
            let mut block = OpenBlock::within(file.for_block(id(seq)), &rows()).unwrap();
            (0..=seq).for_each(|_| block.write(&rows()).now_or_never().unwrap().unwrap());
            let (sealed, ended);
            (sealed, ended, file) = block.seal_within().unwrap();
            assert_eq!(sealed.rows, 1000 * (1 + u64::from(seq)));
            assert_eq!(ended.keep().await.unwrap(), sealed.bytes);
            let (bytes, rows, checksum) = (sealed.bytes, sealed.rows, sealed.checksum);
            let (job, worker) = ("job".to_owned(), "w".to_owned());
            let location =
                BlockLocation { job, worker, bytes, rows, checksum, ..Default::default() };
            locations.push(BlockLocation { id: id(seq), ..location });
        }
        let bytes: u64 = locations.iter().map(|location| location.bytes).sum();
        let path = store.path("job", id(0)).unwrap();
        // One that is not completed leaves the others.
        let mut block = OpenBlock::within(file.for_block(id(3)), &rows()).unwrap();
        block.write(&rows()).await.unwrap();
        drop(block);
        assert_eq!((store.bytes(), fs::metadata(&path).unwrap().len()), (bytes, bytes));
        for location in &locations {
            let read = store.read(location).unwrap();
            let batches = StreamReader::try_new(&read[..], None).unwrap().map(Result::unwrap);
            assert!(batches.map(|batch| batch.num_rows() as u64).sum::<u64>() == location.rows);
        }
        // What is gone twice takes nothing from others.
        store.remove("job", id(0));
        store.remove("job", id(0));
        store.remove("job", id(2));
        assert!(store.read(&locations[0]).is_err());
        store.read(&locations[1]).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..locations[0].bytes as usize + 10]).unwrap();
        let error = store.read(&locations[1]).unwrap_err().to_string();
        assert!(error.contains(&format!("begin at {} are wanted", locations[0].bytes)), "{error}");
        assert_eq!(store.bytes(), bytes, "the file is there");
        store.remove("job", id(1));
        assert_eq!((store.bytes(), path.exists()), (0, false));
    }

    #[tokio::test]
    async fn with_many_blocks_those_of_runs_go_past_the_page_cache() {
        let folder = TempDir::new().unwrap();
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let store = Arc::new(store.with_cached_max(1));
        let (mut locations, mut kept) = (vec![], 0);
        // Each file has two blocks. When the second one is made, those of the first are enough for the page cache.
        for file in 0..4_u32 {
            let id = |part| FileId { seq: 2 * file + part, ..ID };
            let mut block = OpenBlock::create_run(&store, "job", id(0), &rows()).unwrap();
            block.write(&rows()).await.unwrap();
            let (one, first, written) = block.seal_within().unwrap();
            let mut block = OpenBlock::within(written.for_block(id(1)), &rows()).unwrap();
            (0..=file).for_each(|_| block.write(&rows()).now_or_never().unwrap().unwrap());
            let (other, second, written) = block.seal_within().unwrap();
            drop(written);
            for (part, sealed, ended) in [(0, one, first), (1, other, second)] {
                let bytes = ended.keep().await.unwrap();
                assert_eq!(bytes, sealed.bytes);
                // With what is between it and the next one.
                kept += if file == 0 { bytes } else { bytes.next_multiple_of(4096) };
                let (rows, checksum) = (sealed.rows, sealed.checksum);
                let (job, worker) = ("job".to_owned(), "w".to_owned());
                let location =
                    BlockLocation { job, worker, bytes, rows, checksum, ..Default::default() };
                locations.push(BlockLocation { id: id(part), ..location });
            }
        }
        assert_eq!(store.bytes(), kept);
        let is_direct = |location: &BlockLocation| store.open(location).unwrap().is_direct();
        let direct: Vec<bool> = locations.iter().map(is_direct).collect();
        assert_eq!(direct, [false, false, true, true, true, true, true, true]);
        for location in &locations {
            let read = store.read(location).unwrap();
            let batches = StreamReader::try_new(&read[..], None).unwrap().map(Result::unwrap);
            assert!(batches.map(|batch| batch.num_rows() as u64).sum::<u64>() == location.rows);
            let mut serving = Serving::open(&store, location.clone()).unwrap();
            let mut served = vec![];
            while let Some(piece) = serving.next().unwrap() {
                served.extend(piece);
            }
            assert!(served == read, "what is served is what is read");
        }
        // Damage is found here, too.
        let path = store.path("job", FileId { seq: 6, ..ID }).unwrap();
        let mut damaged = fs::read(&path).unwrap();
        damaged[100] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert!(store.read(&locations[6]).unwrap_err().to_string().contains("checksum"));
        store.read(&locations[7]).unwrap();
        fs::write(&path, &damaged[..4096]).unwrap();
        assert!(store.read(&locations[7]).unwrap_err().to_string().contains("are wanted"));
        for location in &locations {
            store.remove("job", location.id);
        }
        assert_eq!((store.bytes(), path.exists()), (0, false));
    }

    #[tokio::test]
    async fn a_block_that_nobody_waits_for_gives_its_room_back() {
        let folder = TempDir::new().unwrap();
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let store = Arc::new(store.with_cached_max(0));
        let mut block = OpenBlock::create_run(&store, "job", ID, &rows()).unwrap();
        block.write(&rows()).await.unwrap();
        let (_, ended, written) = block.seal_within().unwrap();
        assert!(store.bytes() > 1000);
        drop(ended);
        assert_eq!(store.bytes(), 0);
        let mut block = OpenBlock::within(written.for_block(ID), &rows()).unwrap();
        block.write(&rows()).await.unwrap();
        drop(block);
        assert_eq!(store.bytes(), 0);
        assert_eq!(fs::read_dir(folder.path().join("job/1/blocks")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_job_is_forgotten_whole() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        written(&store).await;
        store.forget("job");
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn a_jobs_name_does_not_lead_elsewhere() {
        let folder = TempDir::new().unwrap();
        let store = store(&folder, u64::MAX);
        for job in ["", "..", "a/b", "/etc"] {
            assert!(OpenBlock::create(&store, job, ID, &rows()).is_err(), "{job}");
        }
    }
}
