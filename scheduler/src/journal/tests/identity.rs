//! States that are told from each other.

use std::fs;
use std::sync::Arc;

use super::*;
use crate::journal::StateId;
use crate::journal::disk::RealDisk;
use crate::journal::identity::find_or_make;

async fn id_of(folder: &TempDir) -> StateId {
    let hold = State::in_folder(folder.path()).take().await.unwrap();
    let id = hold.id();
    hold.let_go().await;
    id
}

#[tokio::test]
async fn a_state_has_one_id_whoever_has_it_and_no_other_state_has_that() {
    let [one, other] = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let id = id_of(&one).await;
    assert_eq!(id_of(&one).await, id);
    assert_ne!(id_of(&other).await, id);
    let text = fs::read_to_string(one.path().join("state.id")).unwrap();
    assert_eq!(text, format!("{id}\n"));
}

#[tokio::test]
async fn a_state_of_a_release_that_gave_none_gets_one_and_keeps_what_it_has() {
    let folder = TempDir::new().unwrap();
    let (journal, _) = opened(&folder).await;
    let before = journal.hold().id();
    journal.append("job/1", vec![1]);
    drop(journal);
    fs::remove_file(folder.path().join("state.id")).unwrap();
    let (journal, found) = opened(&folder).await;
    assert_eq!(found, naive(&[record("job/1", &[1])]));
    let id = journal.hold().id();
    assert_ne!(id, before);
    drop(journal);
    assert_eq!(opened(&folder).await.0.hold().id(), id);
}

#[tokio::test]
async fn a_damaged_id_is_named_and_nobody_has_the_state() {
    let folder = TempDir::new().unwrap();
    let id = id_of(&folder).await.to_string();
    let path = folder.path().join("state.id");
    let names = || {
        let mut names = RealDisk::new(folder.path().to_owned()).list().unwrap();
        names.sort_unstable();
        names
    };
    let before = names();
    for damaged in ["", "\n", &id[1..], &format!("{id}0"), &id.replace(&id[..1], "+"), "\u{e9}"] {
        fs::write(&path, damaged).unwrap();
        let refused = State::in_folder(folder.path()).take().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
        assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
        assert_eq!(names(), before, "{damaged:?}");
    }
    fs::write(&path, &id).unwrap();
    assert_eq!(id_of(&folder).await.to_string(), id);
}

#[test]
fn of_many_who_give_one_at_a_time_all_have_the_same() {
    for _ in 0..20 {
        let folder = TempDir::new().unwrap();
        let start = Arc::new(std::sync::Barrier::new(8));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (path, start) = (folder.path().to_owned(), Arc::clone(&start));
                std::thread::spawn(move || {
                    start.wait();
                    find_or_make(&mut RealDisk::new(path), "state").unwrap()
                })
            })
            .collect();
        let ids: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    }
}

/// What was told to workers is there when the power is back.
#[test]
fn an_id_that_was_given_survives_whenever_the_machine_stops() {
    let mut given = 0;
    for stops_at in 0..4 {
        let mut power = Power::until(stops_at);
        let id = find_or_make(&mut power, "state").ok();
        let mut back = power.back(&mut Random::new(stops_at as u64));
        let after = find_or_make(&mut back, "state").unwrap();
        assert!(id.is_none_or(|id| id == after), "{stops_at}");
        given += usize::from(id.is_some());
    }
    assert!(given > 0);
}
