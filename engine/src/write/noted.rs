//! Notes in a staging folder, by which others know how far a write has come.

use std::collections::BTreeSet;
use std::fmt;

use bytes::{BufMut, BytesMut};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use prost::Message;

/// What a note ends with: a part of one can be read as a shorter one.
const END: &[u8] = b"\nforebay\n";

/// Of a note: the names of a million files, from where and to where they are moved.
const BYTES_MAX: u64 = 512 << 20;

/// Writes a note. Of a file system it survives a loss of power, so that nothing that is done afterwards can be
/// there without it.
///
/// # Errors
/// Those of the store.
pub(super) async fn note(
    store: &dyn ObjectStore,
    path: &Path,
    is_local: bool,
    what: &impl Message,
) -> Result<()> {
    let mut bytes = BytesMut::from(what.encode_to_vec().as_slice());
    bytes.put_slice(END);
    store.put(path, PutPayload::from_bytes(bytes.freeze())).await?;
    match is_local {
        true => sync(vec![path.clone()]).await,
        false => Ok(()),
    }
}

/// Reads a note, if it was written. One that a loss of power has left without its bytes was not: nothing has been
/// done after it.
///
/// # Errors
/// If it cannot be read.
pub(super) async fn noted<M: Message + Default>(
    store: &dyn ObjectStore,
    path: &Path,
) -> Result<Option<M>> {
    found(store, path).await?.map_err(|problem| damaged(path, &problem))
}

/// The same of one that says nothing if it is damaged.
///
/// # Errors
/// Those of the store.
pub(super) async fn noted_if_whole<M: Message + Default>(
    store: &dyn ObjectStore,
    path: &Path,
) -> Result<Option<M>> {
    Ok(found(store, path).await?.unwrap_or_default())
}

/// A note, or what is wrong with it: anybody may have put it there.
async fn found<M: Message + Default>(
    store: &dyn ObjectStore,
    path: &Path,
) -> Result<Result<Option<M>, String>> {
    let found = match store.get(path).await {
        Ok(found) => found,
        Err(object_store::Error::NotFound { .. }) => return Ok(Ok(None)),
        Err(error) => return Err(error.into()),
    };
    if found.meta.size > BYTES_MAX {
        return Ok(Err(format!("it has {} bytes", found.meta.size)));
    }
    Ok(read(&found.bytes().await?))
}

fn read<M: Message + Default>(bytes: &[u8]) -> Result<Option<M>, String> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let note = bytes.strip_suffix(END).ok_or("its end is missing")?;
    M::decode(note).map(Some).map_err(|error| error.to_string())
}

/// What is said of a note that is there and makes no sense.
pub(super) fn damaged(path: &Path, problem: &dyn fmt::Display) -> DataFusionError {
    exec_datafusion_err!(
        "'{path}' is damaged: {problem}; look at the folder, and remove it by hand"
    )
}

/// Lets a file system write these files where they survive a loss of power.
///
/// # Errors
/// Those of the file system.
pub(super) async fn sync(paths: Vec<Path>) -> Result<()> {
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

/// The same of folders to which files have been moved, in one folder and below; and of `others`. What its owner has
/// removed meanwhile is left out.
///
/// # Errors
/// Those of the file system.
pub(super) async fn sync_moved(files: &[Path], folder: &Path, others: Vec<Path>) -> Result<()> {
    let paths: Vec<Path> = others.into_iter().chain(folders(files, folder)).collect();
    let synced = SpawnedTask::spawn_blocking(move || {
        for path in paths {
            match std::fs::File::open(std::path::Path::new("/").join(path.as_ref())) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                found => found?.sync_all()?,
            }
        }
        Ok::<_, std::io::Error>(())
    });
    let synced = synced.join().await;
    Ok(synced.map_err(|error| DataFusionError::External(Box::new(error)))??)
}

/// All folders in which these files are, as far up as this one, which is one of them: each may be new.
fn folders(files: &[Path], folder: &Path) -> BTreeSet<Path> {
    let mut folders = BTreeSet::from([folder.clone()]);
    for file in files {
        let mut above = file.parent();
        while let Some(one) = above.filter(|one| one.prefix_matches(folder)) {
            above = one.parent();
            if !folders.insert(one) {
                break;
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Names {
        #[prost(string, repeated, tag = "1")]
        names: Vec<String>,
    }

    #[tokio::test]
    async fn a_note_without_its_end_is_none_or_damaged() {
        let (store, path) = (InMemory::new(), Path::from("a/note"));
        let read = || noted::<Names>(&store, &path);
        assert_eq!(read().await.unwrap(), None);
        let names = Names { names: vec!["one".to_owned(), "other".to_owned()] };
        note(&store, &path, false, &names).await.unwrap();
        assert_eq!(read().await.unwrap(), Some(names));
        let whole = store.get(&path).await.unwrap().bytes().await.unwrap();
        for length in 1..whole.len() {
            store.put(&path, whole.slice(..length).into()).await.unwrap();
            let error = read().await.unwrap_err().to_string();
            assert!(error.contains("is damaged") && error.contains("by hand"), "{length}: {error}");
        }
        // What a loss of power leaves.
        for length in [0, whole.len()] {
            store.put(&path, vec![0; length].into()).await.unwrap();
            assert_eq!(read().await.unwrap(), None, "{length}");
        }
    }

    #[tokio::test]
    async fn folders_that_are_new_survive_a_loss_of_power() {
        let files = ["a/t/x=1/y=2/0", "a/t/x=1/y=3/0", "a/t/0", "b/0"].map(Path::from);
        let found: Vec<String> =
            folders(&files, &Path::from("a/t")).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["a/t", "a/t/x=1", "a/t/x=1/y=2", "a/t/x=1/y=3"]);
        let home = tempfile::tempdir().unwrap();
        let root = Path::from_absolute_path(home.path()).unwrap();
        std::fs::create_dir(home.path().join("x=1")).unwrap();
        let files = [root.clone().join("x=1").join("0"), root.clone().join("gone").join("0")];
        sync_moved(&files, &root, vec![root.clone().join("gone")]).await.unwrap();
    }

    #[tokio::test]
    async fn a_note_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("note")).unwrap();
        // Of a file system that keeps no zeros.
        file.set_len(BYTES_MAX + 1).unwrap();
        let path = Path::from_absolute_path(folder.path().join("note")).unwrap();
        let store = object_store::local::LocalFileSystem::new();
        let error = noted::<Names>(&store, &path).await.unwrap_err().to_string();
        assert!(error.contains("is damaged: it has 536870913 bytes"), "{error}");
    }
}
