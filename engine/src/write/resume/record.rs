//! Records of parts that are complete.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader};
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_err};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use prost::Message;
use uuid::Uuid;

use super::input::Input;
use super::pieces::{InputFile, Inputs, Piece};
use crate::write::attempt::Written;
use crate::write::noted::{note, noted_if_whole, sync};
use crate::write::staging::{Staging, delete};

/// Files that are asked for at a time.
const ASKED_MAX: usize = 32;

/// Of a file that are read at a time, for its checksum.
const CRC_BYTES: usize = 1 << 20;

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
    #[prost(uint64, tag = "7")]
    scan: u64,
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
    /// A checksum, of what is read again from a file system.
    #[prost(fixed32, optional, tag = "6")]
    crc: Option<u32>,
}

/// Which file of the inputs it is, by its scan.
type Places<'a> = BTreeMap<(usize, &'a Input), usize>;

/// What of a write can be kept.
#[derive(Clone, Copy, Debug)]
pub(in crate::write) struct Wanted<'a> {
    /// Of all that makes the rows of a piece what they are.
    pub(in crate::write) fingerprint: &'a str,
    /// The same of what is made of all parts together, if something is.
    pub(in crate::write) rest: Option<&'a str>,
    pub(in crate::write) inputs: &'a Inputs,
}

/// What parts cover that are kept: the first byte of a piece, and where that ends.
#[derive(Default)]
struct Taken(BTreeMap<(usize, u64), u64>);

impl Taken {
    /// Takes these pieces, if nothing of them is taken.
    fn takes(&mut self, pieces: &[Piece]) -> bool {
        let mut own = pieces.to_vec();
        own.sort_unstable();
        let is_twice = own.windows(2).any(|two| two[0].overlaps(&two[1]));
        if is_twice || own.iter().any(|piece| self.has(piece)) {
            return false;
        }
        self.0.extend(own.into_iter().map(|piece| ((piece.file, piece.start), piece.end)));
        true
    }

    fn has(&self, piece: &Piece) -> bool {
        // None that is taken overlaps another one: the last that begins before its end ends last.
        let mut before = self.0.range((piece.file, 0)..(piece.file, piece.end));
        before.next_back().is_some_and(|(_, end)| *end > piece.start)
    }
}

/// What is there, of which some can be kept.
#[derive(Debug, Default)]
pub(in crate::write) struct Found {
    pub(in crate::write) kept: Vec<Part>,
    /// What was made of all parts together.
    pub(in crate::write) rest: Option<Part>,
    /// Records of the others.
    pub(in crate::write) unfit: Vec<Path>,
}

impl Found {
    /// What is to be computed of the inputs: what no part covers, or nothing if no part is needed any more.
    pub(in crate::write) fn missing(&self, inputs: &Inputs) -> Vec<Piece> {
        let parts = self.kept.iter().chain(&self.rest);
        inputs.missing(parts.flat_map(|part| part.pieces.iter().copied()))
    }
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
        wanted: Wanted<'_>,
    ) -> Result<Self> {
        let path = staging.parts().join(Uuid::new_v4().simple().to_string());
        // What is made of all parts reads their files again.
        let is_read_again = wanted.rest.is_some();
        self.note_at(&path, store, staging, (wanted.fingerprint, wanted.inputs), is_read_again)
            .await?;
        Ok(self)
    }

    /// The same of what was made of all parts together.
    ///
    /// # Errors
    /// As [`Self::note`].
    pub(in crate::write) async fn note_rest(
        &self,
        store: &Arc<dyn ObjectStore>,
        staging: &Staging,
        (fingerprint, inputs): (&str, &Inputs),
    ) -> Result<()> {
        self.note_at(&staging.rest(), store, staging, (fingerprint, inputs), false).await
    }

    async fn note_at(
        &self,
        path: &Path,
        store: &Arc<dyn ObjectStore>,
        staging: &Staging,
        (fingerprint, inputs): (&str, &Inputs),
        is_read_again: bool,
    ) -> Result<()> {
        let is_local = staging.is_local();
        let has_crc = is_read_again && is_local;
        let files: Vec<File> = stream::iter(self.files.clone())
            .map(|file| as_written(store.as_ref(), file, has_crc))
            .buffered(ASKED_MAX)
            .try_collect()
            .await?;
        if is_local {
            sync(self.files.iter().map(|file| file.path.clone()).collect()).await?;
        }
        let pieces = self.pieces.iter().map(|piece| covered(piece, &inputs.files[piece.file]));
        let record =
            Record { fingerprint: fingerprint.to_owned(), pieces: pieces.collect(), files };
        note(store.as_ref(), path, is_local, &record).await
    }

    pub(in crate::write) fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }
}

