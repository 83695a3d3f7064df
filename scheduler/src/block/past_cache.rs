//! Files that are written and read past the page cache.
//!
//! Of what is more than the page cache holds until it is read, each byte would be copied into the cache and out of it, a page
//! found for it, and another one given up: for nothing.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use nix::fcntl::OFlag;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;

/// What goes past the page cache begins at a multiple of this, in the file and in memory, and is a multiple of it.
pub(super) const STEP: usize = 4 << 10;

/// Bytes that are written at a time.
const PIECE: usize = 2 << 20;

/// So many pieces wait while one is written.
const PIECES_WAITING: usize = 2;

/// Files of a worker that are written past the page cache at a time: each has a thread of those for work that blocks.
pub(super) const FILES_MAX: usize = 64;

/// What is told when a part of a file is on the disk.
pub(super) type OnDisk = oneshot::Receiver<io::Result<()>>;

/// A file that a thread writes, while its next bytes are computed.
///
/// Memory: four pieces of 2 MiB, not reserved. Whoever writes waits, without giving its thread to others, once the disk is
/// that far behind.
pub(super) struct DirectFile {
    to_disk: SyncSender<Piece>,
    piece: Piece,
}

#[derive(Default)]
struct Piece {
    memory: Vec<u8>,
    /// Where it begins in its memory.
    start: usize,
    /// Where the last part of it ends, of those that have ended, after its beginning.
    end: usize,
    /// Those who are told when it is written: parts end in it.
    ended: Vec<oneshot::Sender<io::Result<()>>>,
}

impl fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectFile").finish_non_exhaustive()
    }
}

impl DirectFile {
    /// Past the page cache, for a file that is empty. None if the file system does not know how, or there are so many
    /// already.
    #[expect(
        clippy::disallowed_methods,
        reason = "it ends with the last piece, which is written even if nobody waits for it any more"
    )]
    pub(super) fn of(file: &File, files: &Arc<Semaphore>) -> Option<Self> {
        let permit = Arc::clone(files).try_acquire_owned().ok()?;
        let (direct, cached) = (reopened(file, true).ok()?, file.try_clone().ok()?);
        let (to_disk, pieces) = sync_channel(PIECES_WAITING);
        drop(spawn_blocking(move || {
            write_all(&direct, &cached, &pieces);
            drop(permit);
        }));
        Some(Self { to_disk, piece: Piece::default() })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// If nobody writes them any more.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.piece.begin();
            let (fit, rest) = bytes.split_at(self.piece.room().min(bytes.len()));
            self.piece.memory.extend_from_slice(fit);
            bytes = rest;
            if self.piece.room() == 0 {
                let piece = std::mem::take(&mut self.piece);
                let ended = |_| io::Error::other("the thread that writes it has ended");
                self.to_disk.send(piece).map_err(ended)?;
            }
        }
        Ok(())
    }

    /// What was added since the last part is one, and the next one begins at a [`STEP`]. Says when it is on the disk, which
    /// it need not be before the file is dropped.
    pub(super) fn end_part(&mut self) -> OnDisk {
        let padding = self.piece.bytes().next_multiple_of(STEP) - self.piece.bytes();
        self.piece.memory.resize(self.piece.memory.len() + padding, 0);
        self.piece.end = self.piece.bytes();
        let (ended, on_disk) = oneshot::channel();
        self.piece.ended.push(ended);
        on_disk
    }
}

/// What is no part is not written, or cut off.
impl Drop for DirectFile {
    fn drop(&mut self) {
        let mut piece = std::mem::take(&mut self.piece);
        if !piece.ended.is_empty() {
            piece.memory.truncate(piece.start + piece.end);
            // Without the thread nobody is told that it is written, and that is an error.
            self.to_disk.send(piece).ok();
        }
    }
}

impl Piece {
    /// With memory, if it has none.
    fn begin(&mut self) {
        if self.memory.capacity() == 0 {
            self.memory = Vec::with_capacity(PIECE + STEP);
            self.start = self.memory.as_ptr().align_offset(STEP).min(STEP);
            self.memory.resize(self.start, 0);
        }
    }

    fn bytes(&self) -> usize {
        self.memory.len() - self.start
    }

