//! A store that opens with its first request: finding keys and regions takes a while, and whoever looks
//! a store up cannot wait. If that fails, the next request tries again.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use tokio::sync::OnceCell;

use super::markers::without_markers;
use super::open::open;
use super::place::Place;
use super::versions::told_apart;
use crate::errors::store::in_words;

/// The store of a place.
#[derive(Clone, Debug)]
pub(super) struct OnDemand {
    place: Arc<Place>,
    store: Arc<OnceCell<Arc<dyn ObjectStore>>>,
}

impl OnDemand {
    pub(super) fn new(place: Place) -> Self {
        Self { place: Arc::new(place), store: Arc::default() }
    }

    async fn store(&self) -> Result<&Arc<dyn ObjectStore>> {
        let opened = self.store.get_or_try_init(|| open(&self.place)).await;
        opened.map_err(|error| self.place.not_opened(error))
    }
}

impl fmt::Display for OnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place.url)
    }
}

#[async_trait]
impl ObjectStore for OnDemand {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = async { self.store().await?.put_opts(location, payload, options).await };
        put.await.map_err(|error| self.place.not_written(location, error))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begin = async { self.store().await?.put_multipart_opts(location, options).await };
        let upload = begin.await.map_err(|error| self.place.not_written(location, error))?;
        let (place, location) = (Arc::clone(&self.place), location.clone());
        Ok(Box::new(Upload { upload, place, location }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let result = self.store().await?.get_opts(location, options).await;
        let mut result = result.map_err(|error| self.place.explain(Some(location), error))?;
        result.meta = told_apart(&self.place.url, result.meta);
        if let GetResultPayload::Stream(parts) = result.payload {
            let (place, location) = (Arc::clone(&self.place), location.clone());
            let parts = parts.map_err(move |error| place.explain(Some(&location), error));
            result.payload = GetResultPayload::Stream(parts.boxed());
        }
        Ok(result)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let result = self.store().await?.get_ranges(location, ranges).await;
        result.map_err(|error| self.place.explain(Some(location), error))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (this, place) = (self.clone(), Arc::clone(&self.place));
        let deleted = async move { Ok::<_, Error>(this.store().await?.delete_stream(locations)) };
        let deleted = stream::once(deleted).try_flatten();
        deleted.map_err(move |error| place.explain(None, error)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let place = Arc::clone(&this.place);
            let found = this.store().await?.list(prefix.as_ref());
            let found = without_markers(found, prefix.clone());
            Ok::<_, Error>(found.map(move |meta| match meta {
                Ok(meta) => Ok(told_apart(&place.url, meta)),
                Err(error) => Err(place.explain(prefix.as_ref(), error)),
            }))
        };
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let result = self.store().await?.list_with_delimiter(prefix).await;
        let mut result = result.map_err(|error| self.place.explain(prefix, error))?;
        result.objects.retain(|meta| meta.size > 0 || Some(&meta.location) != prefix);
        let told_apart = |meta| told_apart(&self.place.url, meta);
        result.objects = result.objects.into_iter().map(told_apart).collect();
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let result = self.store().await?.copy_opts(from, to, options).await;
        result.map_err(|error| self.place.explain(Some(from), error))
    }
}

impl Place {
    /// DataFusion drops why the end of a file could not be written: the log has it.
    fn not_written(&self, location: &Path, error: Error) -> Error {
        let error = self.explain(Some(location), error);
        tracing::warn!("not written: {}", in_words(&error));
        error
    }
}

/// A file that is written in parts.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    place: Arc<Place>,
    location: Path,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (place, location) = (Arc::clone(&self.place), self.location.clone());
        let part = self.upload.put_part(data);
        Box::pin(part.map_err(move |error| place.not_written(&location, error)))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let result = self.upload.complete().await;
        result.map_err(|error| self.place.not_written(&self.location, error))
    }

    async fn abort(&mut self) -> Result<()> {
        let result = self.upload.abort().await;
        result.map_err(|error| self.place.explain(Some(&self.location), error))
    }
}
