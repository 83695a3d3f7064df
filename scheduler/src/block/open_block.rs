//! A block that is being written.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use datafusion::common::Result;

use super::counted_file::{CountedFile, EndedBlock, unwritten};
use super::store::BlockStore;
use crate::graph::{RunBlock, Segments};
use crate::protocol::location::FileId;

/// A block that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its size: of the rows as they are encoded, compressed perhaps.
    pub bytes: u64,
    /// Its rows, which a reader checks.
    pub rows: u64,
    /// CRC-32 of these bytes.
    pub checksum: u32,
    /// What else there is to a block of a sorted run.
    pub run: Option<RunBlock>,
    /// What it has of each partition of a hash shuffle.
    pub segments: Option<Segments>,
}

/// A block that is being written; gone if it is not sealed.
pub struct OpenBlock {
    path: PathBuf,
    rows: u64,
    writer: StreamWriter<CountedFile>,
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
    /// If the file cannot be made: a [`DiskError`](super::failure::DiskError), unless the job is over.
    pub fn create(
        store: &Arc<BlockStore>,
        job: &str,
        id: FileId,
        first: &RecordBatch,
    ) -> Result<Self> {
        Self::within(CountedFile::create(store, job, id)?, first)
    }

    /// The same for the first block of a run, whose others [follow](Self::within) in the same file.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn create_run(
        store: &Arc<BlockStore>,
        job: &str,
        id: FileId,
        first: &RecordBatch,
    ) -> Result<Self> {
        Self::within(CountedFile::create_run(store, job, id)?, first)
    }

    /// The same in a file that may have other blocks already.
    ///
    /// # Errors
    /// A [`DiskError`](super::failure::DiskError).
    pub(super) fn within(mut file: CountedFile, first: &RecordBatch) -> Result<Self> {
        let path = file.path().to_owned();
        let compression = file.compression(first);
        let options = IpcWriteOptions::default().try_with_compression(compression)?;
        let writer = StreamWriter::try_new_with_options(file, &first.schema(), options);
        let writer = writer.map_err(|error| unwritten(&path, error))?;
        Ok(Self { path, rows: 0, writer })
    }

    /// Adds rows; waits until there is room for them.
    ///
    /// # Errors
    /// A [`DiskError`](super::failure::DiskError) if the disk fails or is full, or the store is and nothing is about to be
    /// removed from it.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        self.writer.get_mut().reserve_for(batch).await;
        let written = self.writer.write(batch).map_err(|error| unwritten(&self.path, error));
        self.writer.get_mut().release();
        written
    }

    /// Completes the block, which has the file for itself.
    ///
    /// # Errors
    /// A [`DiskError`](super::failure::DiskError) if the disk fails, or it or the store is full.
    pub fn seal(self) -> Result<Sealed> {
        let (mut sealed, file) = self.finish()?;
        sealed.bytes = file.keep()?;
        Ok(sealed)
    }

    /// Ends the block, which is complete when it is [kept](EndedBlock::keep), and gives the file for the next one.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub(super) fn seal_within(self) -> Result<(Sealed, EndedBlock, CountedFile)> {
        let (sealed, mut file) = self.finish()?;
        let ended = file.end_part()?;
        Ok((sealed, ended, file))
    }

    fn finish(self) -> Result<(Sealed, CountedFile)> {
        let (path, rows) = (self.path, self.rows);
        let mut file = self.writer.into_inner().map_err(|error| unwritten(&path, error))?;
        let checksum = file.take_hasher().finalize();
        Ok((Sealed { bytes: file.bytes(), rows, checksum, run: None, segments: None }, file))
    }
}
