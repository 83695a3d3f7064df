//! The file of a block, as it is read.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

use bytes::Bytes;
use forebay_engine::read_at;

use super::failure::BlockError;
use super::job_blocks::Place;
use super::past_cache;
use crate::protocol::location::BlockLocation;

/// The file of a block, from where that begins.
#[derive(Debug)]
pub(super) struct BlockFile {
    file: File,
    at: u64,
    is_direct: bool,
}

impl BlockFile {
    /// The file where a block lies, or its segment.
    ///
    /// # Errors
    /// If it is no file, has another size than was sealed, or is too short where it has others, too.
    pub(super) fn open(
        location: &BlockLocation,
        path: &Path,
        place: Place,
    ) -> Result<Self, BlockError> {
        let problem = |error: io::Error| BlockError::new(location, error);
        let is_direct = matches!(place, Place::Part { is_direct: true, .. });
        let file = past_cache::open(path, is_direct).map_err(problem)?;
        let found = file.metadata().map_err(problem)?;
        if !found.is_file() {
            return Err(BlockError::new(location, format!("{} is no file", path.display())));
        }
        // Before it is read: the reader has reserved as much as was sealed.
        let at = match place {
            Place::Whole => {
                location.check_file(found.len())?;
                location.segment_at.unwrap_or(0)
            }
            Place::Part { at, .. } => {
                location.check_part(at, found.len())?;
                at
            }
        };
        Ok(Self { file, at, is_direct })
    }

    /// The file, which is read from there on.
    ///
    /// # Errors
    /// If it has no such place.
    pub(super) fn into_file(mut self) -> io::Result<File> {
        if self.is_direct {
            self.file = past_cache::reopened(&self.file, false)?;
        }
        self.file.seek(SeekFrom::Start(self.at))?;
        Ok(self.file)
    }

    /// So many bytes from there on, or fewer, if there are fewer. Where the file is read past the page cache, `from` is a
    /// multiple of [`STEP`](past_cache::STEP).
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn read(&self, from: u64, bytes: usize) -> io::Result<Bytes> {
        let at = self.at + from;
        if self.is_direct {
            return past_cache::read(&self.file, at, bytes);
        }
        read_at(&self.file, at, bytes)
    }

    /// The block, or the segment, if it is as it was sealed: all of it at once.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub(super) fn whole(&self, location: &BlockLocation) -> Result<Bytes, BlockError> {
        let size = usize::try_from(location.bytes).unwrap_or(usize::MAX);
        let bytes = self.read(0, size).map_err(|error| BlockError::new(location, error))?;
        verify(location, &bytes)?;
        Ok(bytes)
    }

    #[cfg(test)]
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
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
