//! An object store as a disk. A journal is a folder of objects, each of which has what was written together.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::runtime::Handle;

use super::disk::Disk;
use super::names;

/// Objects of a journal that are read at a time.
const READS_AT_ONCE: usize = 32;

/// Of as many objects a journal may consist: whoever follows reads all of them.
const OBJECTS_MAX: u64 = 1000;

/// A place in an object store.
#[derive(Clone)]
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// For people.
    url: String,
    /// What calls of the store run in. They are made on threads on which nobody else waits.
    runtime: Handle,
}

impl Objects {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        url: &str,
        runtime: Handle,
    ) -> Self {
        let url = url.trim_end_matches('/').to_owned();
        Self { store, prefix, url, runtime }
    }

    pub(super) fn below(&self, name: &str) -> Self {
        let (prefix, url) = (self.prefix.clone().join(name), format!("{}/{name}", self.url));
        Self { prefix, url, ..self.clone() }
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    fn piece(&self, name: &str, number: u64) -> Path {
        self.path(name).join(format!("{number:08}"))
    }

    fn wait<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> io::Result<T> {
        self.runtime.block_on(work).map_err(as_io)
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.wait(self.store.put(path, PutPayload::from(bytes.to_vec()))).map(drop)
    }

    /// Writes an object that is not there yet; says whether that is so.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let payload = PutPayload::from(bytes.to_vec());
        match self.wait(self.store.put_opts(path, payload, PutMode::Create.into())) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finds out whether of two who write one object one is told that it is there. Some servers take the question,
    /// and do not know it.
    pub(super) fn check(&self) -> io::Result<()> {
        let path = self.path(&format!("{}.check", uuid::Uuid::new_v4().simple()));
        // If the first one finds it there, it is by a try of its own, whose answer was lost.
        let is_told = !self.create(&path, b"1")? || !self.create(&path, b"2")?;
        match self.wait(self.store.delete(&path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if is_told {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this store writes over an object that is to be written only if it is not there yet (If-None-Match), so \
             that two servers could have the state at a time; use a folder, or a store that knows that",
        ))
    }

    fn get(&self, path: &Path) -> io::Result<Vec<u8>> {
        let got = self.wait(async { self.store.get(path).await?.bytes().await })?;
        Ok(got.to_vec())
    }

    /// All objects below a name, in order.
    fn pieces(&self, name: &str) -> io::Result<Vec<Path>> {
        let prefix = self.path(name);
        let found = self.store.list(Some(&prefix)).map_ok(|meta| meta.location);
        let mut found: Vec<Path> = self.wait(found.try_collect())?;
        found.sort();
        Ok(found)
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.url)
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

fn as_io(error: StoreError) -> io::Error {
    let kind = match &error {
        StoreError::NotFound { .. } => io::ErrorKind::NotFound,
        // Stores say one or the other where something is to be new.
        StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => {
            io::ErrorKind::AlreadyExists
        }
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
            io::ErrorKind::Unsupported
        }
        _ => io::ErrorKind::Other,
    };
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Many say what their cause says, too.
        if !text.contains(&inner.to_string()) {
            text = format!("{text}: {inner}");
        }
        cause = inner.source();
    }
    io::Error::new(kind, text)
}

/// What is written to such a place.
#[derive(Debug)]
pub(super) struct ObjectDisk {
    objects: Objects,
    /// What was appended to journals, and is not there yet.
    waiting: HashMap<String, Vec<u8>>,
    /// The numbers of their next objects.
    next: HashMap<String, u64>,
}

impl ObjectDisk {
    pub(super) fn new(objects: Objects) -> Self {
        Self { objects, waiting: HashMap::new(), next: HashMap::new() }
    }
}

impl Disk for ObjectDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let Objects { store, prefix, .. } = &self.objects;
        let found = self.objects.wait(store.list_with_delimiter(Some(prefix)))?;
        let files = found.objects.iter().map(|object| &object.location);
        let names = files.chain(&found.common_prefixes);
        Ok(names.filter_map(|path| path.filename().map(str::to_owned)).collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        if !names::is_journal(name) {
            return self.objects.get(&self.objects.path(name));
        }
        let pieces = self.objects.pieces(name)?;
        if pieces.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let store = &self.objects.store;
        let reads = pieces.iter().map(|path| async { store.get(path).await?.bytes().await });
        let read = stream::iter(reads).buffered(READS_AT_ONCE).try_collect::<Vec<_>>();
        Ok(self.objects.wait(read)?.concat())
    }

    fn read_head(&self, name: &str) -> io::Result<Vec<u8>> {
        match names::is_journal(name) {
            true => self.objects.get(&self.objects.piece(name, 0)),
            false => self.read(name),
        }
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if !names::is_journal(name) {
            return self.objects.put(&self.objects.path(name), bytes);
        }
        self.waiting.remove(name);
        self.next.insert(name.to_owned(), 1);
        self.objects.put(&self.objects.piece(name, 0), bytes)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.waiting.entry(name.to_owned()).or_default().extend(bytes);
        Ok(())
    }

    /// Nobody else writes under this name: it has the term of whoever has the state.
    fn sync(&mut self, name: &str) -> io::Result<()> {
        let Some(bytes) = self.waiting.remove(name) else { return Ok(()) };
        let next = self.next.entry(name.to_owned()).or_default();
        let path = self.objects.piece(name, *next);
        *next += 1;
        self.objects.put(&path, &bytes)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if !names::is_journal(name) {
            return self.objects.wait(self.objects.store.delete(&self.objects.path(name)));
        }
        self.next.remove(name);
        // The first one last: without it the others say nothing.
        for piece in self.objects.pieces(name)?.into_iter().rev() {
            self.objects.wait(self.objects.store.delete(&piece))?;
        }
        Ok(())
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        self.objects.create(&self.objects.path(name), bytes)
    }

    fn claim(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        // It may be there by a first try of its own, whose answer was lost.
        Ok(self.create(name, bytes)? || self.is_claimed(name, bytes)?)
    }

    /// Stores say that an object is there also where several write it at a time, of whom none may have come to.
    fn is_claimed(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        match self.objects.get(&self.objects.path(name)) {
            Ok(found) => Ok(found == bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn renew(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.objects.put(&self.objects.path(name), bytes)
    }

    /// A store knows of no process.
    fn is_let_go(&self, _: &str) -> io::Result<bool> {
        Ok(false)
    }

    fn appends_max(&self) -> u64 {
        OBJECTS_MAX
    }
}
