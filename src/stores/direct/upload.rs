//! A file that is written in parts: some into the page cache, some past it.

use std::error::Error;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use futures::FutureExt;
use nix::fcntl::OFlag;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload, PutResult, Result, UploadPart};
use tokio::sync::Semaphore;

use super::allowance::Allowance;

/// What goes past the page cache begins at a multiple of this, in the file and in memory, and is a multiple of it: of what
/// disks write at a time, and of the largest pages, so that no page has bytes that came on both ways.
pub(super) const BLOCK: usize = 64 << 10;

/// Where its memory begins. A disk's request names each piece of memory that lies by itself, and only so many of them: of
/// usual pages it has half a megabyte or one, of large ones as much as the disk takes at a time.
const LARGE_PAGE: usize = 2 << 20;

/// So many parts of a file are copied, and on their way to the disk, at a time.
const TURNS: usize = 2;

/// A file under a name that is not listed, until it is complete; it is gone if it is not.
#[derive(Debug)]
pub(super) struct Upload {
    store: Arc<LocalFileSystem>,
    location: Path,
    file: Arc<StagedFile>,
    /// Neither complete nor aborted.
    is_open: bool,
    cached: Arc<Allowance>,
    turns: Arc<Semaphore>,
    /// Where the next part begins.
    end: u64,
}

#[derive(Debug)]
struct StagedFile {
    path: PathBuf,
    target: PathBuf,
    buffered: File,
    /// The same file, past the page cache, if the file system knows how; opened when it is needed.
    direct: OnceLock<Option<File>>,
}

impl Upload {
    /// Begins to write a file. None if it cannot be made.
    ///
    /// # Errors
    /// If no file has such a name.
    pub(super) fn begin(
        store: &Arc<LocalFileSystem>,
        location: &Path,
        cached: &Arc<Allowance>,
    ) -> Result<Option<Self>> {
        let target = store.path_to_filesystem(location)?;
        let Some((path, buffered)) = new_file_beside(&target) else { return Ok(None) };
        Ok(Some(Self {
            store: Arc::clone(store),
            location: location.clone(),
            file: Arc::new(StagedFile { path, target, buffered, direct: OnceLock::new() }),
            is_open: true,
            cached: Arc::clone(cached),
            turns: Arc::new(Semaphore::new(TURNS)),
            end: 0,
        }))
    }

    /// Whether a part of it went past the page cache, or should have.
    #[cfg(test)]
    pub(super) fn direct(&self) -> Option<bool> {
        self.file.direct.get().map(Option::is_some)
    }
}

/// Makes an empty file with a name that the store does not list.
fn new_file_beside(target: &std::path::Path) -> Option<(PathBuf, File)> {
    let mut number = 1_u64;
    loop {
        let mut path = target.as_os_str().to_owned();
        path.push(format!("#{number}"));
        match File::create_new(&path) {
            Ok(file) => return Some((path.into(), file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = target.parent().filter(|folder| !folder.exists())?;
                fs::create_dir_all(folder).ok()?;
            }
            Err(_) => return None,
        }
    }
}

impl StagedFile {
    fn write(&self, part: &PutPayload, at: u64) -> io::Result<()> {
        let mut at = at;
        for bytes in part {
            self.buffered.write_all_at(bytes, at)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Whole blocks past the page cache, and what is left behind them into it.
    fn write_direct(&self, part: &PutPayload, at: u64) -> io::Result<()> {
        let Some(direct) = self.direct.get_or_init(|| self.open_direct().ok()) else {
            return self.write(part, at);
        };
        let part = in_blocks(part);
        let (blocks, rest) = part.split_at(part.len() - part.len() % BLOCK);
        match direct.write_all_at(blocks, at) {
            Err(error) if is_refused(&error) => self.buffered.write_all_at(blocks, at)?,
            written => written?,
        }
        self.buffered.write_all_at(rest, at + blocks.len() as u64)
    }

    /// The file itself, whatever has its name by now.
    fn open_direct(&self) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.buffered.as_raw_fd());
        OpenOptions::new().write(true).custom_flags(OFlag::O_DIRECT.bits()).open(path)
    }

    /// Gives it its name.
    fn complete(&self) -> Result<()> {
        let renamed = fs::rename(&self.path, &self.target);
        renamed.map_err(|error| failed("complete", &self.target, error))
    }

    fn remove(&self) -> Result<()> {
        fs::remove_file(&self.path).map_err(|error| failed("remove", &self.path, error))
    }
}

/// The bytes of a part, at a block of memory: the part itself, if it lies at one.
pub(super) fn in_blocks(part: &PutPayload) -> Bytes {
    if let [bytes] = part.as_ref()
        && bytes.as_ptr().addr().is_multiple_of(BLOCK)
    {
        return bytes.clone();
    }
    let mut memory: Vec<u8> = Vec::with_capacity(part.content_length() + LARGE_PAGE);
    let start = memory.as_ptr().align_offset(LARGE_PAGE).min(LARGE_PAGE);
    memory.resize(start, 0);
    part.iter().for_each(|bytes| memory.extend_from_slice(bytes));
    Bytes::from(memory).slice(start..)
}

/// Some file systems say only then that they know of the page cache alone.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        let at = self.end;
        let bytes = part.content_length() as u64;
        self.end += bytes;
        let (file, cached) = (Arc::clone(&self.file), Arc::clone(&self.cached));
        let turns = Arc::clone(&self.turns);
        let write = async move {
            let is_cached = cached.take(bytes) || !at.is_multiple_of(BLOCK as u64);
            let turn = if is_cached { None } else { turns.acquire_owned().await.ok() };
            let written = SpawnedTask::spawn_blocking(move || {
                // Until it is written, even if nobody waits for it any more.
                let _turn = turn;
                let written = match is_cached {
                    true => file.write(&part, at),
                    false => file.write_direct(&part, at),
                };
                written.map_err(|error| failed("write", &file.target, error))
            });
            written.join().await?
        };
        write.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.check_open()?;
        let file = Arc::clone(&self.file);
        SpawnedTask::spawn_blocking(move || file.complete()).join().await??;
        self.is_open = false;
        // It is complete whatever has become of it since.
        let e_tag = self.store.head(&self.location).await.ok().and_then(|meta| meta.e_tag);
        Ok(PutResult { e_tag, version: None })
    }

    async fn abort(&mut self) -> Result<()> {
        self.check_open()?;
        self.is_open = false;
        let file = Arc::clone(&self.file);
        SpawnedTask::spawn_blocking(move || file.remove()).join().await?
    }
}

impl Upload {
    fn check_open(&self) -> Result<()> {
        let source = || "the upload is complete or aborted".into();
        let over = || object_store::Error::Generic { store: STORE, source: source() };
        self.is_open.then_some(()).ok_or_else(over)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_open {
            self.file.remove().ok();
        }
    }
}

const STORE: &str = "LocalFileSystem";

/// What could not be done with a file.
#[derive(Debug)]
struct Failed {
    what: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.what, self.path.display(), self.error)
    }
}

impl Error for Failed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

fn failed(what: &'static str, path: &std::path::Path, error: io::Error) -> object_store::Error {
    let source = Box::new(Failed { what, path: path.to_owned(), error });
    object_store::Error::Generic { store: STORE, source }
}
