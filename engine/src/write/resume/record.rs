//! Records of parts that are complete.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, exec_err};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use prost::Message;
use uuid::Uuid;

use super::input::Input;
use super::pieces::{Inputs, Piece};
use crate::write::attempt::Written;
use crate::write::noted::{note, noted_if_whole, sync};
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
}

/// Which file of the inputs it is.
type Places<'a> = BTreeMap<&'a Input, usize>;

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
            .map(|file| as_written(store.as_ref(), file))
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
        note(store.as_ref(), &path, staging.is_local(), &record).await?;
        Ok(self)
    }

    pub(in crate::write) fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }
}

/// A file, if it is as it was written.
async fn as_written(store: &dyn ObjectStore, file: Written) -> Result<File> {
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
    let mut taken = Taken::default();
    let files: Places = inputs.files.iter().enumerate().map(|(at, file)| (file, at)).collect();
    while let Some((path, record, is_whole)) = records.try_next().await? {
        let part = (is_whole && record.fingerprint == fingerprint).then(|| record.part(&files));
        match part.flatten().filter(|part| taken.takes(&part.pieces)) {
            Some(part) => found.kept.push(part),
            None => found.unfit.push(path),
        }
    }
    Ok(found)
}

/// What a write consists of that has been committed.
#[derive(Debug, Default)]
pub(in crate::write) struct Sum {
    pub(in crate::write) parts: usize,
    pub(in crate::write) files: usize,
    pub(in crate::write) rows: u64,
}

/// The sum of all parts, of a write that has been committed: their files are elsewhere.
///
/// # Errors
/// Those of the store.
pub(in crate::write) async fn sum(store: &dyn ObjectStore, staging: &Staging) -> Result<Sum> {
    let mut records = store.list(Some(&staging.parts()));
    let mut sum = Sum::default();
    while let Some(meta) = records.try_next().await? {
        let record = get(store, &meta.location).await?;
        sum.parts += 1;
        sum.files += record.files.len();
        sum.rows += record.files.iter().map(|file| file.rows).sum::<u64>();
    }
    Ok(sum)
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
            let Covered { store, path, size, version, start, end } = covered.clone();
            let input = Input { store, path, size, version };
            let file = *files.get(&input)?;
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
