//! Standard output, written by other threads than the one that hears Ctrl-C.

use std::fs::File;
use std::io::{self, Write, stdout};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::exec_datafusion_err;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::Result;

use crate::exit::end;

/// What a shell reports for a process that died of SIGPIPE.
pub(super) const PIPE_CLOSED: i32 = 141;

/// Bytes between two looks at whether anybody still wants them.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Printing that ends when this is dropped.
pub(super) struct Printing {
    stopped: Arc<AtomicBool>,
}

impl Printing {
    pub(super) fn new() -> Self {
        Self { stopped: Arc::default() }
    }

    /// Standard output. Not the standard library's: its lock would hold up the end of the process
    /// if the reader of a pipe has stalled.
    pub(super) fn out(&self) -> Result<PipeOut> {
        stdout().flush()?;
        let file = stdout().as_fd().try_clone_to_owned()?.into();
        Ok(PipeOut { file, stopped: Arc::clone(&self.stopped) })
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Works in a thread that may block.
///
/// # Errors
/// Those of the work.
pub(super) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let ended = SpawnedTask::spawn_blocking(work).join_unwind().await;
    ended.map_err(|error| exec_datafusion_err!("the output was not written: {error}"))?
}

/// Standard output that ends the process like other tools when its reader has gone: `… | head`.
pub(super) struct PipeOut {
    file: File,
    stopped: Arc<AtomicBool>,
}

impl Write for PipeOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        let some = &bytes[..bytes.len().min(WRITE_BYTES_MAX)];
        self.file.write(some).inspect_err(end_if_closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().inspect_err(end_if_closed)
    }
}

fn end_if_closed(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        end(PIPE_CLOSED);
    }
}
