//! Local files: of what is read in its order the next is read [ahead], and much that is written goes past the page cache.
//!
//! Writing into the page cache costs a copy of each byte, a page that has to be found for it, and, once all memory is
//! full of pages, the time to get rid of as many. That is well spent on what is read again, or if the disk
//! is slower than whoever writes: but only as long as the cache [takes it](allowance). Of a sort of 12 GB, half of
//! the memory, the kernel takes 17 s of CPU time so instead of 24.

mod ahead;
mod allowance;
mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tokio::task::spawn_blocking;

use ahead::Scans;
use allowance::Allowance;
use upload::Upload;

/// Local files; what is written in parts goes past the page cache when that has had enough.
#[derive(Debug)]
pub(super) struct DirectFiles {
    files: Arc<LocalFileSystem>,
    cached: Arc<Allowance>,
    scans: Scans,
}

impl DirectFiles {
    /// With what the page cache takes of this process.
    pub(super) fn new() -> Self {
        Self { files: Arc::default(), cached: Allowance::of_process(), scans: Scans::default() }
    }
}

impl DirectFiles {
    /// Ranges of a file that are large. None if there is nothing to gain, or if it fails: whoever tries again says how.
    #[expect(clippy::disallowed_methods, reason = "what is read ahead is not waited for")]
    async fn read_ahead(&self, location: &Path, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
        let bytes = |range: &Range<u64>| range.end.saturating_sub(range.start);
        if ranges.iter().any(Range::is_empty)
            || ranges.iter().map(bytes).sum::<u64>() < ahead::LARGE
        {
            return None;
        }
        let path = Arc::new(self.files.path_to_filesystem(location).ok()?);
        let (its_path, its_ranges) = (Arc::clone(&path), ranges.to_vec());
        let read = SpawnedTask::spawn_blocking(move || ahead::read(&its_path, &its_ranges));
        let read = read.join().await.ok()?.ok()?;
        if let Some(next) = self.scans.next(location, ranges) {
            // While these are decoded.
            drop(spawn_blocking(move || ahead::read_ahead(&path, &next)));
        }
        Some(read)
    }
}

impl fmt::Display for DirectFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for DirectFiles {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.files.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if options.attributes.is_empty()
            && let Some(upload) = Upload::begin(&self.files, location, &self.cached)?
        {
            return Ok(Box::new(upload));
        }
        self.files.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if let Some(read) = self.read_ahead(location, ranges).await {
            return Ok(read);
        }
        self.files.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.files.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests;
