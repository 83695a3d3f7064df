//! Two servers and one state.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::journal::disk::RealDisk;
use crate::journal::hold::{Claimed, Hold, Moment};
use crate::journal::identity::StateId;
use crate::journal::place::Place;

const LIMIT: Duration = Duration::from_secs(10);

/// A claim on a disk that lasts, with a server that watches it.
fn watched(takeover_after: Option<Duration>, of_holder: Option<Duration>) -> (Power, Claim, Watch) {
    let mut power = Power::for_ever();
    let claim = Claim::new("first", of_holder);
    assert!(power.claim(&names::claim(1), &claim.bytes()).unwrap());
    (power, claim, Watch::new(takeover_after))
}

/// What is found in each of these seconds.
fn found(power: &Power, watch: &mut Watch, seconds: &[u64]) -> Vec<Found> {
    let begin = Instant::now();
    let look = |at: &u64| watch.look(power, begin + Duration::from_secs(*at)).unwrap();
    seconds.iter().map(look).collect()
}

fn taken() -> Found {
    Found::Taken("first".to_owned())
}

fn silent(seconds: u64) -> Found {
    Found::Silent("first".to_owned(), Duration::from_secs(seconds), 2)
}

#[test]
fn who_says_nothing_for_long_enough_is_followed() {
    let (power, _, mut watch) = watched(Some(LIMIT), Some(LIMIT));
    let seen = found(&power, &mut watch, &[0, 4, 8, 9, 10, 11]);
    assert_eq!(seen, [taken(), taken(), taken(), taken(), silent(10), silent(11)]);
}

#[test]
fn who_shows_that_he_lives_is_not_followed() {
    let (mut power, mut claim, mut watch) = watched(Some(LIMIT), Some(LIMIT));
    let begin = Instant::now();
    for second in (0..100).step_by(4) {
        if second % 8 == 0 {
            claim.beats += 1;
            power.renew(&names::claim(1), &claim.bytes()).unwrap();
        }
        let now = begin + Duration::from_secs(second);
        assert_eq!(watch.look(&power, now).unwrap(), taken(), "{second}");
    }
}

/// It may have been stopped itself, or the disk may have been away.
#[test]
fn silence_counts_only_for_one_who_listens() {
    let (power, _, mut watch) = watched(Some(LIMIT), Some(LIMIT));
    let seen = found(&power, &mut watch, &[0, 4, 60, 64, 68, 70]);
    assert_eq!(seen, [taken(), taken(), taken(), taken(), taken(), silent(10)]);
}

#[test]
fn the_longer_time_of_both_counts_and_never_is_the_longest() {
    let longer = Some(Duration::from_secs(13));
    for (own, its) in [(Some(LIMIT), longer), (longer, Some(LIMIT))] {
        let (power, _, mut watch) = watched(own, its);
        let seen = found(&power, &mut watch, &[0, 4, 8, 12, 13]);
        assert_eq!(seen, [taken(), taken(), taken(), taken(), silent(13)]);
    }
    for (own, its) in [(Some(LIMIT), None), (None, Some(LIMIT))] {
        let (power, _, mut watch) = watched(own, its);
        let seen = found(&power, &mut watch, &[0, 1000, 1004, 1008, 1012]);
        assert!(seen.iter().all(|seen| *seen == taken()), "{seen:?}");
    }
}

#[test]
fn who_lets_go_is_followed_at_once() {
    let (mut power, claim, mut watch) = watched(None, Some(LIMIT));
    assert_eq!(found(&power, &mut watch, &[0]), [taken()]);
    let over = Claim { is_over: true, ..claim };
    power.renew(&names::claim(1), &over.bytes()).unwrap();
    assert_eq!(found(&power, &mut watch, &[0]), [Found::Free(2)]);
}

#[test]
fn of_two_who_follow_one_does() {
    let (mut power, claim, mut watch) = watched(Some(LIMIT), Some(LIMIT));
    let mut other = Watch::new(Some(LIMIT));
    for watch in [&mut watch, &mut other] {
        let seen = found(&power, watch, &[0, 4, 8, 10]);
        assert_eq!(seen.last(), Some(&silent(10)));
    }
    assert!(power.claim(&names::claim(2), &claim.bytes()).unwrap());
    assert!(!power.claim(&names::claim(2), &claim.bytes()).unwrap());
    assert_eq!(found(&power, &mut other, &[10]), [taken()], "of another term");
}