/// A file, if it is as it was written.
async fn as_written(store: &dyn ObjectStore, file: Written, has_crc: bool) -> Result<File> {
    let meta = store.head(&file.path).await?;
    if meta.size != file.bytes {
        return exec_err!(
            "'{}' has {} bytes, and {} were written",
            file.path,
            meta.size,
            file.bytes
        );
    }
    let crc = if has_crc { Some(crc(file.path.clone()).await?) } else { None };
    Ok(File {
        folder: file.folder.to_string(),
        path: file.path.to_string(),
        rows: file.rows,
        bytes: file.bytes,
        stats: file.stats,
        crc,
    })
}

fn covered(piece: &Piece, file: &InputFile) -> Covered {
    let Input { store, path, size, version } = file.input.clone();
    let scan = file.scan as u64;
    Covered { store, path, size, version, start: piece.start, end: piece.end, scan }
}

/// Reads all records, and looks whether their files are whole.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn read(
    store: &Arc<dyn ObjectStore>,
    staging: &Staging,
    wanted: Wanted<'_>,
) -> Result<Found> {
    let Wanted { fingerprint, inputs, .. } = wanted;
    let records = stream::iter(records(store.as_ref(), staging).await?).map(|path| async move {
        let record = get(store.as_ref(), &path).await?;
        let is_whole = is_whole(store.as_ref(), staging, &record).await?;
        Ok::<_, DataFusionError>((path, record, is_whole))
    });
    let mut records = records.buffered(ASKED_MAX);
    let mut found = Found::default();
    let mut taken = Taken::default();
    let files = places(inputs);
    while let Some((path, record, is_whole)) = records.try_next().await? {
        let part = (is_whole && record.fingerprint == fingerprint).then(|| record.part(&files));
        match part.flatten().filter(|part| taken.takes(&part.pieces)) {
            Some(part) => found.kept.push(part),
            None => found.unfit.push(path),
        }
    }
    found.rest = read_rest(store.as_ref(), staging, wanted, &files).await?;
    Ok(found)
}

/// What was made of all parts together, if it would be made of the same ones.
async fn read_rest(
    store: &dyn ObjectStore,
    staging: &Staging,
    wanted: Wanted<'_>,
    files: &Places<'_>,
) -> Result<Option<Part>> {
    let Some(fingerprint) = wanted.rest else { return Ok(None) };
    let record = get(store, &staging.rest()).await?;
    if record.fingerprint != fingerprint || !is_whole(store, staging, &record).await? {
        return Ok(None);
    }
    let part = record.part(files);
    let is_of_all = |part: &Part| wanted.inputs.missing(part.pieces.iter().copied()).is_empty();
    Ok(part.filter(is_of_all))
}

/// The paths of all records of parts, in order.
async fn records(store: &dyn ObjectStore, staging: &Staging) -> Result<Vec<Path>> {
    let found = store.list(Some(&staging.parts())).map_ok(|meta| meta.location);
    let mut paths: Vec<Path> = found.try_collect().await?;
    paths.sort_unstable();
    Ok(paths)
}

fn places(inputs: &Inputs) -> Places<'_> {
    inputs.files.iter().enumerate().map(|(at, file)| ((file.scan, &file.input), at)).collect()
}

/// Looks whether the files of parts are what was written, where there are checksums of them. Parts of others are not
/// kept.
///
/// # Errors
/// Those of the store, and if a file is another one.
pub(in crate::write) async fn check(store: &dyn ObjectStore, staging: &Staging) -> Result<()> {
    let mut damaged = None;
    for path in records(store, staging).await?.into_iter().filter(|_| staging.is_local()) {
        for file in get(store, &path).await?.files {
            let Some(written) = file.crc else { continue };
            let place = Path::parse(&file.path).map_err(object_store::Error::from)?;
            if crc(place).await? != written {
                delete(store, &path).await?;
                damaged = Some(file.path);
                break;
            }
        }
    }
    match damaged {
        None => Ok(()),
        Some(file) => exec_err!(
            "'{file}' is not what the job has written there: look at the disk; its part is computed again by RESUME \
             JOB"
        ),
    }
}

