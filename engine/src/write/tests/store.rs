//! A file system that does not do what it is told, from some operation on.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

/// What happens to operations that change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// One is refused.
    Once(usize),
    /// It is done, and nobody is told.
    Unheard(usize),
    /// All from one on are refused: as if the process had ended there.
    FromThenOn(usize),
}

/// Files of this machine; `watch` looks at them after each operation that changes something.
pub(super) struct Faulty {
    files: LocalFileSystem,
    fault: Fault,
    changes: Arc<AtomicUsize>,
    watch: Arc<dyn Fn() + Send + Sync>,
}

impl Faulty {
    pub(super) fn new(fault: Fault, watch: impl Fn() + Send + Sync + 'static) -> Self {
        let changes = Arc::new(AtomicUsize::new(0));
        Self { files: LocalFileSystem::new(), fault, changes, watch: Arc::new(watch) }
    }

    /// How many operations have changed something, or were to.
    pub(super) fn changes(&self) -> usize {
        self.changes.load(Ordering::Relaxed)
    }

    async fn change<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        let refused = || Error::Generic { store: "faulty", source: "it is full".into() };
        match self.fault {
            Fault::Once(at) if at == number => Err(refused()),
            Fault::FromThenOn(at) if at <= number => Err(refused()),
            Fault::Unheard(at) if at == number => {
                work.await?;
                (self.watch)();
                Err(refused())
            }
            _ => {
                let done = work.await?;
                (self.watch)();
                Ok(done)
            }
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", self.fault)
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        at: &Path,
        data: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.change(self.files.put_opts(at, data, options)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.change(self.files.put_multipart_opts(at, options)).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(at, options).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.files.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = Arc::new(Self {
            files: LocalFileSystem::new(),
            fault: self.fault,
            changes: Arc::clone(&self.changes),
            watch: Arc::clone(&self.watch),
        });
        let delete = move |path: Path| {
            let this = Arc::clone(&this);
            async move {
                let one = futures::stream::iter([Ok(path)]).boxed();
                let deleted = async { this.files.delete_stream(one).try_collect::<Vec<_>>().await };
                let mut deleted = this.change(deleted).await?;
                deleted.pop().ok_or(Error::NotImplemented {
                    operation: "delete".into(),
                    implementer: "LocalFileSystem".into(),
                })
            }
        };
        at.and_then(delete).boxed()
    }

    /// In order, as object stores do.
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let found = self.files.list(prefix);
        let sorted = async {
            let mut found: Vec<ObjectMeta> = found.try_collect().await?;
            found.sort_by(|a, b| a.location.cmp(&b.location));
            Ok(futures::stream::iter(found.into_iter().map(Ok)))
        };
        sorted.try_flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.change(self.files.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.change(self.files.rename_opts(from, to, options)).await
    }
}
