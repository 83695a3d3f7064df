//! Reads of a log stay in the folder of its table, whatever the log says: it may name parts of checkpoints by
//! any path, and by addresses of web servers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use delta_kernel::schema::SchemaRef;
use delta_kernel::{
    CancellationTokenRef, DeltaResult, DeltaResultIteratorStatic, Engine, EngineData, Error,
    EvaluationHandler, FileDataReadResultIterator, FileMeta, JsonHandler, ParquetFooter,
    ParquetHandler, PredicateRef, StorageHandler,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, future, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use url::Url;

/// A store in which only one folder can be read and written.
#[derive(Clone, Debug)]
pub(super) struct Inside {
    store: Arc<dyn ObjectStore>,
    folder: Path,
}

impl Inside {
    /// Of `store` nothing but what is in `folder`.
    pub(super) fn new(store: Arc<dyn ObjectStore>, folder: Path) -> Self {
        Self { store, folder }
    }

    fn check(&self, path: &Path) -> Result<()> {
        match path.prefix_matches(&self.folder) {
            true => Ok(()),
            false => Err(outside(path.to_string(), &self.folder)),
        }
    }

    /// The folder that is to be listed, if it is this one or in it.
    fn listed(&self, prefix: Option<&Path>) -> Result<Path> {
        let prefix = prefix.cloned().unwrap_or_default();
        self.check(&prefix).map(|()| prefix)
    }
}

fn outside(path: String, folder: &impl fmt::Display) -> object_store::Error {
    let problem = format!("it lies outside of the table's folder '{folder}'");
    object_store::Error::PermissionDenied { path, source: problem.into() }
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.folder, self.store)
    }
}

#[async_trait]
impl ObjectStore for Inside {
    async fn put_opts(
        &self,
        at: &Path,
        data: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check(at)?;
        self.store.put_opts(at, data, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check(at)?;
        self.store.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(at)?;
        self.store.get_opts(at, options).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check(at)?;
        self.store.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let checked = at.and_then(move |path| future::ready(this.check(&path).map(|()| path)));
        self.store.delete_stream(checked.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.listed(prefix) {
            Ok(prefix) => self.store.list(Some(&prefix)),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.listed(prefix) {
            Ok(prefix) => self.store.list_with_offset(Some(&prefix), offset),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(Some(&self.listed(prefix)?)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.check(from)?;
        self.check(to)?;
        self.store.copy_opts(from, to, options).await
    }
}

/// What reads logs, without the web: for files in the place of the table alone.
pub(super) struct InPlace {
    inner: Arc<dyn Engine>,
    table: Url,
}

impl InPlace {
    /// For the table at this address.
    pub(super) fn new(inner: Arc<dyn Engine>, table: Url) -> Self {
        Self { inner, table }
    }
}

impl Engine for InPlace {
    fn evaluation_handler(&self) -> Arc<dyn EvaluationHandler> {
        self.inner.evaluation_handler()
    }

    fn storage_handler(&self) -> Arc<dyn StorageHandler> {
        self.inner.storage_handler()
    }

    fn json_handler(&self) -> Arc<dyn JsonHandler> {
        self.inner.json_handler()
    }

    fn parquet_handler(&self) -> Arc<dyn ParquetHandler> {
        Arc::new(Parquet { inner: self.inner.parquet_handler(), table: self.table.clone() })
    }
}

/// The one part that would ask any web server whose address has a signature.
struct Parquet {
    inner: Arc<dyn ParquetHandler>,
    table: Url,
}

impl Parquet {
    fn check<'a>(&self, files: impl IntoIterator<Item = &'a FileMeta>) -> DeltaResult<()> {
        let place = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned));
        let is_elsewhere = |file: &&FileMeta| place(&file.location) != place(&self.table);
        match files.into_iter().find(is_elsewhere) {
            Some(file) => Err(Error::generic_err(outside(file.location.to_string(), &self.table))),
            None => Ok(()),
        }
    }
}

impl ParquetHandler for Parquet {
    fn read_parquet_files(
        &self,
        files: &[FileMeta],
        schema: SchemaRef,
        predicate: Option<PredicateRef>,
    ) -> DeltaResult<FileDataReadResultIterator> {
        self.check(files)?;
        self.inner.read_parquet_files(files, schema, predicate)
    }

    fn read_parquet_files_with_cancellation(
        &self,
        files: &[FileMeta],
        schema: SchemaRef,
        predicate: Option<PredicateRef>,
        token: Option<CancellationTokenRef>,
    ) -> DeltaResult<FileDataReadResultIterator> {
        self.check(files)?;
        self.inner.read_parquet_files_with_cancellation(files, schema, predicate, token)
    }

    fn write_parquet_file(
        &self,
        location: Url,
        data: DeltaResultIteratorStatic<Box<dyn EngineData>>,
    ) -> DeltaResult<()> {
        self.inner.write_parquet_file(location, data)
    }

    fn read_parquet_footer(&self, file: &FileMeta) -> DeltaResult<ParquetFooter> {
        self.check([file])?;
        self.inner.read_parquet_footer(file)
    }

    fn read_parquet_footer_with_cancellation(
        &self,
        file: &FileMeta,
        token: Option<CancellationTokenRef>,
    ) -> DeltaResult<ParquetFooter> {
        self.check([file])?;
        self.inner.read_parquet_footer_with_cancellation(file, token)
    }
}
