//! A block that is being written: its file asks for room before it grows.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use datafusion::common::{DataFusionError, Result};
use forebay_engine::weight;

use super::compression;
use super::failure::DiskError;
use super::store::BlockStore;
use crate::graph::RunBlock;
use crate::protocol::location::FileId;

/// A block that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Size of its file: of the rows as they are encoded, compressed perhaps.
    pub bytes: u64,
    /// Its rows, which a reader checks.
    pub rows: u64,
    /// CRC-32 of its file.
    pub checksum: u32,
    /// What else there is to a block of a sorted run.
    pub run: Option<RunBlock>,
}

/// A block that is being written; gone if it is not sealed.
pub struct OpenBlock {
    path: PathBuf,
    rows: u64,
    writer: StreamWriter<Counted>,
}

impl fmt::Debug for OpenBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenBlock").field("path", &self.path).finish_non_exhaustive()
    }
}

impl OpenBlock {
    /// Opens a block for writing, whose first rows are `first`: whether it is compressed depends on
    /// them.
    ///
    /// # Errors
    /// If the file cannot be made: a [`DiskError`], unless the job is over.
    pub fn create(
        store: &Arc<BlockStore>,
        job: &str,
        id: FileId,
        first: &RecordBatch,
    ) -> Result<Self> {
        let path = store.place_of(job, id)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| DiskError::new(parent, &error))?;
        }
        let file = File::create(&path).map_err(|error| DiskError::new(&path, &error))?;
        let file = Counted {
            store: Arc::clone(store),
            file: BufWriter::new(file),
            path: path.clone(),
            job: job.to_owned(),
            id,
            checksum: crc32fast::Hasher::new(),
            bytes: 0,
            reserved: 0,
            is_sealed: false,
        };
        let options =
            IpcWriteOptions::default().try_with_compression(compression::for_rows_like(first))?;
        let writer = StreamWriter::try_new_with_options(file, &first.schema(), options);
        let writer = writer.map_err(|error| unwritten(&path, error))?;
        Ok(Self { path, rows: 0, writer })
    }

    /// Adds rows; waits until there is room for them.
    ///
    /// # Errors
    /// A [`DiskError`] if the disk fails or is full, or the store is and nothing is about to be
    /// removed from it.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        let needed = weight::bytes(batch) as u64;
        let file = self.writer.get_mut();
        // More than all that there is: perhaps it is less when it is compressed.
        if let Ok(()) = file.store.room().wait(needed).await {
            file.reserved = needed;
        }
        let written = self.writer.write(batch).map_err(|error| unwritten(&self.path, error));
        self.writer.get_mut().release();
        written
    }

    /// Completes the block.
    ///
    /// # Errors
    /// A [`DiskError`] if the disk fails, or it or the store is full.
    pub fn seal(self) -> Result<Sealed> {
        let (path, rows) = (self.path, self.rows);
        let mut file = self.writer.into_inner().map_err(|error| unwritten(&path, error))?;
        file.file.flush().map_err(|error| DiskError::new(&path, &error))?;
        file.store.keep(&file.job, file.id, file.bytes)?;
        file.is_sealed = true;
        let checksum = std::mem::take(&mut file.checksum).finalize();
        Ok(Sealed { bytes: file.bytes, rows, checksum, run: None })
    }
}

/// What the file system or the store said, without the words of those who passed it on; rows that
/// have no form in a file are no fault of the disk.
fn unwritten(path: &Path, error: ArrowError) -> DataFusionError {
    match error {
        ArrowError::IoError(_, source) => DiskError::new(path, &source).into(),
        error => error.into(),
    }
}

/// A file that knows its size and checksum, and asks before it grows.
#[derive(Debug)]
struct Counted {
    store: Arc<BlockStore>,
    file: BufWriter<File>,
    path: PathBuf,
    job: String,
    id: FileId,
    checksum: crc32fast::Hasher,
    bytes: u64,
    /// Room that is its own already.
    reserved: u64,
    is_sealed: bool,
}

impl Counted {
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let reserved = bytes.min(self.reserved);
        let taken = self.store.room().take(bytes - reserved);
        taken.map_err(|full| {
            let full = DiskError::Full(self.store.full(full));
            io::Error::new(io::ErrorKind::QuotaExceeded, full)
        })?;
        self.reserved -= reserved;
        Ok(())
    }

    /// Gives back what was reserved and not needed.
    fn release(&mut self) {
        self.store.room().give_back_open(std::mem::take(&mut self.reserved));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.release();
        if !self.is_sealed {
            fs::remove_file(&self.path).ok();
            self.store.room().give_back_open(self.bytes);
        }
    }
}

impl Write for Counted {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.take(buffer.len() as u64)?;
        // Before it is written: what fails is given back as well.
        self.bytes += buffer.len() as u64;
        self.file.write_all(buffer)?;
        self.checksum.update(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