/// The checksum of a file of a file system.
async fn crc(path: Path) -> Result<u32> {
    let summed = SpawnedTask::spawn_blocking(move || {
        let file = std::fs::File::open(std::path::Path::new("/").join(path.as_ref()))?;
        let (mut hasher, mut file) =
            (crc32fast::Hasher::new(), BufReader::with_capacity(CRC_BYTES, file));
        loop {
            let bytes = file.fill_buf()?;
            if bytes.is_empty() {
                return Ok::<_, std::io::Error>(hasher.finalize());
            }
            hasher.update(bytes);
            let read = bytes.len();
            file.consume(read);
        }
    });
    let summed = summed.join().await;
    Ok(summed.map_err(|error| DataFusionError::External(Box::new(error)))??)
}

/// What a write consists of that has been committed.
#[derive(Debug, Default)]
pub(in crate::write) struct Sum {
    pub(in crate::write) parts: usize,
    pub(in crate::write) files: usize,
    pub(in crate::write) rows: u64,
}

/// The sum of all parts, of a write that has been committed: their files are elsewhere. What was made of all parts
/// together `has_rest`: then its files and rows are those of the write.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn sum(
    store: &dyn ObjectStore,
    staging: &Staging,
    has_rest: bool,
) -> Result<Sum> {
    let mut sum = Sum::default();
    let mut add = |record: &Record| {
        sum.files += record.files.len();
        sum.rows += record.files.iter().map(|file| file.rows).sum::<u64>();
    };
    let records = records(store, staging).await?;
    let parts = records.len();
    if has_rest {
        add(&get(store, &staging.rest()).await?);
    } else {
        for path in records {
            add(&get(store, &path).await?);
        }
    }
    Ok(Sum { parts, ..sum })
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
    if found.rest.is_none() {
        delete(store.as_ref(), &staging.rest()).await?;
    }
    let kept = found.kept.iter().chain(&found.rest);
    let files = kept.flat_map(|part| &part.files).map(|file| &file.path);
    let files: HashSet<&Path> = files.collect();
    let all: Vec<ObjectMeta> = store.list(Some(staging.folder())).try_collect().await?;
    for meta in all {
        if !staging.is_own(&meta.location) && !files.contains(&meta.location) {
            delete(store.as_ref(), &meta.location).await?;
        }
    }
    Ok(())
}

/// A record; nothing of one that is damaged, which covers nothing.
async fn get(store: &dyn ObjectStore, path: &Path) -> Result<Record> {
    Ok(noted_if_whole(store, path).await?.unwrap_or_default())
}

async fn is_whole(store: &dyn ObjectStore, staging: &Staging, record: &Record) -> Result<bool> {
    for file in &record.files {
        // Anybody may have put the record there.
        let Ok(path) = Path::parse(&file.path) else { return Ok(false) };
        if !path.prefix_matches(staging.folder()) {
            return Ok(false);
        }
        match store.head(&path).await {
            // Nobody writes a name twice, and a store has another tag for what a commit has moved and moved back.
            Ok(meta) if meta.size == file.bytes => {}
            Ok(_) | Err(object_store::Error::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

impl Record {
    /// The part, if all of its pieces are still what they were.
    fn part(&self, files: &Places) -> Option<Part> {
        let piece = |covered: &Covered| {
            let Covered { store, path, size, version, start, end, scan } = covered.clone();
            let input = Input { store, path, size, version };
            let file = *files.get(&(usize::try_from(scan).ok()?, &input))?;
            // An empty file that is a row has one byte more than it has.
            let fits = start < end && end <= size.max(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_covered_twice() {
        let piece = |file, start, end| Piece { file, start, end };
        let mut taken = Taken::default();
        assert!(taken.takes(&[piece(0, 10, 20), piece(1, 0, 5)]));
        assert!(taken.takes(&[piece(1, 5, 9), piece(0, 0, 10), piece(0, 20, 30)]));
        for twice in [
            piece(0, 0, 1),
            piece(0, 29, 40),
            piece(0, 15, 16),
            piece(0, 5, 25),
            piece(1, 4, 6),
            piece(1, 8, 10),
        ] {
            // All of it or nothing.
            assert!(!taken.takes(&[piece(2, 0, 1), twice]), "{twice:?}");
        }
        assert!(!taken.takes(&[piece(2, 0, 2), piece(2, 1, 3)]));
        assert!(taken.takes(&[piece(2, 0, 1), piece(0, 30, 31), piece(1, 9, 10)]));
    }
}
