//! The file of a block, or of several, while it is written: it knows their sizes and checksums, and asks for room before it
//! grows.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use datafusion::common::{DataFusionError, Result};
use forebay_engine::weight;

use super::compression;
use super::failure::DiskError;
use super::job_blocks::Place;
use super::past_cache::{DirectFile, OnDisk, STEP};
use super::room::Full;
use super::store::BlockStore;
use crate::protocol::location::FileId;

/// Such a file; what is not kept of it is gone.
pub(super) struct CountedFile {
    store: Arc<BlockStore>,
    file: Output,
    path: PathBuf,
    job: String,
    /// The block that is being written.
    id: FileId,
    /// The first one, by which the file is named, and where the blocks that have ended end.
    first: FileId,
    ended: u64,
    /// Of what was written since it was last asked for.
    checksum: crc32fast::Hasher,
    /// Of the block.
    bytes: u64,
    /// Room that is its own already.
    reserved: u64,
    /// Bytes of which it is known how long they took.
    written: u64,
    took: Duration,
    /// Until a block of it is kept, it is gone when nobody has it any more.
    whole: Arc<KeptFile>,
    /// How all of its blocks are, once the first one is begun.
    compression: Option<Option<CompressionType>>,
    remedy: Remedy,
}

/// How bytes get into the file.
enum Output {
    /// By way of the page cache.
    Cached(BufWriter<File>),
    /// [Past it](super::past_cache).
    Direct(Box<DirectFile>),
}

/// A file that is removed if no block of it is kept.
struct KeptFile {
    path: PathBuf,
    has_blocks: AtomicBool,
}

/// A block that is complete, but for the disk perhaps; its room is given back if it is not [kept](Self::keep).
pub(super) struct EndedBlock {
    store: Arc<BlockStore>,
    job: String,
    id: FileId,
    place: Place,
    bytes: u64,
    /// What it takes of the file.
    room: u64,
    whole: Arc<KeptFile>,
    /// Until it is on the disk.
    on_disk: Option<OnDisk>,
}

/// What is full, and what to do about it.
pub(super) type Remedy = fn(&BlockStore, Full) -> String;

/// Of smaller writes, which are buffered, it is not known how long they took.
const TIMED_BYTES: usize = 64 << 10;

const BLOCK: Remedy = |store, full| {
    format!("{}; raise --work-limit, or lower forebay.edge_budget", store.taken(full))
};

