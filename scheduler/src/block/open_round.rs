//! A round of a hash shuffle that is being written: one file, with the partitions' segments one behind the other.
//!
//! ```text
//!  segment of 0      segment of 2          segment of 7
//!  ├── rows ──┤├── rows ── rows ──┤├── rows ──┤        a partition without rows has none
//! ```
//! Each segment is a stream of Arrow's IPC format with its schema and its end, which can be read alone, or several if it
//! was put together of other rounds' (`small_rounds`).

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use datafusion::common::{Result, internal_err, resources_datafusion_err};

use super::compression;
use super::counted_file::{CountedFile, Remedy, unwritten};
use super::failure::DiskError;
use super::open_block::Sealed;
use super::store::BlockStore;
use crate::graph::{Segment, Segments};
use crate::protocol::location::FileId;

/// A round that is being written; gone if it is not sealed.
pub(super) struct OpenRound {
    path: PathBuf,
    options: IpcWriteOptions,
    state: State,
    /// Of the segment that is open.
    rows: u64,
    segments: Vec<Segment>,
    /// Of the segments before it.
    checksum: crc32fast::Hasher,
}

enum State {
    Between(CountedFile),
    Within(Box<StreamWriter<CountedFile>>),
    /// It was dropped with an error.
    Gone,
}

const ROUND: Remedy = |store, full| {
    format!(
        "a task of a hash shuffle has no room for what it wrote: {}; raise --work-limit, or add workers, so \
         that each has a smaller part of the shuffle",
        store.taken(full)
    )
};

impl fmt::Debug for OpenRound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenRound").field("path", &self.path).finish_non_exhaustive()
    }
}

impl OpenRound {
    /// Opens a round for rows like `first`, by which it is decided whether it is compressed.
    ///
    /// # Errors
    /// If the file cannot be made: a `DiskError`, unless the job is over.
    pub(super) fn create(
        store: &Arc<BlockStore>,
        job: &str,
        id: FileId,
        first: &RecordBatch,
    ) -> Result<Self> {
        let compression = compression::for_rows_like(first, store.seconds_per_byte());
        let options = IpcWriteOptions::default().try_with_compression(compression)?;
        Self::create_with(store, job, id, options)
    }

    /// Opens a round to which segments of others are copied.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn create_for_copies(
        store: &Arc<BlockStore>,
        job: &str,
        id: FileId,
    ) -> Result<Self> {
        Self::create_with(store, job, id, IpcWriteOptions::default())
    }

    fn create_with(
        store: &Arc<BlockStore>,
        job: &str,
        id: FileId,
        options: IpcWriteOptions,
    ) -> Result<Self> {
        let file = CountedFile::create(store, job, id)?.with_remedy(ROUND);
        let (path, state) = (file.path().to_owned(), State::Between(file));
        let (segments, checksum) = (vec![], crc32fast::Hasher::new());
        Ok(Self { path, options, state, rows: 0, segments, checksum })
    }

    /// Adds rows to the segment that is open; waits until there is room for them.
    ///
    /// # Errors
    /// A `DiskError` if the disk fails or is full, or the store is and nothing is about to be removed from it.
    pub(super) async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut writer = match std::mem::replace(&mut self.state, State::Gone) {
            State::Within(writer) => writer,
            State::Between(file) => {
                let options = self.options.clone();
                let writer = StreamWriter::try_new_with_options(file, &batch.schema(), options);
                Box::new(writer.map_err(|error| unwritten(&self.path, error))?)
            }
            State::Gone => return internal_err!("a round is written on after an error"),
        };
        writer.get_mut().reserve_for(batch).await;
        writer.write(batch).map_err(|error| unwritten(&self.path, error))?;
        writer.get_mut().release();
        self.rows += batch.num_rows() as u64;
        self.state = State::Within(writer);
        Ok(())
    }

    /// Adds a segment of another round, which stays a stream of its own.
    ///
    /// # Errors
    /// A `DiskError` if the disk fails or is full, or the store is.
    pub(super) fn copy(&mut self, segment: &[u8], rows: u32) -> Result<()> {
        let State::Between(file) = &mut self.state else {
            return internal_err!("a segment is copied into another one");
        };
        file.write_all(segment).map_err(|error| DiskError::new(&self.path, &error))?;
        self.rows += u64::from(rows);
        Ok(())
    }

    /// Ends the segment that is open: it was that of a partition.
    ///
    /// # Errors
    /// As [`Self::write`], and if the file has more bytes than 32 bits can count.
    pub(super) fn end_segment(&mut self, partition: u32) -> Result<()> {
        let mut file = match std::mem::replace(&mut self.state, State::Gone) {
            State::Within(writer) => {
                writer.into_inner().map_err(|error| unwritten(&self.path, error))?
            }
            State::Between(file) if self.rows > 0 => file,
            _ => return internal_err!("a segment without rows of partition {partition}"),
        };
        let at = self.segments.last().map_or(0, |last| last.at + last.bytes);
        let end = u32::try_from(file.bytes()).ok();
        let rows = u32::try_from(std::mem::take(&mut self.rows)).ok();
        let (end, rows) = end.zip(rows).ok_or_else(|| {
            resources_datafusion_err!(
                "a round of a hash shuffle takes {} bytes, expected less than 4 GiB; lower forebay.block_bytes, \
                 or give it smaller rows",
                file.bytes()
            )
        })?;
        let written = file.take_hasher();
        self.checksum.combine(&written);
        let (bytes, checksum) = (end - at, written.finalize());
        self.segments.push(Segment { partition, at, bytes, rows, checksum });
        self.state = State::Between(file);
        Ok(())
    }

    /// Completes the round.
    ///
    /// # Errors
    /// A `DiskError` if the disk fails or is full; or if the job is over.
    pub(super) fn seal(self) -> Result<Sealed> {
        let State::Between(file) = self.state else {
            return internal_err!("a round is sealed within a segment");
        };
        let segments = Segments::new(&self.segments);
        let (rows, checksum) = (segments.rows(), self.checksum.finalize());
        let bytes = file.keep()?;
        Ok(Sealed { bytes, rows, checksum, run: None, segments: Some(segments) })
    }
}
