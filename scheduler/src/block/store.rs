//! The block files of one worker, and the room that they take.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{Result, exec_err};
use parking_lot::Mutex;

use super::compression::ByteCost;
use super::failure::BlockError;
use super::room::{Full, Room};
use crate::protocol::location::{BlockLocation, FileId};

/// Writes, keeps, finds and removes block files, within a number of bytes.
#[derive(Debug)]
pub struct BlockStore {
    worker: String,
    folder: PathBuf,
    room: Arc<Room>,
    cost: ByteCost,
    /// Sizes of what is sealed, by job.
    sealed: Mutex<HashMap<String, HashMap<FileId, u64>>>,
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
        let problem = |error: io::Error| BlockError::new(location, error);
        let file = self.open(location)?;
        let size = location.bytes;
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        file.take(size).read_to_end(&mut bytes).map_err(problem)?;
        verify(location, &bytes)?;
        Ok(Bytes::from(bytes))
    }

    /// The file of a block that is here, where what is wanted of it begins.
    ///
    /// # Errors
    /// If it is gone, or has another size.
    pub(super) fn open(&self, location: &BlockLocation) -> Result<File, BlockError> {
        let problem = |problem: &dyn fmt::Display| BlockError::new(location, problem);
        let path = self.path(&location.job, location.id);
        let path = path.map_err(|error| problem(&error.strip_backtrace()))?;
        let mut file = File::open(path).map_err(|error| problem(&error))?;
        // Before it is read: the reader has reserved as much as was sealed.
        location.check_file(file.metadata().map_err(|error| problem(&error))?.len())?;
        if let Some(at) = location.segment_at {
            file.seek(SeekFrom::Start(at)).map_err(|error| problem(&error))?;
        }
        Ok(file)
    }

    /// Removes a block, if it is here.
    pub fn remove(&self, job: &str, id: FileId) {
        let Ok(path) = self.path(job, id) else { return };
        let size = self.sealed.lock().get_mut(job).and_then(|blocks| blocks.remove(&id));
        fs::remove_file(&path).ok();
        self.room.give_back_sealed(size.unwrap_or(0));
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
        let blocks = self.sealed.lock().remove(job).unwrap_or_default();
        self.room.give_back_sealed(blocks.into_values().sum());
    }

    /// Removes all that some stages of a job have until now.
    pub fn remove_stages(&self, job: &str, stages: &[u32]) {
        let Ok(folder) = self.job_folder(job) else { return };
        for stage in stages {
            remove_folder(&folder.join(stage.to_string()));
        }
        let mut removed = 0;
        if let Some(blocks) = self.sealed.lock().get_mut(job) {
            let gone = blocks.extract_if(|id, _| stages.contains(&id.stage));
            removed += gone.map(|(_, bytes)| bytes).sum::<u64>();
        }
        self.room.give_back_sealed(removed);
    }

    /// Counts a block that is complete.
    pub(super) fn keep(&self, job: &str, id: FileId, bytes: u64) -> Result<()> {
        let mut sealed = self.sealed.lock();
        // Under the lock: a job is not forgotten between this and the next line.
        if self.is_forgotten(job) {
            return exec_err!("job {job} is over");
        }
        sealed.entry(job.to_owned()).or_default().insert(id, bytes);
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

/// Whether these are the bytes of the block.
///
/// # Errors
/// Says how they differ.
pub(super) fn verify(location: &BlockLocation, bytes: &[u8]) -> Result<(), BlockError> {
    location.check_size(bytes.len() as u64)?;
    location.check_sum(crc32fast::hash(bytes))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use forebay_testkit::disk::SmallDisk;
    use tempfile::TempDir;

    use datafusion::common::DataFusionError;

    use super::super::DiskError;
    use super::super::open_block::OpenBlock;
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
