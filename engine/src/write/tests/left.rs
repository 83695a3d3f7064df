//! What a commit has left that was cut off, and how it ends.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;

use super::resume::{FILES, FINGERPRINT, Home, Kind, ROWS, expected, fates, files, parquet_files};
use super::store::{Fault, Faulty};
use super::whole::{session, staging_folders};
use crate::write::clean::{Fate, OlderThan, clean};
use crate::write::resume::Remains;

/// A write that is done.
async fn done(kind: Kind) -> (Home, Remains) {
    let home = Home::new(kind).await;
    let remains = home.remains().await;
    home.run(files(), &remains, 1, FINGERPRINT).await.0.unwrap();
    assert_eq!(home.seen().await, expected());
    (home, remains)
}

/// The same, whose process has ended before it noted that.
async fn not_noted(kind: Kind) -> (Home, Remains) {
    let (home, remains) = done(kind).await;
    fs::remove_file(Home::staging(&remains).join("committed")).unwrap();
    (home, remains)
}

/// The entry of a log, and where it lies while its store has not answered.
struct Entry {
    place: PathBuf,
    aside: PathBuf,
}

impl Entry {
    fn is_awaited(home: &Home) -> Self {
        let place = home.path("t/_delta_log/00000000000000000001.json");
        let entry = Self { place, aside: home.path("entry") };
        fs::rename(&entry.place, &entry.aside).unwrap();
        entry
    }

    fn comes(&self) {
        fs::rename(&self.aside, &self.place).unwrap();
    }
}

/// Goes on; says how many rows there are then, of which none may have been computed.
async fn resumed(home: &Home, remains: &Remains) -> Result<u64> {
    let (rows, computed) = home.run(files(), remains, 1, FINGERPRINT).await;
    assert_eq!(computed, 0);
    rows
}

