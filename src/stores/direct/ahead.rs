//! Ranges of files, the next of which are asked for ahead.
//!
//! A file is opened anew for each request, so the kernel does not see that one follows the other, and a scan waits for the
//! disk at each row group. Here the kernel is told what is wanted, all at once, and what will be.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use forebay_engine::read_at;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use object_store::path::Path;
use parking_lot::Mutex;

/// Of fewer bytes nothing is told.
pub(super) const LARGE: u64 = 1 << 20;

/// So many bytes are asked for ahead, at most.
const AHEAD_MAX: u64 = 32 << 20;

/// Scans that are remembered.
const SCANS_MAX: usize = 64;

/// Where scans of files are.
#[derive(Debug, Default)]
pub(super) struct Scans(Mutex<VecDeque<(Path, u64)>>);

impl Scans {
    /// Notes that this is read. What is read next: as many bytes, if this begins where something else ended.
    pub(super) fn next(&self, file: &Path, ranges: &[Range<u64>]) -> Option<Range<u64>> {
        let begin = ranges.iter().map(|range| range.start).min()?;
        let end = ranges.iter().map(|range| range.end).max()?;
        let mut scans = self.0.lock();
        let before = scans.iter().position(|(path, end)| *end == begin && path == file);
        let goes_on = before.and_then(|at| scans.remove(at)).is_some();
        scans.push_back((file.clone(), end));
        if scans.len() > SCANS_MAX {
            scans.pop_front();
        }
        goes_on.then(|| end..end + (end - begin).min(AHEAD_MAX))
    }
}

/// Reads ranges of a file.
///
/// # Errors
/// If the file cannot be opened, or read, or does not have all of it.
pub(super) fn read(path: &std::path::Path, ranges: &[Range<u64>]) -> io::Result<Vec<Bytes>> {
    let file = File::open(path)?;
    ranges.iter().for_each(|range| ask_for(&file, range));
    let read = |range: &Range<u64>| {
        let size = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        let bytes = read_at(&file, range.start, size)?;
        if bytes.len() < size { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
    };
    ranges.iter().map(read).collect()
}

/// Has the kernel read a range of a file, if there is one, and it can.
pub(super) fn read_ahead(path: &std::path::Path, range: &Range<u64>) {
    if let Ok(file) = File::open(path) {
        ask_for(&file, range);
    }
}

/// Of a larger range the kernel takes only what a disk takes at a time.
const ASKED_AT_A_TIME: usize = 512 << 10;

fn ask_for(file: &File, range: &Range<u64>) {
    for at in range.clone().step_by(ASKED_AT_A_TIME) {
        let bytes = (range.end - at).min(ASKED_AT_A_TIME as u64);
        let (Ok(at), Ok(bytes)) = (at.try_into(), bytes.try_into()) else { return };
        // A file system that cannot is not asked again.
        if posix_fadvise(file, at, bytes, PosixFadviseAdvice::POSIX_FADV_WILLNEED).is_err() {
            return;
        }
    }
}