    fn room(&self) -> usize {
        PIECE - self.bytes()
    }
}

/// Writes pieces as they come. After one that could not be written there are no others.
fn write_all(direct: &File, cached: &File, pieces: &Receiver<Piece>) {
    let (mut at, mut end) = (0, 0);
    let mut written = Ok(());
    for piece in pieces {
        let bytes = &piece.memory[piece.start..];
        if written.is_ok() {
            written = match direct.write_all_at(bytes, at) {
                Err(error) if is_refused(&error) => cached.write_all_at(bytes, at),
                written => written,
            };
        }
        if !piece.ended.is_empty() {
            end = at + piece.end as u64;
        }
        at += bytes.len() as u64;
        for ended in piece.ended {
            // Whoever wanted to know may be gone.
            ended.send(written.as_ref().copied().map_err(again)).ok();
        }
    }
    if end < at {
        // If it stays, it takes room that nobody counts until the job is over.
        cached.set_len(end).ok();
    }
}

/// The same error once more.
fn again(error: &io::Error) -> io::Error {
    let of_system = error.raw_os_error().map(io::Error::from_raw_os_error);
    of_system.unwrap_or_else(|| error.kind().into())
}

/// Some file systems say only then that they know of the page cache alone.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// The same file, whatever has its name by now.
pub(super) fn reopened(file: &File, is_direct: bool) -> io::Result<File> {
    let flags = if is_direct { OFlag::O_DIRECT } else { OFlag::empty() };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(!is_direct).write(is_direct).custom_flags(flags.bits()).open(path)
}

/// Opens a file to be read, and if it `is_direct`, [past the page cache](read), as far as the file system knows how. What is no
/// file, which another worker may name, is not waited for.
///
/// # Errors
/// If there is none.
pub(super) fn open(path: &Path, is_direct: bool) -> io::Result<File> {
    let open_with = |flags: OFlag| {
        OpenOptions::new().read(true).custom_flags((flags | OFlag::O_NONBLOCK).bits()).open(path)
    };
    match is_direct.then(|| open_with(OFlag::O_DIRECT)) {
        Some(Err(error)) if is_refused(&error) => open_with(OFlag::empty()),
        Some(opened) => opened,
        None => open_with(OFlag::empty()),
    }
}

/// Reads so many bytes of a file that was [opened](open) for that, which begin at a [`STEP`] and have been followed by
/// padding up to the next one. Fewer, if there are fewer.
///
/// # Errors
/// If they cannot be read.
pub(super) fn read(file: &File, at: u64, bytes: usize) -> io::Result<Bytes> {
    let size = bytes.next_multiple_of(STEP);
    // As it is allocated memory begins at a step often, and newer kernels ask for less. It need not be filled with zeros.
    match forebay_engine::read_at(file, at, size) {
        Err(error) if is_refused(&error) => read_aligned(file, at, bytes),
        read => read.map(|read| read.slice(..read.len().min(bytes))),
    }
}

fn read_aligned(file: &File, at: u64, bytes: usize) -> io::Result<Bytes> {
    let size = bytes.next_multiple_of(STEP);
    let mut memory = vec![0; size + STEP];
    let start = memory.as_ptr().align_offset(STEP).min(STEP);
    let wanted = &mut memory[start..start + size];
    let read = match read_at(file, at, wanted) {
        Err(error) if is_refused(&error) => read_at(&reopened(file, false)?, at, wanted)?,
        read => read?,
    };
    Ok(Bytes::from(memory).slice(start..start + read.min(bytes)))
}

