//! Web servers. Some send no parts of files, which readers of Parquet ask for: such a file is read
//! whole, once, into a temporary file.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path;
use object_store::{
    Attributes, ClientOptions, CopyOptions, Error, GetOptions, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::sync::OnceCell;
use url::Url;

use super::retries::retries;

const NAME: &str = "HTTP";
/// Bytes of files that are kept whole, for one server.
const WHOLE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Until a server begins to answer, and from each part of an answer to the next.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a file that was read whole is believed to be what the server has.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// A web server, and the files of it that were read whole.
#[derive(Debug)]
pub(super) struct Web {
    http: HttpStore,
    /// The files that it did not send in parts, the oldest first.
    whole: Mutex<VecDeque<(Path, Arc<Slot>)>>,
}

/// The place of a file, which one reader fetches and others wait for.
type Slot = OnceCell<Whole>;

/// A file that was read whole.
#[derive(Debug)]
struct Whole {
    file: NamedTempFile,
    meta: ObjectMeta,
    checked: Mutex<Instant>,
}

impl Web {
    /// Whoever names a URL without encryption means it. A request may take as long as its bytes come.
    pub(super) fn new(url: &Url) -> Result<Self> {
        let options = ClientOptions::new().with_allow_http(true).with_timeout_disabled();
        let http = HttpBuilder::new()
            .with_url(url.origin().ascii_serialization())
            .with_client_options(options)
            .with_retry(retries());
        Ok(Self { http: http.build()?, whole: Mutex::default() })
    }

    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut result = in_time(self.http.get_opts(location, options)).await?;
        if let GetResultPayload::Stream(parts) = result.payload {
            result.payload = GetResultPayload::Stream(without_silence(parts));
        }
        Ok(result)
    }

    /// The part of a file that was read whole, if it is still what the server has.
    async fn kept(&self, location: &Path, options: &GetOptions) -> Result<Option<GetResult>> {
        let Some(slot) = self.slot(location) else { return Ok(None) };
        let Some(whole) = slot.get() else { return Ok(None) };
        let checked = *whole.checked.lock();
        if checked.elapsed() > BELIEVED_FOR {
            let now = in_time(self.http.head(location)).await;
            if !now.is_ok_and(|now| self.compare(&now)) {
                self.forget(&slot);
                return Ok(None);
            }
        }
        whole.part(options).map(Some)
    }

    fn slot(&self, location: &Path) -> Option<Arc<Slot>> {
        let whole = self.whole.lock();
        whole.iter().find(|(path, _)| path == location).map(|(_, slot)| Arc::clone(slot))
    }

    /// Forgets a file that was read whole if the server has another by now; whether it has not.
    fn compare(&self, now: &ObjectMeta) -> bool {
        let Some(slot) = self.slot(&now.location) else { return false };
        let Some(whole) = slot.get() else { return false };
        let is_same = is_same(now, &whole.meta);
        if is_same {
            *whole.checked.lock() = Instant::now();
        } else {
            self.forget(&slot);
        }
        is_same
    }

    /// Reads a file whole, unless somebody does already.
    async fn read_whole(&self, location: &Path, options: &GetOptions) -> Result<GetResult> {
        let slot = {
            let mut whole = self.whole.lock();
            match whole.iter().find(|(path, _)| path == location) {
                Some((_, slot)) => Arc::clone(slot),
                None => {
                    let slot = Arc::<Slot>::default();
                    whole.push_back((location.clone(), Arc::clone(&slot)));
                    slot
                }
            }
        };
        match slot.get_or_try_init(|| self.download(location)).await {
            Ok(whole) => {
                self.make_room(&slot);
                whole.part(options)
            }
            Err(error) => {
                self.forget(&slot);
                Err(error)
            }
        }
    }

    fn forget(&self, slot: &Arc<Slot>) {
        self.whole.lock().retain(|(_, other)| !Arc::ptr_eq(other, slot));
    }

    /// Forgets the oldest files; whoever reads one has it open.
    fn make_room(&self, latest: &Arc<Slot>) {
        let mut whole = self.whole.lock();
        let size = |slot: &Slot| slot.get().map_or(0, |whole| whole.meta.size);
        let mut bytes: u64 = whole.iter().map(|(_, slot)| size(slot)).sum();
        whole.retain(|(_, slot)| {
            let stays = bytes <= WHOLE_BYTES_MAX || size(slot) == 0 || Arc::ptr_eq(slot, latest);
            bytes -= if stays { 0 } else { size(slot) };
            stays
        });
    }

    async fn download(&self, location: &Path) -> Result<Whole> {
        let result = self.get(location, GetOptions::default()).await?;
        let meta = result.meta.clone();
        if meta.size > WHOLE_BYTES_MAX {
            let why = format!(
                "the server sends no parts of files (ranges), and this one has {} bytes, more than the \
                 {WHOLE_BYTES_MAX} that are read whole; copy it here",
                meta.size
            );
            return Err(Error::NotSupported { source: why.into() });
        }
        tracing::info!("{location} is read whole: the server sends no parts of it");
        let mut file = NamedTempFile::new().map_err(failed)?;
        let mut parts = result.into_stream();
        while let Some(part) = parts.try_next().await? {
            // Written between two reads from the network: the page cache takes it without waiting.
            file.write_all(&part).map_err(failed)?;
        }
        Ok(Whole { file, meta, checked: Mutex::new(Instant::now()) })
    }
}

