//! Reads the bytes of files, a few ahead of whoever wants them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::Count;
use futures::stream::{BoxStream, StreamExt};
use object_store::{ObjectStore, ObjectStoreExt};

use super::file::{File, OnUnreadable};
use crate::exchange::budget::{Budget, Permit};
use crate::read_ahead;

/// Files that are being read or waiting at one time, per partition, and their bytes, unless the next
/// file alone has more.
const READ_AHEAD_FILES: usize = 4;
pub(super) const READ_AHEAD_BYTES: usize = 64 << 20;
/// Bytes of one file at most.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// A file with its bytes, if they are needed and could be read.
pub(super) struct Row {
    pub(super) file: File,
    pub(super) bytes: Option<Bytes>,
    /// For the bytes.
    pub(super) permit: Option<Permit>,
}

/// Reads the files of one partition.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    /// Of [`READ_AHEAD_BYTES`].
    pub(super) ahead: Arc<Budget>,
    pub(super) env: Arc<RuntimeEnv>,
    pub(super) on_unreadable: OnUnreadable,
    pub(super) needs_bytes: bool,
    pub(super) files_read: Count,
    pub(super) files_failed: Count,
    pub(super) bytes_read: Count,
}

impl Reader {
    /// In the order of the list.
    pub(super) fn rows(self, files: Arc<[File]>) -> BoxStream<'static, Result<Row>> {
        let reader = self.clone();
        // One after the other: the file that is wanted first must not wait for those behind it.
        let admitted = futures::stream::iter(0..files.len()).then(move |at| {
            let (reader, file) = (reader.clone(), files[at].clone());
            async move { Ok((reader.admit(&file).await?, file)) }
        });
        let reads = admitted.map(move |admitted: Result<_>| {
            let reader = self.clone();
            async move {
                let (permit, file) = admitted?;
                reader.row(file, permit).await
            }
        });
        read_ahead(reads, READ_AHEAD_FILES).boxed()
    }

    /// Waits until there is room for a file.
    async fn admit(&self, file: &File) -> Result<Option<Permit>> {
        if !self.needs_bytes || file.size > FILE_BYTES_MAX {
            return Ok(None);
        }
        let bytes = usize::try_from(file.size).unwrap_or(usize::MAX);
        let take = |cx: &mut Context<'_>| match self.ahead.try_take(bytes, cx.waker()) {
            Ok(None) => Poll::Pending,
            Ok(permit) => Poll::Ready(Ok(permit)),
            Err(error) => Poll::Ready(Err(error.context(format!("for {}", file.url())))),
        };
        poll_fn(take).await
    }

    async fn row(&self, file: File, mut permit: Option<Permit>) -> Result<Row> {
        if !self.needs_bytes {
            return Ok(Row { file, bytes: None, permit });
        }
        match self.read(&file, &mut permit).await {
            Ok(bytes) => {
                self.files_read.add(1);
                self.bytes_read.add(bytes.len());
                Ok(Row { file, bytes: Some(bytes), permit })
            }
            // A file for which there is no memory is no unreadable one.
            Err(error) if matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) => {
                Err(error.context(format!("for {}", file.url())))
            }
            Err(error) if self.on_unreadable == OnUnreadable::Fail => Err(error.context(format!(
                "{} cannot be read; read_files(…, 'null') gives NULL for the bytes of such files",
                file.url()
            ))),
            Err(_) => {
                self.files_failed.add(1);
                Ok(Row { file, bytes: None, permit: None })
            }
        }
    }

    async fn read(&self, file: &File, permit: &mut Option<Permit>) -> Result<Bytes> {
        if file.size > FILE_BYTES_MAX {
            return exec_err!("it has {} bytes, more than {FILE_BYTES_MAX}", file.size);
        }
        let store: Arc<dyn ObjectStore> = self.env.object_store(&file.store)?;
        let found = store.get(&file.path).await?;
        // It may have grown.
        if found.meta.size > FILE_BYTES_MAX {
            return exec_err!("it has {} bytes, more than {FILE_BYTES_MAX}", found.meta.size);
        }
        if let Some(permit) = permit {
            let more = found.meta.size.saturating_sub(file.size);
            permit.grow(usize::try_from(more).unwrap_or(usize::MAX))?;
        }
        Ok(found.bytes().await?)
    }
}
