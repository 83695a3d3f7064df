//! Records of parts that are complete.

use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_err};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use prost::Message;
use uuid::Uuid;

use super::input::Input;
use super::pieces::{Inputs, Piece};
use crate::write::attempt::Written;
use crate::write::staging::{Staging, delete};

/// Files that are asked for at a time.
const ASKED_MAX: usize = 32;

/// A part that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::write) struct Part {
    pub(in crate::write) pieces: Vec<Piece>,
    pub(in crate::write) files: Vec<Written>,
}

/// Its form in the staging folder.
#[derive(Clone, PartialEq, Message)]
struct Record {
    /// Of all that makes the rows of a piece what they are.
    #[prost(string, tag = "1")]
    fingerprint: String,
    #[prost(message, repeated, tag = "2")]
    pieces: Vec<Covered>,
    #[prost(message, repeated, tag = "3")]
    files: Vec<File>,
}

#[derive(Clone, PartialEq, Message)]
struct Covered {
    #[prost(string, tag = "1")]
    store: String,
    #[prost(string, tag = "2")]
    path: String,
    #[prost(uint64, tag = "3")]
    size: u64,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(uint64, tag = "5")]
    start: u64,
    #[prost(uint64, tag = "6")]
    end: u64,
}

#[derive(Clone, PartialEq, Message)]
struct File {
    #[prost(string, tag = "1")]
    folder: String,
    #[prost(string, tag = "2")]
    path: String,
    #[prost(uint64, tag = "3")]
    rows: u64,
    #[prost(uint64, tag = "4")]
    bytes: u64,
    #[prost(string, optional, tag = "5")]
    stats: Option<String>,
    /// As the store has it.
    #[prost(string, optional, tag = "6")]
    tag: Option<String>,
}

/// What is there, of which some can be kept.
#[derive(Debug, Default)]
pub(in crate::write) struct Found {
    pub(in crate::write) kept: Vec<Part>,
    /// Records of the others.
    pub(in crate::write) unfit: Vec<Path>,
}

impl Part {
    /// Writes the record of a part whose files are complete: from then on they are kept.
    ///
    /// # Errors
    /// Those of the store, and if a file is not as it was written.
    pub(in crate::write) async fn note(
        self,
        store: &Arc<dyn ObjectStore>,
        staging: &Staging,
        fingerprint: &str,
        inputs: &Inputs,
    ) -> Result<Self> {
        let files: Vec<File> = stream::iter(self.files.clone())
            .map(|file| noted(store.as_ref(), file))
            .buffered(ASKED_MAX)
            .try_collect()
            .await?;
        if staging.is_local() {
            sync(self.files.iter().map(|file| file.path.clone()).collect()).await?;
        }
        let pieces = self.pieces.iter().map(|piece| covered(piece, &inputs.files[piece.file]));
        let record =
            Record { fingerprint: fingerprint.to_owned(), pieces: pieces.collect(), files };
        let path = staging.parts().join(Uuid::new_v4().simple().to_string());
        store.put(&path, PutPayload::from(record.encode_to_vec())).await?;
        if staging.is_local() {
            sync(vec![path]).await?;
        }
        Ok(self)
    }

    pub(in crate::write) fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }
}

async fn noted(store: &dyn ObjectStore, file: Written) -> Result<File> {
    let meta = store.head(&file.path).await?;
    if meta.size != file.bytes {
        return exec_err!(
            "'{}' has {} bytes, and {} were written",
            file.path,
            meta.size,
            file.bytes
        );
    }
    Ok(File {
        folder: file.folder.to_string(),
        path: file.path.to_string(),
        rows: file.rows,
        bytes: file.bytes,
        stats: file.stats,
        tag: meta.e_tag,
    })
}

fn covered(piece: &Piece, input: &Input) -> Covered {
    let Input { store, path, size, version } = input.clone();
    Covered { store, path, size, version, start: piece.start, end: piece.end }
}