/// A claim that is locked, and a process that does nothing more.
fn stopped(folder: &TempDir) -> (Arc<Place>, RealDisk, Claim) {
    let mut disk = RealDisk::new(folder.path().to_owned());
    let claim = Claim::new("first", Some(Duration::from_secs(1)));
    assert!(disk.claim(&names::claim(1), &claim.bytes()).unwrap());
    (Arc::new(Place::Folder(folder.path().to_owned())), disk, claim)
}

fn claimed(term: u64, at: Moment) -> Claimed {
    Claimed { id: StateId::new(), term, at, was_silent: false }
}

fn second(folder: &TempDir) -> State {
    let second = State::in_folder(folder.path()).with_who("the server at second:1");
    second.with_takeover_after(Some(Duration::from_secs(1)))
}

#[tokio::test]
async fn a_server_that_is_there_and_silent_is_followed_and_learns_by_whom() {
    let folder = TempDir::new().unwrap();
    let (place, disk, claim) = stopped(&folder);
    let second = second(&folder).take().await.unwrap();
    assert!(second.term() == 2 && second.was_silent());
    let (journal, _) = second.open(fold).await.unwrap();
    journal.append("job", vec![1]);
    journal.flushed().await.unwrap();
    // It goes on.
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    let long_ago = Moment { clock: long_ago, ..Moment::now() };
    let first = Hold::start(place, Box::new(disk), claim, claimed(1, long_ago)).unwrap();
    assert!(!first.is_fresh());
    for lost in [first.confirm().await.unwrap_err(), first.lost().await] {
        let told = lost.to_string();
        assert!(told.starts_with("the server at second:1 (process "), "{told}");
        assert!(told.contains("has taken over the state in") && told.contains("ends"), "{told}");
        assert_eq!(lost.kind(), ErrorKind::Unavailable);
    }
    assert!(!first.is_fresh());
    second.check().await.unwrap();
    assert!(second.is_fresh());
    // When the second is gone as well, nobody waits for the first.
    drop((second, journal));
    let third = tokio::time::timeout(Duration::from_secs(60), opened(&folder)).await.unwrap();
    assert!(third.0.hold().term() == 3 && !third.0.hold().was_silent());
    assert_eq!(third.1, naive(&[record("job", &[1])]));
}

#[tokio::test]
async fn a_server_that_could_not_be_reached_takes_nothing_over() {
    let folder = TempDir::new().unwrap();
    let (_, disk, _) = stopped(&folder);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let second = second(&folder).with_ports(vec![port.local_addr().unwrap()]).take();
    tokio::pin!(second);
    assert!(tokio::time::timeout(Duration::from_secs(3), &mut second).await.is_err());
    drop(port);
    assert_eq!(second.await.unwrap().term(), 2);
    drop(disk);
}

#[tokio::test]
async fn what_is_let_go_is_free_though_somebody_has_it_open() {
    let folder = TempDir::new().unwrap();
    let (first, _) = opened(&folder).await;
    first.append("job", vec![1]);
    first.flushed().await.unwrap();
    first.hold().clone().let_go().await;
    let (second, found) = opened(&folder).await;
    assert_eq!(found, naive(&[record("job", &[1])]));
    first.append("job", vec![2]);
    assert!(matches!(first.flushed().await, Err(JournalError::Fenced { .. })));
    drop(second);
}

/// A folder with a journal that another release has written, and needs yet.
fn of_another_release(folder: &TempDir) {
    let (term, version) = (1, "0.0.1".to_owned());
    let mut bytes = Head { format: FORMAT, term, version }.encode();
    let mut group = vec![];
    record("job/1", &[1]).found().encode(&mut group);
    bytes.extend(frame::frame(0, &group));
    std::fs::write(folder.path().join(names::journal(term, 0)), bytes).unwrap();
}

#[tokio::test]
async fn a_server_of_another_release_takes_nothing_that_it_cannot_go_on_with() {
    let folder = TempDir::new().unwrap();
    let (place, disk, claim) = stopped(&folder);
    of_another_release(&folder);
    let refused = second(&folder).take().await.unwrap_err();
    assert!(matches!(refused, JournalError::OtherVersion { .. }), "{refused}");
    // Whoever has it goes on.
    let (now, long) = (Moment::now(), Some(Duration::from_secs(3600)));
    let claim = Claim { takeover_after_ms: long.map(|long| long.as_millis() as u64), ..claim };
    let first = Hold::start(place, Box::new(disk), claim, claimed(1, now)).unwrap();
    first.check().await.unwrap();
    first.let_go().await;
    // Nor what nobody has.
    let refused = State::in_folder(folder.path()).take().await.unwrap_err();
    assert!(matches!(refused, JournalError::OtherVersion { .. }), "{refused}");
    let names = RealDisk::new(folder.path().to_owned()).list().unwrap();
    assert_eq!(names::newest_claim(&names), Some(1), "{names:?}");
}

