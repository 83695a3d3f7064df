//! Machines that stop, files that are cut and damaged, and a state with two owners.

mod identity;
mod objects;
mod owners;
mod power;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_engine::ErrorKind;
use forebay_testkit::random::Random;
use tempfile::TempDir;

use super::claim::{Claim, Found, Watch};
use super::disk::Disk;
use super::error::JournalError;
use super::frame::{self, FORMAT, HEAD_BYTES, Head, Record};
use super::log::Log;
use super::names;
use super::{Journal, Records, State, VERSION};
use power::Power;

fn record(key: &str, data: &[u8]) -> Record {
    Record { key: key.to_owned(), data: Some(data.to_vec()) }
}

fn end(key: &str) -> Record {
    Record { key: key.to_owned(), data: None }
}

/// What is read of a file of these records, each in a group of its own, that was cut off somewhere.
pub(crate) fn cut_somewhere(records: &[Vec<u8>], random: &mut Random) -> Vec<Vec<u8>> {
    let version = VERSION.to_owned();
    let mut bytes = Head { format: FORMAT, term: 1, version }.encode();
    for (number, data) in (0..).zip(records) {
        let mut group = vec![];
        record("job", data).found().encode(&mut group);
        bytes.extend(frame::frame(number, &group));
    }
    bytes.truncate(random.between(HEAD_BYTES as u64, bytes.len() as u64) as usize);
    let read = frame::read(&bytes).unwrap().records.into_iter();
    read.filter_map(|record| record.data.map(<[u8]>::to_vec)).collect()
}

fn open(power: &Power) -> Result<(Log, Records), JournalError> {
    open_on(Box::new(power.clone()))
}

/// Claims the state on this disk, and reads it.
fn open_on(mut disk: Box<dyn Disk>) -> Result<(Log, Records), JournalError> {
    let failed = |error| JournalError::of_io("state", "use", &error);
    let term = claim(disk.as_mut()).map_err(failed)?;
    Log::open(disk, "state".to_owned(), VERSION, term)
}

/// Claims the next term, whoever has this one: he has said nothing for long enough.
fn claim(disk: &mut dyn Disk) -> std::io::Result<u64> {
    let (limit, now) = (Duration::from_secs(1), Instant::now());
    let mut watch = Watch::new(Some(limit));
    for steps in 0..=10 {
        match watch.look(disk, now + limit * steps / 4)? {
            Found::Taken(_) => {}
            Found::Free(term) | Found::Silent(_, _, term) => {
                let claim = Claim::new(&format!("server {term}"), Some(limit));
                assert!(disk.claim(&names::claim(term), &claim.bytes())?);
                return Ok(term);
            }
        }
    }
    panic!("nobody writes there, and it is not free");
}

/// What records come to, by the plainest rule.
fn naive<'a>(records: impl IntoIterator<Item = &'a Record>) -> Records {
    let mut found = Records::new();
    for record in records {
        match &record.data {
            Some(data) => found.entry(record.key.clone()).or_default().push(data.clone()),
            None => drop(found.remove(&record.key)),
        }
    }
    found
}

fn random_group(random: &mut Random) -> Vec<Record> {
    let one = |random: &mut Random| {
        let key = format!("k{}", random.below(6));
        if random.chance(15) {
            return end(&key);
        }
        let size = if random.chance(10) { 300 } else { 20 };
        let data: Vec<u8> = (0..random.index(size)).map(|_| random.below(256) as u8).collect();
        record(&key, &data)
    };
    (0..=random.index(4)).map(|_| one(random)).collect()
}

/// A history on a machine that stops at this operation: what was confirmed, what was begun, and the
/// folder.
fn history(seed: u64, stops_at: usize) -> (usize, Vec<Vec<Record>>, Power) {
    let power = Power::until(stops_at);
    let (confirmed, begun) = written(Box::new(power.clone()), seed);
    (confirmed, begun, power)
}

/// What was confirmed, and what was begun, of groups that were written to a disk until it failed.
fn written(disk: Box<dyn Disk>, seed: u64) -> (usize, Vec<Vec<Record>>) {
    let mut random = Random::new(seed);
    let (mut begun, mut confirmed) = (vec![], 0);
    let Ok((log, _)) = open_on(disk) else { return (confirmed, begun) };
    let mut log = log.copied_from(400);
    for _ in 0..25 {
        let group = random_group(&mut random);
        begun.push(group.clone());
        if log.commit(&group).is_err() {
            break;
        }
        confirmed = begun.len();
        if log.copy_if_due().is_err() {
            break;
        }
    }
    (confirmed, begun)
}