impl fmt::Debug for CountedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl CountedFile {
    /// A new file for a block.
    ///
    /// # Errors
    /// If it cannot be made: a [`DiskError`], unless the job is over.
    pub(super) fn create(store: &Arc<BlockStore>, job: &str, id: FileId) -> Result<Self> {
        let path = store.place_of(job, id)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| DiskError::new(parent, &error))?;
        }
        let file = File::create(&path).map_err(|error| DiskError::new(&path, &error))?;
        Ok(Self {
            store: Arc::clone(store),
            file: Output::Cached(BufWriter::new(file)),
            whole: Arc::new(KeptFile { path: path.clone(), has_blocks: AtomicBool::new(false) }),
            path,
            job: job.to_owned(),
            id,
            first: id,
            ended: 0,
            checksum: crc32fast::Hasher::new(),
            bytes: 0,
            reserved: 0,
            written: 0,
            took: Duration::ZERO,
            compression: None,
            remedy: BLOCK,
        })
    }

    /// A new file for blocks of a run, which are read when all runs are there: past the page cache, if that has enough
    /// blocks by now.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn create_run(store: &Arc<BlockStore>, job: &str, id: FileId) -> Result<Self> {
        let mut created = Self::create(store, job, id)?;
        if store.fills_cache()
            && let Output::Cached(file) = &created.file
            && let Some(direct) = DirectFile::of(file.get_ref(), store.direct_files())
        {
            created.file = Output::Direct(Box::new(direct));
        }
        Ok(created)
    }

    /// The same file, for one more block behind those that it has.
    pub(super) fn for_block(mut self, id: FileId) -> Self {
        self.id = id;
        self
    }

    /// The same file, of which a full store says this.
    pub(super) fn with_remedy(mut self, remedy: Remedy) -> Self {
        self.remedy = remedy;
        self
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How a block is compressed whose first rows are these: as the others in the file, which have rows like them. To find
    /// out takes as long as to write some of them.
    pub(super) fn compression(&mut self, first: &RecordBatch) -> Option<CompressionType> {
        let decide = || compression::for_rows_like(first, self.store.seconds_per_byte());
        *self.compression.get_or_insert_with(decide)
    }

    /// Bytes of the block so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the blocks that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// What counts the CRC-32 of what was written since this was last asked.
    pub(super) fn take_hasher(&mut self) -> crc32fast::Hasher {
        std::mem::take(&mut self.checksum)
    }

    /// Waits for room for rows as they are. If that is more than all that there is, perhaps it is less when they are
    /// compressed.
    pub(super) async fn reserve_for(&mut self, batch: &RecordBatch) {
        let needed = weight::bytes(batch) as u64;
        if let Ok(()) = self.store.room().wait(needed).await {
            self.reserved = needed;
        }
    }

    /// It is complete, and one block: counted until it is removed. Its bytes.
    ///
    /// # Errors
    /// A [`DiskError`] if the disk fails, or it is full; or if the job is over.
    pub(super) fn keep(mut self) -> Result<u64> {
        self.end_block(Place::Whole)?.keep_now()
    }

    /// The block is complete, and others may follow in the same file.
    ///
    /// # Errors
    /// A [`DiskError`] if the disk fails, or it is full.
    pub(super) fn end_part(&mut self) -> Result<EndedBlock> {
        let is_direct = matches!(self.file, Output::Direct(_));
        self.end_block(Place::Part { of: self.first, at: self.ended, is_direct })
    }

    fn end_block(&mut self, place: Place) -> Result<EndedBlock> {
        let bytes = self.bytes;
        if let Output::Direct(_) = &self.file {
            let padding = bytes.next_multiple_of(STEP as u64) - bytes;
            self.take(padding).map_err(|error| DiskError::new(&self.path, &error))?;
            self.bytes += padding;
        }
        let on_disk = match &mut self.file {
            Output::Cached(file) => {
                file.flush().map_err(|error| DiskError::new(&self.path, &error))?;
                None
            }
            Output::Direct(file) => Some(file.end_part()),
        };
        let (written, took) = (&mut self.written, &mut self.took);
        self.store.cost().wrote(std::mem::take(written), std::mem::take(took));
        let room = std::mem::take(&mut self.bytes);
        self.ended += room;
        Ok(EndedBlock {
            store: Arc::clone(&self.store),
            job: self.job.clone(),
            id: self.id,
            place,
            bytes,
            room,
            whole: Arc::clone(&self.whole),
            on_disk,
        })
    }

    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let reserved = bytes.min(self.reserved);
        let taken = self.store.room().take(bytes - reserved);
        taken.map_err(|full| {
            let full = DiskError::Full((self.remedy)(&self.store, full));
            io::Error::new(io::ErrorKind::QuotaExceeded, full)
        })?;
        self.reserved -= reserved;
        Ok(())
    }

    /// Gives back what was reserved and not needed.
    pub(super) fn release(&mut self) {
        self.store.room().give_back_open(std::mem::take(&mut self.reserved));
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.release();
        if self.bytes > 0
            && let Output::Cached(file) = &mut self.file
        {
            // What is buffered would be written when the buffer is dropped.
            file.flush().ok();
            file.get_ref().set_len(self.ended).ok();
        }
        self.store.room().give_back_open(self.bytes);
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if !self.has_blocks.load(Ordering::Acquire) {
            fs::remove_file(&self.path).ok();
        }
    }
}

impl Write for CountedFile {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.take(buffer.len() as u64)?;
        // Before it is written: what fails is given back as well.
        self.bytes += buffer.len() as u64;
        let start = Instant::now();
        match &mut self.file {
            Output::Cached(file) => file.write_all(buffer)?,
            Output::Direct(file) => file.write(buffer)?,
        }
        if buffer.len() >= TIMED_BYTES {
            // With the little that was buffered before it.
            self.written += buffer.len() as u64;
            self.took += start.elapsed();
        }
        self.checksum.update(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.file {
            Output::Cached(file) => file.flush(),
            Output::Direct(_) => Ok(()),
        }
    }
}

impl EndedBlock {
    /// Whether it is on the disk, or as good as that.
    pub(super) fn is_ready(&self) -> bool {
        self.on_disk.as_ref().is_none_or(|on_disk| !on_disk.is_empty())
    }

    /// Counts it, once it is on the disk, until it is removed. Its bytes.
    ///
    /// # Errors
    /// A [`DiskError`] if the disk fails, or it is full; or if the job is over.
    pub(super) async fn keep(mut self) -> Result<u64> {
        if let Some(on_disk) = self.on_disk.take() {
            let gone = |_| Err(io::Error::other("the thread that writes it has ended"));
            let on_disk = on_disk.await.unwrap_or_else(gone);
            on_disk.map_err(|error| DiskError::new(&self.whole.path, &error))?;
        }
        self.keep_now()
    }

    fn keep_now(mut self) -> Result<u64> {
        self.store.keep(&self.job, self.id, self.room, self.place)?;
        self.room = 0;
        self.whole.has_blocks.store(true, Ordering::Release);
        Ok(self.bytes)
    }
}

impl Drop for EndedBlock {
    fn drop(&mut self) {
        self.store.room().give_back_open(self.room);
    }
}

/// What the file system or the store said, without the words of those who passed it on; rows that
/// have no form in a file are no fault of the disk.
pub(super) fn unwritten(path: &Path, error: ArrowError) -> DataFusionError {
    match error {
        ArrowError::IoError(_, source) => DiskError::new(path, &source).into(),
        error => error.into(),
    }
}
