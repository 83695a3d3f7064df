//! Machines that stop, files that are cut and damaged, and a state with two owners.

mod folds;
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
use super::copy::Copying;
use super::disk::Disk;
use super::error::JournalError;
use super::frame::{self, FORMAT, HEAD_BYTES, Head, Kind, Record};
use super::log::Log;
use super::names;
use super::{Journal, KeyRecords, Records, State, VERSION};
use power::Power;

fn record(key: &str, data: &[u8]) -> Record {
    Record { key: key.to_owned(), kind: Kind::Stays, data: data.to_vec() }
}

fn step(key: &str, data: &[u8]) -> Record {
    Record { kind: Kind::Step, ..record(key, data) }
}

fn end(key: &str) -> Record {
    Record { kind: Kind::End, ..record(key, &[]) }
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
    read.map(|record| record.data.to_vec()).collect()
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
    for Record { key, kind, data } in records {
        match kind {
            Kind::Stays => found.entry(key.clone()).or_default().stays.push(data.clone()),
            Kind::Step => found.entry(key.clone()).or_default().steps.push(data.clone()),
            Kind::End => drop(found.remove(key)),
        }
    }
    found
}

const FOLDED: &[u8] = b"folded";

/// What stands for steps has all of them.
fn fold(_: &str, stays: &[&[u8]], steps: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let mut folded = FOLDED.to_vec();
    for data in unfolded(stays).iter().map(Vec::as_slice).chain(steps.iter().copied()) {
        folded.extend((data.len() as u16).to_le_bytes());
        folded.extend(data);
    }
    Some(vec![folded])
}

fn unfolded(stays: &[impl AsRef<[u8]>]) -> Vec<Vec<u8>> {
    let mut unfolded = vec![];
    for data in stays.iter().map(AsRef::as_ref) {
        let Some(mut folded) = data.strip_prefix(FOLDED) else {
            unfolded.push(data.to_vec());
            continue;
        };
        while let Some((length, rest)) = folded.split_first_chunk() {
            let (data, rest) = rest.split_at(u16::from_le_bytes(*length).into());
            unfolded.push(data.to_vec());
            folded = rest;
        }
    }
    unfolded
}

/// What they say, whatever stands for what.
fn said(records: Records) -> BTreeMap<String, Vec<Vec<u8>>> {
    let of = |KeyRecords { stays, steps }| unfolded(&stays).into_iter().chain(steps).collect();
    records.into_iter().map(|(key, records)| (key, of(records))).collect()
}

/// Copies if that is due, and ends it some time later.
fn copy(
    log: &mut Log,
    copying: &mut Option<Copying>,
    random: &mut Random,
) -> Result<(), JournalError> {
    if random.chance(50)
        && let Some(copying) = copying.take()
    {
        log.end_copy(&copying.run()?)?;
    }
    if copying.is_none() {
        *copying = log.begin_copy(fold)?;
    }
    Ok(())
}

/// Copies at once if that is due.
fn copy_at_once(log: &mut Log) {
    if let Some(copying) = log.begin_copy(fold).unwrap() {
        log.end_copy(&copying.run().unwrap()).unwrap();
    }
}

/// Of some keys there are steps alone, and of others none.
fn random_group(random: &mut Random) -> Vec<Record> {
    let one = |random: &mut Random| {
        let number = random.below(6);
        let key = format!("k{number}");
        if random.chance(15) {
            return end(&key);
        }
        let size = if random.chance(10) { 300 } else { 20 };
        let data: Vec<u8> = (0..random.index(size)).map(|_| random.below(256) as u8).collect();
        if number < 3 { step(&key, &data) } else { record(&key, &data) }
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
    let (mut log, mut copying) = (log.copied_from(400), None);
    for _ in 0..25 {
        let group = random_group(&mut random);
        begun.push(group.clone());
        if log.commit(&group).is_err() {
            break;
        }
        confirmed = begun.len();
        if copy(&mut log, &mut copying, &mut random).is_err() {
            break;
        }
    }
    (confirmed, begun)
}

#[test]
fn whenever_the_machine_stops_what_was_confirmed_is_there_and_nothing_in_between_is_missing() {
    let (mut cut, mut whole, mut folded) = (0, 0, 0);
    let is_folded = |(key, of): (&String, &KeyRecords)| key.as_str() < "k3" && !of.stays.is_empty();
    for seed in 0..40 {
        let (_, _, power) = history(seed, usize::MAX);
        for stops_at in 0..power.operations() {
            let (confirmed, begun, power) = history(seed, stops_at);
            let mut random = Random::new(seed * 1000 + stops_at as u64);
            for _ in 0..3 {
                let back = power.back(&mut random);
                let (_, found) = open(&back).unwrap();
                let at = beginning(confirmed, &begun, &found);
                assert!(at.is_some(), "seed {seed}, operation {stops_at}: {found:?}");
                folded += u64::from(found.iter().any(is_folded));
                cut += u64::from(begun.len() > confirmed && at == Some(0));
                whole += u64::from(at.is_some_and(|at| at > 0));
                // It is what it is from now on, also when opened once more.
                assert_eq!(open(&back).unwrap().1, found);
            }
        }
    }
    assert!(cut > 100 && whole > 20, "{cut} cut off, {whole} more than was confirmed");
    assert!(folded > 1000, "something stood for steps {folded} times");
}

/// How many groups more than those that were confirmed somebody knows.
fn beginning(confirmed: usize, begun: &[Vec<Record>], found: &Records) -> Option<usize> {
    let found = said(found.clone());
    (confirmed..=begun.len()).position(|n| said(naive(begun[..n].iter().flatten())) == found)
}

/// Three groups in a file, the places where each of them ends, and what there is then.
fn three_groups() -> (String, Vec<u8>, Vec<(usize, Records)>) {
    let power = Power::for_ever();
    let (mut log, _) = open(&power).unwrap();
    let groups = [
        vec![record("a", b"one"), record("b", b"two")],
        vec![step("a", b"three"), end("b")],
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
    let of_before = refused(FORMAT - 1, VERSION, rest).unwrap();
    assert!(of_before.contains(&format!("format {}", FORMAT - 1)), "{of_before}");
    for (format, version) in [(FORMAT, "9.9.9"), (FORMAT + 1, "9.9.9")] {
        assert_eq!(refused(format, version, &[]), None, "an empty journal is anyone's");
    }
    // And one whose jobs have ended: what else is there is not for others.
    let ended = framed(&[record("time", b"7"), record("job/1", b"plan"), end("job/1")]);
    for (format, version) in [(FORMAT, "9.9.9"), (FORMAT - 1, "0.0.1"), (FORMAT - 1, VERSION)] {
        assert_eq!(opened(format, version, &ended).unwrap().1, Records::new());
    }
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
        copy_at_once(&mut log);
        assert!(log.bytes() < 6000, "{} bytes after {job} jobs", log.bytes());
    }
    assert_eq!(open(&power).unwrap().1, naive(&[record("stays", &[1; 100])]));
}

async fn opened(folder: &TempDir) -> (Journal, Records) {
    State::in_folder(folder.path()).take().await.unwrap().open(fold).await.unwrap()
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
    let expected: Vec<_> = (0..100_u8).map(|n| record("job", &[n])).collect();
    assert_eq!(found, naive(&expected));
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