/// Reads all records, and looks whether their files are whole.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn read(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    fingerprint: &str,
    inputs: &Inputs,
) -> Result<Found> {
    let mut paths: Vec<Path> =
        store.list(Some(&staging.parts())).map_ok(|meta| meta.location).try_collect().await?;
    paths.sort_unstable();
    let records = stream::iter(paths).map(|path| async move {
        let record = get(store.as_ref(), &path).await?;
        let is_whole = is_whole(store.as_ref(), staging, &record).await?;
        Ok::<_, DataFusionError>((path, record, is_whole))
    });
    let mut records = records.buffered(ASKED_MAX);
    let mut found = Found::default();
    while let Some((path, record, is_whole)) = records.try_next().await? {
        let part = (is_whole && record.fingerprint == fingerprint).then(|| record.part(inputs));
        let is_twice = |part: &Part| {
            let kept = found.kept.iter().flat_map(|kept| &kept.pieces);
            kept.into_iter().any(|kept| part.pieces.iter().any(|piece| piece.overlaps(kept)))
        };
        match part.flatten().filter(|part| !is_twice(part)) {
            Some(part) => found.kept.push(part),
            None => found.unfit.push(path),
        }
    }
    Ok(found)
}

/// The rows of all parts, of a write that has been committed: their files are elsewhere.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn rows(store: &dyn ObjectStore, staging: &Staging) -> Result<u64> {
    let mut records = store.list(Some(&staging.parts()));
    let mut rows = 0;
    while let Some(meta) = records.try_next().await? {
        let record = get(store, &meta.location).await?;
        rows += record.files.iter().map(|file| file.rows).sum::<u64>();
    }
    Ok(rows)
}

/// Removes what is of no use: records of other parts, and all files of attempts that these do not name.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn keep_only(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    found: &Found,
) -> Result<()> {
    // A record without its files is not whole; files without their record are nobody's.
    for record in &found.unfit {
        delete(store.as_ref(), record).await?;
    }
    let files = found.kept.iter().flat_map(|part| &part.files).map(|file| &file.path);
    let files: std::collections::HashSet<&Path> = files.collect();
    let all: Vec<ObjectMeta> = store.list(Some(staging.folder())).try_collect().await?;
    for meta in all {
        if !staging.is_own(&meta.location) && !files.contains(&meta.location) {
            delete(store.as_ref(), &meta.location).await?;
        }
    }
    Ok(())
}

/// A record; nothing of one that cannot be read, which covers nothing.
async fn get(store: &dyn ObjectStore, path: &Path) -> Result<Record> {
    let bytes = store.get(path).await?.bytes().await?;
    Ok(Record::decode(bytes).unwrap_or_default())
}

async fn is_whole(store: &dyn ObjectStore, staging: &Staging, record: &Record) -> Result<bool> {
    for file in &record.files {
        // Anybody may have put the record there.
        let Ok(path) = Path::parse(&file.path) else { return Ok(false) };
        if !path.prefix_matches(staging.folder()) {
            return Ok(false);
        }
        match store.head(&path).await {
            Ok(meta) if meta.size == file.bytes && meta.e_tag == file.tag => {}
            Ok(_) | Err(object_store::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

impl Record {
    /// The part, if all of its pieces are still what they were.
    fn part(&self, inputs: &Inputs) -> Option<Part> {
        let piece = |covered: &Covered| {
            let Covered { store, path, size, version, start, end } = covered.clone();
            let input = Input { store, path, size, version };
            let file = inputs.files.iter().position(|file| *file == input)?;
            let fits = start < end && end <= size;
            fits.then_some(Piece { file, start, end })
        };
        let file = |file: &File| {
            let (folder, path) = (Path::parse(&file.folder).ok()?, Path::parse(&file.path).ok()?);
            let (rows, bytes, stats) = (file.rows, file.bytes, file.stats.clone());
            Some(Written { folder, path, rows, bytes, stats })
        };
        let pieces: Vec<Piece> = self.pieces.iter().map(piece).collect::<Option<_>>()?;
        let files = self.files.iter().map(file).collect::<Option<_>>()?;
        (!pieces.is_empty()).then_some(Part { pieces, files })
    }
}

/// Lets a file system write these files where they survive a loss of power.
async fn sync(paths: Vec<Path>) -> Result<()> {
    let synced = SpawnedTask::spawn_blocking(move || {
        for path in paths {
            let path = std::path::Path::new("/").join(path.as_ref());
            std::fs::File::open(&path)?.sync_all()?;
            if let Some(folder) = path.parent() {
                std::fs::File::open(folder)?.sync_all()?;
            }
        }
        Ok::<_, std::io::Error>(())
    });
    let synced = synced.join().await;
    Ok(synced.map_err(|error| DataFusionError::External(Box::new(error)))??)
}