fn read_at(file: &File, at: u64, to: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < to.len() {
        match file.read_at(&mut to[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use forebay_testkit::disk::SmallDisk;
    use proptest::prelude::*;
    use tempfile::TempDir;
    use tokio::runtime::Runtime;

    use super::*;

    fn bytes(seed: usize, count: usize) -> Vec<u8> {
        (0..count).map(|at| ((at + seed * 7919) % 251) as u8).collect()
    }

    /// Where files lie: on a disk, and where there is none.
    fn folders() -> Vec<TempDir> {
        let in_memory = TempDir::new_in("/dev/shm").ok();
        [Some(TempDir::new().unwrap()), in_memory].into_iter().flatten().collect()
    }

    /// None, and a word about it, where the file system knows of the page cache alone.
    fn new_file(folder: &TempDir) -> Option<(PathBuf, DirectFile)> {
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        let direct = DirectFile::of(&file, &Arc::new(Semaphore::new(1)));
        if direct.is_none() {
            println!("not tried: no O_DIRECT in {}", folder.path().display());
        }
        Some((path, direct?))
    }

    fn size(path: &Path) -> u64 {
        fs::metadata(path).unwrap().len()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

        #[test]
        fn parts_are_read_as_they_were_written(
            sizes in prop::collection::vec(
                prop_oneof![
                    0..20_000_usize, 0..5_000_000_usize, (0..4_usize).prop_map(|many| many * PIECE)
                ],
                0..6
            ),
            chunk in 1_usize..300_000,
            unfinished in prop_oneof![Just(0), 0..5_000_000_usize],
        ) {
            Runtime::new().unwrap().block_on(async {
                for folder in folders() {
                    let Some((path, mut file)) = new_file(&folder) else { continue };
                    let (mut parts, mut at) = (vec![], 0);
                    for (seed, size) in sizes.iter().enumerate() {
                        for chunk in bytes(seed, *size).chunks(chunk) {
                            file.write(chunk).unwrap();
                        }
                        parts.push((seed, at, *size, file.end_part()));
                        at += size.next_multiple_of(STEP) as u64;
                    }
                    file.write(&bytes(9, unfinished)).unwrap();
                    drop(file);
                    for (seed, at, size, on_disk) in parts {
                        on_disk.await.unwrap().unwrap();
                        let file = open(&path, true).unwrap();
                        assert!(read(&file, at, size).unwrap() == bytes(seed, size), "{size} at {at}");
                        // In pieces, as it is served.
                        let half = size / 2 / STEP * STEP;
                        let rest = read(&file, at + half as u64, size - half).unwrap();
                        assert!(rest == bytes(seed, size)[half..], "{size} at {at}");
                    }
                    // The thread may still cut off what was no part.
                    while size(&path) > at {
                        tokio::task::yield_now().await;
                    }
                    assert_eq!(size(&path), at);
                }
            });
        }
    }

    #[tokio::test]
    async fn fewer_bytes_are_read_if_there_are_fewer() {
        for folder in folders() {
            let path = folder.path().join("file");
            fs::write(&path, bytes(1, 10_000)).unwrap();
            let file = open(&path, true).unwrap();
            assert!(read(&file, 4096, 8000).unwrap() == bytes(1, 10_000)[4096..]);
            assert!(read(&file, 12_288, 1).unwrap().is_empty());
            let missing = open(&folder.path().join("missing"), true).unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        }
    }

    #[tokio::test]
    async fn a_disk_that_is_full_is_told_to_all_that_follows() {
        let folder = TempDir::new().unwrap();
        let Ok(_disk) = SmallDisk::mount(folder.path(), 9 << 20) else {
            println!("not tried on a full file system");
            return;
        };
        let Some((_, mut file)) = new_file(&folder) else { return };
        let mut parts = vec![];
        for seed in 0..8 {
            file.write(&bytes(seed, PIECE)).unwrap();
            parts.push(file.end_part());
        }
        drop(file);
        let mut told = vec![];
        for part in parts {
            told.push(part.await.unwrap().map_err(|error| error.kind()));
        }
        let written = told.iter().take_while(|part| part.is_ok()).count();
        assert!((1..5).contains(&written), "{told:?}");
        let full = Err(io::ErrorKind::StorageFull);
        assert!(told[written..].iter().all(|part| *part == full), "{told:?}");
    }

    #[tokio::test]
    async fn there_are_only_so_many_at_a_time() {
        let folder = TempDir::new().unwrap();
        let files = Arc::new(Semaphore::new(1));
        let file = File::create(folder.path().join("file")).unwrap();
        let Some(one) = DirectFile::of(&file, &files) else { return };
        assert!(DirectFile::of(&file, &files).is_none());
        drop(one);
        while DirectFile::of(&file, &files).is_none() {
            tokio::task::yield_now().await;
        }
    }
}