async fn forgotten(home: &Home, remains: &Remains) {
    remains.remove(&session(files()).runtime_env()).await.unwrap();
    assert_eq!(staging_folders(home.folder.path()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_is_removed_though_its_files_are_others_by_now() {
    let (home, _) = done(Kind::Into).await;
    // Its owner has fewer and larger files now.
    let seen = parquet_files(&home.path("t"));
    fs::rename(&seen[0], home.path("t/other.parquet")).unwrap();
    seen[1..].iter().for_each(|file| fs::remove_file(file).unwrap());
    let rows = home.seen().await;
    // What is first is damaged.
    let damaged = home.path("t/_forebay-0");
    fs::create_dir(&damaged).unwrap();
    fs::write(damaged.join("decided"), "half").unwrap();
    let path = object_store::path::Path::from_absolute_path(home.folder.path()).unwrap();
    let at_once = OlderThan { left: Duration::ZERO, resumable: Duration::ZERO };
    let mut left = clean(&files(), &path, true, at_once, false).await.unwrap();
    let error = left.remove(0).fate.unwrap_err().to_string();
    assert!(error.contains("is damaged"), "{error}");
    assert_eq!(fates(&left), [Fate::Completed]);
    assert_eq!((staging_folders(home.folder.path()), home.seen().await), (1, rows));
    assert!(damaged.exists() && home.path("t/_SUCCESS").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_what_is_half_removed_nobody_goes_on() {
    for kind in [Kind::Folder, Kind::Into, Kind::Delta, Kind::File] {
        let mut at = 0;
        loop {
            let (home, remains) = done(kind).await;
            let faulty = session(Arc::new(Faulty::new(Fault::FromThenOn(at), || ())));
            if remains.remove(&faulty.runtime_env()).await.is_ok() {
                break;
            }
            match resumed(&home, &remains).await {
                Ok(rows) => assert_eq!(rows, ROWS as u64, "{kind:?} {at}"),
                Err(error) => {
                    assert!(error.to_string().contains("is gone"), "{kind:?} {at}: {error}")
                }
            }
            forgotten(&home, &remains).await;
            assert_eq!(home.seen().await, expected(), "{kind:?} {at}");
            at += 1;
        }
        assert!(at > FILES, "{kind:?}: {at} removals failed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_stands_is_noted_by_whoever_finds_it() {
    for kind in [Kind::Folder, Kind::Into, Kind::Delta, Kind::File] {
        let (home, remains) = not_noted(kind).await;
        assert_eq!(resumed(&home, &remains).await.unwrap(), ROWS as u64, "{kind:?}");
        // From now on the files are their owner's.
        parquet_files(&home.path("t")).iter().for_each(|file| fs::remove_file(file).unwrap());
        let kept = home.overview(&remains).await;
        assert!(kept.is_committed, "{kind:?}");
        let counts = (kept.parts, kept.rows, kept.unfit, kept.missing);
        assert_eq!(counts, (FILES, ROWS as u64, 0, 0), "{kind:?}");
        assert_eq!(resumed(&home, &remains).await.unwrap(), ROWS as u64, "{kind:?}");
        forgotten(&home, &remains).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_completed_can_be_forgotten() {
    let (home, remains) = not_noted(Kind::Into).await;
    let seen = parquet_files(&home.path("t"));
    fs::remove_file(&seen[0]).unwrap();
    let rows = home.seen().await;
    let error = resumed(&home, &remains).await.unwrap_err().to_string();
    for said in ["has been removed by somebody", "FORGET JOB"] {
        assert!(error.contains(said), "{said}: {error}");
    }
    forgotten(&home, &remains).await;
    assert_eq!(home.seen().await, rows);
    assert_eq!(rows.len(), ROWS - ROWS / FILES);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_log_takes_late_is_where_it_says() {
    for is_meanwhile in [true, false] {
        let (home, remains) = not_noted(Kind::Delta).await;
        let entry = Entry::is_awaited(&home);
        let table = home.path("t");
        let moved = parquet_files(&table).len();
        if is_meanwhile {
            // When all is moved back, and before it is committed again.
            let watched = table.clone();
            let comes = move || {
                if parquet_files(&watched).is_empty() && entry.aside.exists() {
                    entry.comes();
                }
            };
            let store = Arc::new(Faulty::new(Fault::None, comes));
            let (rows, computed) = home.run(store, &remains, 1, FINGERPRINT).await;
            assert_eq!((rows.unwrap(), computed), (ROWS as u64, 0));
        } else {
            let store = Arc::new(Faulty::new(Fault::FromThenOn(moved), || ()));
            home.run(store, &remains, 1, FINGERPRINT).await.0.unwrap_err();
            assert_eq!(parquet_files(&table), Vec::<PathBuf>::new());
            entry.comes();
            assert_eq!(resumed(&home, &remains).await.unwrap(), ROWS as u64);
        }
        assert_eq!(home.seen().await, expected());
        forgotten(&home, &remains).await;
        assert_eq!((parquet_files(&table).len(), home.seen().await), (moved, expected()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_forgotten_is_in_the_log_or_nowhere() {
    for (is_moved_back, is_taken) in [(false, false), (false, true), (true, false), (true, true)] {
        let (home, remains) = not_noted(Kind::Delta).await;
        let entry = Entry::is_awaited(&home);
        let moved = parquet_files(&home.path("t")).len();
        if is_moved_back {
            let store = Arc::new(Faulty::new(Fault::FromThenOn(moved), || ()));
            home.run(store, &remains, 1, FINGERPRINT).await.0.unwrap_err();
        }
        if is_taken {
            entry.comes();
        }
        let place = entry.place.clone();
        forgotten(&home, &remains).await;
        if !is_taken {
            // As a store takes it that has not answered: if there is none of that version.
            let late = fs::hard_link(home.path("entry"), &place).unwrap_err();
            assert_eq!(late.kind(), std::io::ErrorKind::AlreadyExists, "{late}");
        }
        let left = if is_taken { moved } else { 0 };
        let case = format!("{is_moved_back} {is_taken}");
        assert_eq!(parquet_files(&home.path("t")).len(), left, "{case}");
        let rows = if is_taken { expected() } else { vec![] };
        assert_eq!(home.seen().await, rows, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_to_somewhere_else_moves_nothing() {
    for kind in [Kind::Into, Kind::Delta] {
        let (home, remains) = not_noted(kind).await;
        if kind == Kind::Delta {
            // So that its files would be moved back.
            Entry::is_awaited(&home);
        }
        let moved = parquet_files(&home.path("t"));
        let other = Home::new(kind).await;
        let error = resumed(&other, &remains).await.unwrap_err().to_string();
        assert!(error.contains("would not go to") && error.contains("FORGET JOB"), "{error}");
        assert_eq!(parquet_files(&home.path("t")), moved, "{kind:?}");
        assert_eq!(other.seen().await, Vec::<i64>::new(), "{kind:?}");
    }
}
