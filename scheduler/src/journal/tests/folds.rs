//! Fewer records that stand for many.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::journal::Fold;

/// What stays is a document, and how many steps there have been.
fn counted(_: &str, stays: &[&[u8]], steps: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    let [document, before @ ..] = stays else { return None };
    let before = before.first().map_or(0, |count| u64::from_le_bytes((*count).try_into().unwrap()));
    let count = before + steps.len() as u64;
    Some(vec![document.to_vec(), count.to_le_bytes().to_vec()])
}

fn refused(_: &str, _: &[&[u8]], _: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    None
}

fn panics(_: &str, _: &[&[u8]], _: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    panic!("as a test wants it");
}

/// How many steps a key has had.
fn steps_of(records: &Records, key: &str) -> u64 {
    let KeyRecords { stays, steps } = &records[key];
    let counted =
        stays.get(1).map_or(0, |count| u64::from_le_bytes(count.as_slice().try_into().unwrap()));
    counted + steps.len() as u64
}

/// A job of many steps beside one of few: how many copies there were, and the largest file.
fn written_with(fold: Fold) -> (Power, usize, u64) {
    let power = Power::for_ever();
    let (log, _) = open(&power).unwrap();
    let mut log = log.copied_from(4096);
    log.commit(&[record("long", &[1; 100]), record("short", &[2; 100])]).unwrap();
    let (mut copies, mut largest) = (0, 0);
    for n in 0..1000_u64 {
        log.commit(&[step("long", &[3; 50]), step("long", &[4; 50])]).unwrap();
        if n % 250 == 0 {
            log.commit(&[step("short", &[5; 4])]).unwrap();
        }
        if let Some(copying) = log.begin_copy(fold).unwrap() {
            copies += 1;
            // More comes meanwhile.
            log.commit(&[step("long", &[6; 50])]).unwrap();
            assert!(log.begin_copy(fold).unwrap().is_none(), "one at a time");
            largest = largest.max(log.bytes());
            log.end_copy(&copying.run().unwrap()).unwrap();
        }
        largest = largest.max(log.bytes());
    }
    (power, copies, largest)
}

#[test]
fn a_file_is_as_large_as_what_stands_for_its_steps_and_none_is_missing() {
    let (power, copies, largest) = written_with(counted);
    assert!(largest < 4500 && copies > 10, "{largest} bytes, {copies} copies");
    let (_, found) = open(&power).unwrap();
    assert_eq!(steps_of(&found, "long"), 2000 + copies as u64);
    assert_eq!(steps_of(&found, "short"), 4);
    assert_eq!(found["long"].stays[0], [1; 100]);
    // The document of the other one is larger than its steps.
    assert_eq!((found["short"].stays.len(), found["short"].steps.len()), (1, 4));
}

#[test]
fn steps_for_which_nothing_can_stand_stay_and_are_not_copied_again_and_again() {
    for fold in [refused, panics] {
        let (power, copies, largest) = written_with(fold);
        assert!((4..8).contains(&copies), "{copies} copies");
        assert!(largest > 100_000, "{largest} bytes");
        let (_, found) = open(&power).unwrap();
        assert_eq!(found["long"].steps.len(), 2000 + copies);
        assert_eq!(found["long"].stays.len(), 1);
    }
}

#[test]
fn what_ends_while_it_is_copied_is_gone() {
    let power = Power::for_ever();
    let (log, _) = open(&power).unwrap();
    let mut log = log.copied_from(1);
    for fold in [counted, refused] {
        log.commit(&[record("job", b"plan"), step("job", &[1; 500]), step("job", &[2; 500])])
            .unwrap();
        let copying = log.begin_copy(fold).unwrap().unwrap();
        log.commit(&[end("job"), record("job", b"another"), step("job", b"3")]).unwrap();
        log.end_copy(&copying.run().unwrap()).unwrap();
        let expected = naive(&[record("job", b"another"), step("job", b"3")]);
        assert_eq!(open(&power).unwrap().1, expected);
        let (again, _) = open(&power).unwrap();
        log = again.copied_from(1);
        log.commit(&[end("job")]).unwrap();
    }
}

fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap().flatten();
    let journals = files.filter(|file| file.path().extension().is_some_and(|e| e == "journal"));
    // One that is there may be gone.
    journals.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

/// Waits until the journal is smaller than that.
async fn until_smaller(folder: &Path, bytes: u64) {
    let is_small = async {
        while size(folder) >= bytes {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_small).await.expect("nothing is copied");
}

#[tokio::test]
async fn a_journal_that_is_written_for_long_stays_small_and_its_next_one_knows_all() {
    let folder = TempDir::new().unwrap();
    let state = || State::in_folder(folder.path()).with_copied_from(10_000);
    let (journal, _) = state().take().await.unwrap().open(counted).await.unwrap();
    journal.append("job", b"plan".to_vec());
    for n in 0..3000_u64 {
        journal.append_step("job", vec![7; 100]);
        if n % 50 == 0 {
            journal.flushed().await.unwrap();
        }
    }
    journal.flushed().await.unwrap();
    until_smaller(folder.path(), 20_000).await;
    drop(journal);
    let (journal, found) = state().take().await.unwrap().open(counted).await.unwrap();
    assert_eq!(steps_of(&found, "job"), 3000);
    drop(journal);
}

static MAY_FOLD: AtomicBool = AtomicBool::new(false);

fn waits(key: &str, stays: &[&[u8]], steps: &[&[u8]]) -> Option<Vec<Vec<u8>>> {
    while !MAY_FOLD.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    counted(key, stays, steps)
}

#[tokio::test]
async fn nobody_who_writes_waits_for_a_copy() {
    let folder = TempDir::new().unwrap();
    let state = State::in_folder(folder.path()).with_copied_from(1000);
    let (journal, _) = state.take().await.unwrap().open(waits).await.unwrap();
    journal.append("job", b"plan".to_vec());
    for _ in 0..100 {
        journal.append_step("job", vec![7; 100]);
        journal.flushed().await.unwrap();
    }
    let before = size(folder.path());
    assert!(before > 10_000, "{before} bytes");
    MAY_FOLD.store(true, Ordering::Release);
    until_smaller(folder.path(), before / 2).await;
    drop(journal);
    let (_, found) = opened(&folder).await;
    assert_eq!(steps_of(&found, "job"), 100);
}