/// The clock that measures silence stood still.
#[tokio::test]
async fn a_machine_that_has_slept_looks_before_it_says_anything() {
    let folder = TempDir::new().unwrap();
    let now = Moment::now();
    let hour = Duration::from_secs(3600);
    for (calendar, is_fresh) in
        [(now.calendar, true), (now.calendar - hour, false), (now.calendar + hour, false)]
    {
        let mut disk = RealDisk::new(folder.path().to_owned());
        let names = disk.list().unwrap();
        let (term, claim) = (names::next_term(&names), Claim::new("first", Some(hour)));
        assert!(disk.claim(&names::claim(term), &claim.bytes()).unwrap());
        let (place, at) = (Place::Folder(folder.path().to_owned()), Moment { calendar, ..now });
        let claimed = claimed(term, at);
        let first = Hold::start(Arc::new(place), Box::new(disk), claim, claimed).unwrap();
        assert_eq!(first.is_fresh(), is_fresh, "{calendar:?}");
        first.confirm().await.unwrap();
        assert!(first.is_fresh());
    }
}

/// Some file systems keep locks for each machine apart.
#[test]
fn a_lock_of_another_machine_is_gone_when_its_server_says_nothing_either() {
    let folder = TempDir::new().unwrap();
    let mut its = RealDisk::new(folder.path().to_owned());
    let far = Some("another kernel".to_owned());
    let mut claim = Claim { kernel: far, ..Claim::new("first", Some(LIMIT * 3)) };
    assert!(its.claim(&names::claim(1), &claim.bytes()).unwrap());
    let path = folder.path().join(names::claim(1));
    drop(its);
    let disk = RealDisk::new(folder.path().to_owned());
    assert!(disk.is_let_go(&names::claim(1)).unwrap());
    for takeover_after in [Some(LIMIT), None] {
        let mut watch = Watch::new(takeover_after);
        let begin = Instant::now();
        for second in (0..60).step_by(3) {
            claim.beats += 1;
            std::fs::write(&path, claim.bytes()).unwrap();
            let now = begin + Duration::from_secs(second);
            assert_eq!(watch.look(&disk, now).unwrap(), taken(), "{second}");
        }
        let later = [60, 63, 66, 69].map(|second| begin + Duration::from_secs(second));
        let found = later.map(|now| watch.look(&disk, now).unwrap());
        assert_eq!(found, [taken(), taken(), taken(), Found::Free(2)]);
    }
    // On its own machine the lock alone tells.
    let near = Claim { beats: 0, ..Claim::new("first", Some(LIMIT)) };
    std::fs::write(&path, near.bytes()).unwrap();
    assert_eq!(Watch::new(None).look(&disk, Instant::now()).unwrap(), Found::Free(2));
}

/// Makes disks of one place.
pub(super) type Disks = Arc<dyn Fn() -> Box<dyn Disk> + Send + Sync>;

/// Something else happens before some calls.
struct Interrupted {
    disk: Box<dyn Disk>,
    calls: AtomicUsize,
    before: Box<dyn Fn(usize) + Send + Sync>,
}

impl Interrupted {
    fn called(&self) {
        (self.before)(self.calls.fetch_add(1, Ordering::Relaxed));
    }
}

impl Disk for Interrupted {
    fn list(&self) -> io::Result<Vec<String>> {
        self.called();
        self.disk.list()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.called();
        self.disk.read(name)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.called();
        self.disk.put(name, bytes)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.called();
        self.disk.append(name, bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.called();
        self.disk.sync(name)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.called();
        self.disk.remove(name)
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        self.disk.create(name, bytes)
    }

    fn claim(&mut self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        self.disk.claim(name, bytes)
    }

    fn renew(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.disk.renew(name, bytes)
    }

    fn is_let_go(&self, name: &str) -> io::Result<bool> {
        self.disk.is_let_go(name)
    }
}

/// A disk may be slow.
#[tokio::test]
async fn who_needs_most_of_it_waits_for_a_disk_only_if_that_is_far_behind() {
    let folder = TempDir::new().unwrap();
    let hold = State::in_folder(folder.path()).take().await.unwrap();
    let (power, is_stuck) = (Power::for_ever(), Arc::new(AtomicBool::new(false)));
    let its = Arc::clone(&is_stuck);
    let before = Box::new(move |_: usize| {
        while its.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let disk = Interrupted { disk: Box::new(power.clone()), calls: AtomicUsize::new(0), before };
    let (log, _) = Log::open(Box::new(disk), "state".to_owned(), VERSION, 1).unwrap();
    let journal = Journal::start(log, hold, fold).unwrap();
    is_stuck.store(true, Ordering::Release);
    for n in 0..5 {
        journal.append("job", vec![n]);
    }
    for last in [5, 6] {
        journal.flushed_but(last).await.unwrap();
    }
    let waits = journal.flushed_but(4);
    tokio::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut waits).await.is_err());
    is_stuck.store(false, Ordering::Release);
    waits.await.unwrap();
    // Nobody does anything more once it could not be written.
    power.full_at(0);
    journal.append("job", vec![5]);
    journal.flushed().await.unwrap_err();
    let failed = journal.flushed_but(1000).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::ResourceExhausted);
}