#[test]
fn whenever_the_machine_stops_what_was_confirmed_is_there_and_nothing_in_between_is_missing() {
    let (mut cut, mut whole) = (0, 0);
    for seed in 0..40 {
        let (_, _, power) = history(seed, usize::MAX);
        for stops_at in 0..power.operations() {
            let (confirmed, begun, power) = history(seed, stops_at);
            let mut random = Random::new(seed * 1000 + stops_at as u64);
            for _ in 0..3 {
                let back = power.back(&mut random);
                let (_, found) = open(&back).unwrap();
                let beginnings =
                    (confirmed..=begun.len()).map(|n| naive(begun[..n].iter().flatten()));
                let beginnings: Vec<_> = beginnings.collect();
                let at = beginnings.iter().position(|beginning| *beginning == found);
                assert!(at.is_some(), "seed {seed}, operation {stops_at}: {found:?}");
                cut += u64::from(begun.len() > confirmed && at == Some(0));
                whole += u64::from(at.is_some_and(|at| at > 0));
                // It is what it is from now on, also when opened once more.
                assert_eq!(open(&back).unwrap().1, found);
            }
        }
    }
    assert!(cut > 100 && whole > 20, "{cut} cut off, {whole} more than was confirmed");
}

/// Three groups in a file, the places where each of them ends, and what there is then.
fn three_groups() -> (String, Vec<u8>, Vec<(usize, Records)>) {
    let power = Power::for_ever();
    let (mut log, _) = open(&power).unwrap();
    let groups = [
        vec![record("a", b"one"), record("b", b"two")],
        vec![record("a", b"three"), end("b")],
        vec![record("c", &[7; 300])],
    ];
    let mut ends = vec![(power.newest().1.len(), Records::new())];
    for n in 1..=groups.len() {
        log.commit(&groups[n - 1]).unwrap();
        ends.push((power.newest().1.len(), naive(groups[..n].iter().flatten())));
    }
    let (name, bytes) = power.newest();
    assert_eq!(ends[0].0, HEAD_BYTES);
    (name, bytes, ends)
}

