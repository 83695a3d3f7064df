//! A state in an object store that fails at any moment.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::runtime::Runtime;

use super::owners::{Disks, check_takeovers};
use super::*;
use crate::journal::objects::{ObjectDisk, Objects};

/// A store of which a process is cut off.
#[derive(Debug)]
struct Faulty {
    store: Arc<InMemory>,
    /// Operations that change something.
    changes: Arc<AtomicUsize>,
    /// From this one on nothing is done; this one may be, and nobody is told.
    stops_at: usize,
    does_the_last: bool,
    /// It takes the question whether an object is there, and does not know it.
    overwrites: bool,
}

impl Faulty {
    fn new(store: &Arc<InMemory>) -> Self {
        let (store, changes) = (Arc::clone(store), Arc::default());
        let (stops_at, does_the_last, overwrites) = (usize::MAX, false, false);
        Self { store, changes, stops_at, does_the_last, overwrites }
    }

    fn refused() -> Error {
        Error::Generic { store: "faulty", source: "the line is cut".into() }
    }

    async fn change<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let number = self.changes.fetch_add(1, Ordering::Relaxed);
        if number < self.stops_at {
            return work.await;
        }
        if number == self.stops_at && self.does_the_last {
            work.await?;
        }
        Err(Self::refused())
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[tonic::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        at: &Path,
        data: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if self.overwrites {
            options.mode = PutMode::Overwrite;
        }
        self.change(self.store.put_opts(at, data, options)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.change(self.store.put_multipart_opts(at, options)).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.store.get_opts(at, options).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.store.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        if self.changes.fetch_add(1, Ordering::Relaxed) >= self.stops_at {
            return futures::stream::iter([Err(Self::refused())]).boxed();
        }
        self.store.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.change(self.store.copy_opts(from, to, options)).await
    }
}

fn disk(store: impl ObjectStore, runtime: &Runtime) -> Box<dyn Disk> {
    let (store, prefix) = (Arc::new(store), Path::from("a/state"));
    let objects = Objects::new(store, prefix, "mem://a/state", runtime.handle().clone());
    Box::new(ObjectDisk::new(objects))
}

#[test]
fn whenever_the_store_is_cut_off_what_was_confirmed_is_there() {
    let runtime = Runtime::new().unwrap();
    let (mut lost, mut more) = (0, 0);
    for seed in 0..12 {
        let store = Arc::new(InMemory::new());
        let faulty = Faulty::new(&store);
        let changes = Arc::clone(&faulty.changes);
        let (confirmed, begun) = written(disk(faulty, &runtime), seed);
        assert_eq!(confirmed, begun.len());
        for stops_at in 0..changes.load(Ordering::Relaxed) {
            for does_the_last in [false, true] {
                let store = Arc::new(InMemory::new());
                let faulty = Faulty { stops_at, does_the_last, ..Faulty::new(&store) };
                let (confirmed, begun) = written(disk(faulty, &runtime), seed);
                let (_, found) = open_on(disk(Faulty::new(&store), &runtime)).unwrap();
                let beginnings = confirmed..=begun.len();
                let knows = beginnings.map(|n| naive(begun[..n].iter().flatten()));
                let at = knows.collect::<Vec<_>>().iter().position(|known| *known == found);
                assert!(at.is_some(), "seed {seed}, change {stops_at}: {found:?}");
                lost += u64::from(begun.len() > confirmed && at == Some(0));
                more += u64::from(at > Some(0));
                let again = open_on(disk(Faulty::new(&store), &runtime)).unwrap();
                assert_eq!(again.1, found);
            }
        }
    }
    assert!(lost > 100 && more > 20, "{lost} lost, {more} more than was confirmed");
}

#[test]
fn whenever_another_one_takes_over_it_knows_all_that_was_confirmed() {
    let runtime = Arc::new(Runtime::new().unwrap());
    let disks = || -> Disks {
        let (store, runtime) = (Arc::new(InMemory::new()), Arc::clone(&runtime));
        Arc::new(move || disk(Faulty::new(&store), &runtime))
    };
    check_takeovers(disks, 6);
}

#[test]
fn a_journal_of_many_objects_is_copied_and_the_old_ones_go() {
    let runtime = Runtime::new().unwrap();
    let store = Arc::new(InMemory::new());
    let (mut log, _) = open_on(disk(Faulty::new(&store), &runtime)).unwrap();
    let mut expected = vec![];
    for n in 0..2500_u16 {
        let group = [record("job", &n.to_le_bytes())];
        log.commit(&group).unwrap();
        log.copy_if_due().unwrap();
        expected.extend(group);
    }
    let prefix = Path::from("a/state");
    let objects = runtime.block_on(store.list(Some(&prefix)).collect::<Vec<_>>()).len();
    assert!((500..600).contains(&objects), "{objects} objects");
    let (_, found) = open_on(disk(Faulty::new(&store), &runtime)).unwrap();
    assert_eq!(found, naive(&expected));
}

fn state(store: impl ObjectStore) -> State {
    State::in_store(Arc::new(store), Path::from("a/state"), "mem://a/state/")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_let_go_is_free_at_once_and_documents_lie_beside_it() {
    let store = Arc::new(InMemory::new());
    let limit = Some(Duration::from_secs(3600));
    let take = || state(Faulty::new(&store)).with_takeover_after(limit).take();
    let first = take().await.unwrap();
    let (journal, _) = first.open().await.unwrap();
    journal.append("job", vec![1]);
    journal.flushed().await.unwrap();
    let documents = Arc::new(first.documents("jobs").unwrap());
    let its = Arc::clone(&documents);
    let written = tokio::task::block_in_place(|| its.put("0A.json", b"{}"));
    written.unwrap();
    assert_eq!(documents.path("0A.json"), "mem://a/state/jobs/0A.json");
    let waits = take();
    tokio::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_secs(2), &mut waits).await.is_err());
    first.let_go().await;
    let second = waits.await.unwrap();
    assert_eq!(second.term(), 2);
    assert_eq!(second.open().await.unwrap().1, naive(&[record("job", &[1])]));
    journal.append("job", vec![2]);
    assert!(matches!(journal.flushed().await, Err(JournalError::Fenced { term: 2, .. })));
    let documents = second.documents("jobs").unwrap();
    tokio::task::block_in_place(|| {
        assert_eq!(documents.names().unwrap(), ["0A.json"]);
        assert_eq!(documents.read("0A.json").unwrap().unwrap(), b"{}");
        documents.remove("0A.json").unwrap();
        documents.remove("0A.json").unwrap();
        assert_eq!(documents.read("0A.json").unwrap(), None);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_writes_over_what_is_there_is_refused() {
    let store = Arc::new(InMemory::new());
    let taken = state(Faulty { overwrites: true, ..Faulty::new(&store) }).take().await;
    let refused = taken.unwrap_err().to_string();
    assert!(refused.contains("mem://a/state") && refused.contains("If-None-Match"), "{refused}");
    let left = store.list(None).collect::<Vec<_>>().await;
    assert!(left.is_empty(), "{left:?}");
}