impl Whole {
    fn part(&self, options: &GetOptions) -> Result<GetResult> {
        let range = match &options.range {
            Some(range) => range.as_range(self.meta.size).map_err(failed)?,
            None => 0..self.meta.size,
        };
        let path = self.file.path().to_owned();
        let file = File::open(&path).map_err(failed)?;
        Ok(GetResult {
            payload: GetResultPayload::File(file, path),
            meta: self.meta.clone(),
            range,
            attributes: Attributes::default(),
        })
    }
}

fn is_same(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.size == other.size && one.last_modified == other.last_modified && one.e_tag == other.e_tag
}

fn failed(error: impl StdError + Send + Sync + 'static) -> Error {
    Error::Generic { store: NAME, source: Box::new(error) }
}

fn too_silent() -> Error {
    let why = format!("the server has been silent for {} s", SILENCE_MAX.as_secs());
    failed(io::Error::new(io::ErrorKind::TimedOut, why))
}

async fn in_time<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(SILENCE_MAX, request).await.unwrap_or_else(|_| Err(too_silent()))
}

fn without_silence<T: Send + 'static>(
    parts: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let next = |mut parts: BoxStream<'static, Result<T>>| async move {
        let part = in_time(parts.try_next()).await?;
        Ok(part.map(|part| (part, parts)))
    };
    futures::stream::try_unfold(parts, next).boxed()
}

impl fmt::Display for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.http.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Web {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.http.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.http.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head || options.range.is_none() {
            let result = self.get(location, options).await?;
            self.compare(&result.meta);
            return Ok(result);
        }
        if let Some(part) = self.kept(location, &options).await? {
            return Ok(part);
        }
        match self.get(location, options.clone()).await {
            Err(Error::NotSupported { .. }) => self.read_whole(location, &options).await,
            result => result,
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.http.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.http.list(prefix).map_err(no_listing).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.http.list_with_delimiter(prefix).await.map_err(no_listing)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.http.copy_opts(from, to, options).await
    }
}

/// Few web servers list what they have.
fn no_listing(error: Error) -> Error {
    let text = error.to_string();
    let Some((_, status)) = text.split_once("non-2xx status code: ") else { return error };
    let status = status.split(':').next().unwrap_or(status);
    let why = format!(
        "there is no file of this name, and the server does not list what is in folders (it says \
         {status} to PROPFIND of WebDAV)"
    );
    Error::NotSupported { source: why.into() }
}