/// What came of it.
struct Overtaken {
    confirmed: usize,
    begun: Vec<Vec<Record>>,
    ended: Option<JournalError>,
    /// By the other one.
    read: Option<Records>,
    calls: usize,
}

/// A server writes on while another one claims the state before its call `claims`, and reads it before its call
/// `reads`.
fn overtaken(disks: &Disks, seed: u64, claims: usize, reads: usize) -> Overtaken {
    let term = claim(disks().as_mut()).unwrap();
    let (found, calls) = (Arc::new(Mutex::new((None, None))), Arc::new(AtomicUsize::new(0)));
    let (its, counts, its_disks) = (Arc::clone(&found), Arc::clone(&calls), Arc::clone(disks));
    let read = |disks: &Disks, term| {
        let opened = Log::open(disks(), "state".to_owned(), VERSION, term);
        opened.unwrap().1
    };
    let before = move |call: usize| {
        counts.store(call + 1, Ordering::Relaxed);
        let mut found = its.lock();
        if call == claims {
            found.0 = Some(claim(its_disks().as_mut()).unwrap());
        }
        if call == reads
            && let Some(term) = found.0
        {
            found.1 = Some(read(&its_disks, term));
        }
    };
    let (disk, before) = (disks(), Box::new(before));
    let disk = Interrupted { disk, calls: AtomicUsize::new(0), before };
    let (mut begun, mut confirmed) = (vec![], 0);
    let mut random = Random::new(seed);
    let write = || -> Result<(), JournalError> {
        let (log, _) = Log::open(Box::new(disk), "state".to_owned(), VERSION, term)?;
        let (mut log, mut copying) = (log.copied_from(400), None);
        for _ in 0..12 {
            let group = random_group(&mut random);
            begun.push(group.clone());
            log.commit(&group)?;
            confirmed = begun.len();
            copy(&mut log, &mut copying, &mut random)?;
        }
        Ok(())
    };
    let ended = write().err();
    let (claimed, found) = std::mem::take(&mut *found.lock());
    // It reads at last, should that not have happened by now.
    let read = claimed.map(|term| found.unwrap_or_else(|| read(disks, term)));
    if let Some(read) = &read {
        assert_eq!(open_on(disks()).unwrap().1, *read, "it stays what it is");
    }
    Overtaken { confirmed, begun, ended, read, calls: calls.load(Ordering::Relaxed) }
}

/// Of disks that are made anew for each history.
pub(super) fn check_takeovers(make: impl Fn() -> Disks, seeds: u64) {
    let (mut fenced, mut late, mut all) = (0, 0, 0);
    for seed in 0..seeds {
        let alone = overtaken(&make(), seed, usize::MAX, usize::MAX);
        assert_eq!((alone.confirmed, alone.ended), (alone.begun.len(), None));
        for claims in 0..alone.calls {
            for reads in claims..(claims + 8).min(alone.calls + 1) {
                let Overtaken { confirmed, begun, ended, read, .. } =
                    overtaken(&make(), seed, claims, reads);
                let read = read.unwrap();
                let at = beginning(confirmed, &begun, &read);
                assert!(
                    at.is_some(),
                    "seed {seed}, claimed at {claims}, read at {reads}: {confirmed} of {} were confirmed, and \
                     {read:?} was read",
                    begun.len()
                );
                all += 1;
                late += u64::from(at > Some(0));
                if let Some(error) = ended {
                    assert!(matches!(error, JournalError::Fenced { term: 2, .. }), "{error}");
                    fenced += 1;
                }
            }
        }
    }
    assert!(fenced > all / 2 && late > 0, "of {all}, {fenced} fenced, {late} knew more");
}

#[test]
fn whenever_another_one_takes_over_it_knows_all_that_was_confirmed() {
    let disks = || -> Disks {
        let power = Power::for_ever();
        Arc::new(move || -> Box<dyn Disk> { Box::new(power.clone()) })
    };
    check_takeovers(disks, 12);
}
