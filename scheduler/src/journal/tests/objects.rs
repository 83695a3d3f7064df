//! A state in an object store that fails at any moment.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
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
use crate::journal::identity::find_or_make;
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
    /// The first calls that ask that are answered as if something was there.
    says_taken: Arc<AtomicUsize>,
    /// And do what they were to do.
    does_it: bool,
    /// So many of these calls are not answered, and done.
    unanswered: Arc<AtomicUsize>,
    /// So many listings fail after the first ones.
    fails_to_list: Arc<(AtomicUsize, AtomicUsize)>,
}

impl Faulty {
    fn new(store: &Arc<InMemory>) -> Self {
        let (store, changes) = (Arc::clone(store), Arc::default());
        Self {
            store,
            changes,
            stops_at: usize::MAX,
            does_the_last: false,
            overwrites: false,
            says_taken: Arc::default(),
            does_it: false,
            unanswered: Arc::default(),
            fails_to_list: Arc::default(),
        }
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
        if options.mode == PutMode::Create && takes_one(&self.says_taken) {
            if self.does_it {
                self.store.put_opts(at, data, options).await?;
            }
            let (path, source) = (at.to_string(), "409 Conflict".into());
            return Err(Error::AlreadyExists { path, source });
        }
        // The claims, and not what is tried at the start.
        if at.as_ref().ends_with(".term") && takes_one(&self.unanswered) {
            self.store.put_opts(at, data, options).await?;
            return Err(Self::refused());
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
        let (first, then) = self.fails_to_list.as_ref();
        if !takes_one(first) && takes_one(then) {
            return Err(Self::refused());
        }
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.change(self.store.copy_opts(from, to, options)).await
    }
}

/// Takes one of so many, if there is one.
fn takes_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
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
                let at = beginning(confirmed, &begun, &found);
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
        copy_at_once(&mut log);
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
    let (journal, _) = first.open(fold).await.unwrap();
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
    assert_eq!(second.open(fold).await.unwrap().1, naive(&[record("job", &[1])]));
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

/// Amazon's says so where several write an object at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_answered_as_if_there_was_one_is_made_again_if_there_is_none() {
    for does_it in [false, true] {
        let store = Arc::new(InMemory::new());
        for says_taken in 1..4 {
            let says_taken = Arc::new(AtomicUsize::new(says_taken));
            let conflicting = Faulty { says_taken, does_it, ..Faulty::new(&store) };
            let hold = state(conflicting).take().await.unwrap();
            hold.check().await.unwrap();
            hold.let_go().await;
        }
        let left = store.list(None).collect::<Vec<_>>().await;
        let names = left.into_iter().map(|object| object.unwrap().location.to_string());
        let names: Vec<String> = names.collect();
        let is_ours = |name: &String| name.ends_with(".term") || name.ends_with("/state.id");
        assert!(names.iter().all(is_ours), "{names:?}");
    }
}

#[test]
fn an_id_that_is_answered_as_if_there_was_one_is_what_is_there_in_the_end() {
    let runtime = Runtime::new().unwrap();
    for does_it in [false, true] {
        let store = Arc::new(InMemory::new());
        let says_taken = Arc::new(AtomicUsize::new(3));
        let mut conflicting = disk(Faulty { says_taken, does_it, ..Faulty::new(&store) }, &runtime);
        let id = find_or_make(conflicting.as_mut(), "state").unwrap();
        let mut other = disk(Faulty::new(&store), &runtime);
        assert_eq!(find_or_make(other.as_mut(), "state").unwrap(), id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_was_lost_is_had_and_a_server_that_waits_goes_on_waiting() {
    let store = Arc::new(InMemory::new());
    let limit = Some(Duration::from_secs(3600));
    let unanswered = Arc::new(AtomicUsize::new(1));
    let lost = Faulty { unanswered: Arc::clone(&unanswered), ..Faulty::new(&store) };
    let first = state(lost).with_takeover_after(limit).take();
    let first = tokio::time::timeout(Duration::from_secs(60), first).await.unwrap().unwrap();
    assert_eq!((first.term(), unanswered.load(Ordering::Relaxed)), (1, 0));
    let (journal, _) = first.open(fold).await.unwrap();
    journal.append("job", vec![1]);
    journal.flushed().await.unwrap();

    let fails_to_list = Arc::new((AtomicUsize::new(1), AtomicUsize::new(2)));
    let cut_off = Faulty { fails_to_list: Arc::clone(&fails_to_list), ..Faulty::new(&store) };
    let second = state(cut_off).with_takeover_after(limit).take();
    tokio::pin!(second);
    let failed = async {
        while fails_to_list.1.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = failed => {}
        taken = &mut second => panic!("{taken:?}"),
    }
    first.let_go().await;
    assert_eq!(second.await.unwrap().term(), 2);

    // What cannot be used at first is said at once.
    let fails_to_list = Arc::new((AtomicUsize::new(0), AtomicUsize::new(1)));
    let away = state(Faulty { fails_to_list, ..Faulty::new(&store) }).take().await.unwrap_err();
    assert!(away.to_string().contains("the line is cut"), "{away}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_silence_is_noticed_in_a_store_too() {
    let store = Arc::new(InMemory::new());
    let limit = Some(Duration::from_secs(2));
    let runtime = tokio::runtime::Handle::current();
    let gone = Arc::clone(&store);
    let claimed = SpawnedTask::spawn_blocking(move || {
        let objects = Objects::new(gone, Path::from("a/state"), "mem://a/state", runtime);
        ObjectDisk::new(objects).claim(&names::claim(1), &Claim::new("first", limit).bytes())
    });
    assert!(claimed.join().await.unwrap().unwrap());
    let second = state(Faulty::new(&store)).with_takeover_after(limit).take();
    let second = tokio::time::timeout(Duration::from_secs(60), second).await;
    let second = second.expect("nobody is followed").unwrap();
    assert!(second.term() == 2 && second.was_silent());
}