#[test]
fn a_file_that_was_cut_anywhere_gives_all_groups_that_are_whole() {
    let (name, bytes, ends) = three_groups();
    for length in 0..=bytes.len() {
        let opened = open(&Power::with(&name, bytes[..length].to_vec()));
        let whole = ends.iter().rev().find(|(end, _)| *end <= length);
        match whole {
            Some((_, expected)) => assert_eq!(opened.unwrap().1, *expected, "{length} bytes"),
            None => {
                let error = opened.err().unwrap();
                assert!(matches!(error, JournalError::NoJournal { .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_damaged_byte_before_the_last_group_is_an_error_and_never_a_gap() {
    let (name, bytes, ends) = three_groups();
    let last = ends[2].0;
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let power = Power::with(&name, damaged.clone());
        match open(&power) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
                assert!(error.to_string().contains("state/"), "{error}");
                assert_eq!(power.newest(), (name.clone(), damaged), "nothing is changed");
            }
            // It cannot be told from one that was cut off.
            Ok((_, found)) => {
                assert!(at >= last, "byte {at} was damaged, and nobody noticed");
                assert_eq!(found, ends[2].1);
            }
        }
    }
}

#[test]
fn another_release_is_named_unless_nothing_is_left_to_do() {
    let opened = |format, version: &str, rest: &[u8]| {
        let head = Head { format, term: 1, version: version.to_owned() };
        open(&Power::with(&names::journal(1, 0), [&head.encode(), rest].concat()))
    };
    let refused = |format, version: &str, rest: &[u8]| {
        opened(format, version, rest).err().map(|error| error.to_string())
    };
    let framed = |records: &[Record]| {
        let mut group = vec![];
        records.iter().for_each(|record| record.found().encode(&mut group));
        frame::frame(0, &group)
    };
    let rest = &framed(&[record("time", b"7"), record("job/1", b"plan")]);
    assert_eq!(refused(FORMAT, VERSION, rest), None);
    let of_release = refused(FORMAT, "9.9.9", rest).unwrap();
    assert!(of_release.contains("forebay 9.9.9") && of_release.contains(VERSION), "{of_release}");
    let of_format = refused(FORMAT + 1, VERSION, rest).unwrap();
    assert!(of_format.contains(&format!("format {}", FORMAT + 1)), "{of_format}");
    for (format, version) in [(FORMAT, "9.9.9"), (FORMAT + 1, "9.9.9")] {
        assert_eq!(refused(format, version, &[]), None, "an empty journal is anyone's");
    }
    // And one whose jobs have ended: what else is there is not for others.
    let ended = framed(&[record("time", b"7"), record("job/1", b"plan"), end("job/1")]);
    assert_eq!(opened(FORMAT, "9.9.9", &ended).unwrap().1, Records::new());
    assert_eq!(opened(FORMAT, VERSION, &ended).unwrap().1, naive(&[record("time", b"7")]));
}

#[test]
fn a_full_disk_says_so_and_keeps_what_was_confirmed() {
    let power = Power::for_ever();
    let (mut log, _) = open(&power).unwrap();
    log.commit(&[record("a", b"one")]).unwrap();
    power.full_at(0);
    let error = log.commit(&[record("a", b"two")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    assert!(error.to_string().contains("make it have room and start it again"), "{error}");
    let error = open(&power).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "nor can it be opened: {error}");
    let (name, bytes) = power.newest();
    let (_, found) = open(&Power::with(&name, bytes)).unwrap();
    assert_eq!(found, naive(&[record("a", b"one")]));
}

#[test]
fn who_was_superseded_learns_it_before_anything_is_confirmed() {
    let power = Power::for_ever();
    let (mut first, _) = open(&power).unwrap();
    first.commit(&[record("a", b"one")]).unwrap();
    let (_, found) = open(&power).unwrap();
    assert_eq!(found, naive(&[record("a", b"one")]));
    let error = first.commit(&[record("a", b"late")]).unwrap_err();
    assert!(matches!(error, JournalError::Fenced { term: 2, .. }), "{error}");
    assert!(error.to_string().starts_with("server 2 has taken over the state in state"), "{error}");
    assert_eq!(open(&power).unwrap().1, found);
}

#[test]
fn its_size_follows_what_is_alive() {
    let power = Power::for_ever();
    let (log, _) = open(&power).unwrap();
    let mut log = log.copied_from(4096);
    log.commit(&[record("stays", &[1; 100])]).unwrap();
    for job in 0..500 {
        let key = format!("job {job}");
        log.commit(&[record(&key, &[2; 200]), record(&key, &[3; 200]), end(&key)]).unwrap();
        log.copy_if_due().unwrap();
        assert!(log.bytes() < 6000, "{} bytes after {job} jobs", log.bytes());
    }
    assert_eq!(open(&power).unwrap().1, naive(&[record("stays", &[1; 100])]));
}

async fn opened(folder: &TempDir) -> (Journal, BTreeMap<String, Vec<Vec<u8>>>) {
    State::in_folder(folder.path()).take().await.unwrap().open().await.unwrap()
}

#[tokio::test]
async fn what_was_flushed_is_there_for_the_next_one_which_waits_for_this_one() {
    let folder = TempDir::new().unwrap();
    let (journal, found) = opened(&folder).await;
    assert_eq!(found, Records::new());
    for n in 0..100_u8 {
        journal.append("job", vec![n]);
    }
    journal.append("gone", vec![]);
    journal.end("gone");
    journal.flushed().await.unwrap();
    let next = opened(&folder);
    tokio::pin!(next);
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut next).await;
    assert!(waits.is_err(), "the first one has it");
    let term = journal.hold().term();
    drop(journal);
    let (journal, found) = next.await;
    assert_eq!(journal.hold().term(), term + 1);
    let expected: Vec<_> = (0..100_u8).map(|n| vec![n]).collect();
    assert_eq!(found, BTreeMap::from([("job".to_owned(), expected)]));
}

#[tokio::test]
async fn many_who_wait_are_written_together_and_all_are_told() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = opened(&folder).await;
    let waits = (0..200_u32).map(|n| {
        let journal = journal.clone();
        async move {
            journal.append(&format!("{n}"), n.to_le_bytes().to_vec());
            journal.flushed().await
        }
    });
    let told = futures::future::join_all(waits).await;
    assert!(told.iter().all(Result::is_ok), "{told:?}");
    drop(journal);
    let (_, found) = opened(&folder).await;
    assert_eq!(found.len(), 200);
}
