use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use bytes::Bytes;
use datafusion::common::DataFusionError;
use forebay_engine::ErrorKind;
use forebay_testkit::disk::SmallDisk;
use futures::FutureExt;
use nix::fcntl::OFlag;
use object_store::{ObjectStoreExt, WriteMultipart};
use proptest::prelude::*;
use tempfile::TempDir;

use super::upload::{BLOCK, in_blocks};
use super::*;

fn store(cached: u64) -> DirectFiles {
    let cached = Arc::new(Allowance::new(cached));
    DirectFiles { files: Arc::default(), cached, scans: Scans::default() }
}

fn at(folder: &TempDir, name: &str) -> Path {
    Path::from_absolute_path(folder.path().join(name)).unwrap()
}

fn bytes(from: usize, count: usize) -> Bytes {
    (from..from + count).map(|at| (at % 251) as u8).collect()
}

/// The same bytes at a block of memory.
fn at_a_block(bytes: &Bytes) -> Bytes {
    let mut memory: Vec<u8> = Vec::with_capacity(bytes.len() + BLOCK);
    let start = memory.as_ptr().addr().next_multiple_of(BLOCK) - memory.as_ptr().addr();
    memory.resize(start, 0);
    memory.extend_from_slice(bytes);
    Bytes::from(memory).slice(start..)
}

#[test]
fn what_lies_at_a_block_of_memory_is_not_copied() {
    let part = at_a_block(&bytes(0, 3 * BLOCK));
    assert_eq!(in_blocks(&part.clone().into()).as_ptr(), part.as_ptr());
    for other in [part.slice(1..).into(), PutPayload::from_iter([part.clone(), part.clone()])] {
        let copy = in_blocks(&other);
        assert!(copy.as_ptr().addr().is_multiple_of(BLOCK) && copy == Bytes::from(other));
    }
}

async fn listed(store: &DirectFiles, folder: &TempDir) -> usize {
    let folder = Path::from_absolute_path(folder.path()).unwrap();
    store.list_with_delimiter(Some(&folder)).await.unwrap().objects.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    /// Wherever parts begin and end, some of them by way of the page cache and some not.
    #[test]
    fn a_file_has_the_bytes_of_its_parts(
        sizes in prop::collection::vec(prop_oneof![
            0..200_000_usize, (0..4_usize).prop_map(|blocks| blocks * BLOCK)
        ], 0..8),
        cached in 0..400_000_u64,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let folder = TempDir::new().unwrap();
            let store = store(cached);
            let location = at(&folder, "new/file");
            let mut upload = store.put_multipart(&location).await.unwrap();
            let (mut parts, mut end) = (vec![], 0);
            for size in sizes {
                let part = bytes(end, size);
                // In chunks, of which no buffer has the beginning at a block; or as it may be written from where it is.
                let part = if size % (2 * BLOCK) == 0 {
                    PutPayload::from(at_a_block(&part))
                } else {
                    [part.slice(..size / 3), part.slice(size / 3..)].into_iter().collect()
                };
                parts.push(upload.put_part(part));
                end += size;
            }
            futures::future::try_join_all(parts).await.unwrap();
            assert!(!folder.path().join("new/file").exists());
            upload.complete().await.unwrap();
            upload.abort().await.unwrap_err();
            assert_eq!(fs::read(folder.path().join("new/file")).unwrap(), bytes(0, end));
            assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
        });
    }
}

#[tokio::test]
async fn what_is_not_completed_is_not_there_and_names_are_not_taken() {
    let folder = TempDir::new().unwrap();
    let store = store(0);
    let location = at(&folder, "file");
    let mut first = store.put_multipart(&location).await.unwrap();
    let mut second = store.put_multipart(&location).await.unwrap();
    first.put_part(bytes(0, 5000).into()).await.unwrap();
    second.put_part(bytes(7, 9000).into()).await.unwrap();
    assert_eq!(listed(&store, &folder).await, 0);
    drop(first);
    let put = second.complete().await.unwrap();
    let found = store.get(&location).await.unwrap();
    assert_eq!(put.e_tag, found.meta.e_tag);
    assert_eq!(found.bytes().await.unwrap(), bytes(7, 9000));
    let mut third = store.put_multipart(&location).await.unwrap();
    third.put_part(bytes(0, 1).into()).await.unwrap();
    third.abort().await.unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), bytes(7, 9000));
}

/// The first part of a file whose parts are whole blocks, as DataFusion's are.
async fn first_part(folder: &TempDir, cached: u64, size: usize) -> Upload {
    let store = store(cached);
    let upload = Upload::begin(&store.files, &at(folder, "file"), &store.cached);
    let mut upload = upload.unwrap().unwrap();
    upload.put_part(bytes(0, size).into()).await.unwrap();
    upload
}

#[tokio::test]
async fn only_what_the_page_cache_does_not_take_goes_past_it() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tried");
    let direct =
        OpenOptions::new().write(true).create(true).custom_flags(OFlag::O_DIRECT.bits()).open(path);
    let can_be = direct.is_ok();
    assert_eq!(first_part(&folder, 2 * BLOCK as u64, 2 * BLOCK).await.direct(), None);
    assert_eq!(first_part(&folder, BLOCK as u64, 2 * BLOCK).await.direct(), Some(can_be));
}

#[tokio::test]
async fn a_name_that_cannot_be_given_is_the_error_and_nothing_stays() {
    let folder = TempDir::new().unwrap();
    let upload = first_part(&folder, 0, BLOCK).await;
    fs::create_dir_all(folder.path().join("file/with/files")).unwrap();
    let write = WriteMultipart::new(Box::new(upload));
    let error = write.finish().await.unwrap_err().to_string();
    assert!(error.contains("cannot complete") && error.contains("directory"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_part_that_nobody_waits_for_changes_no_other_file() {
    let folder = TempDir::new().unwrap();
    let store = store(0);
    let location = at(&folder, "file");
    let mut given_up = store.put_multipart(&location).await.unwrap();
    for part in 0..20 {
        // Polled once, and dropped.
        drop(given_up.put_part(bytes(part, 1 << 20).into()).now_or_never());
    }
    drop(given_up);
    let mut next = store.put_multipart(&location).await.unwrap();
    next.put_part(bytes(7, 3 * BLOCK + 5).into()).await.unwrap();
    next.complete().await.unwrap();
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), bytes(7, 3 * BLOCK + 5));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_full_disk_says_so_whichever_way_bytes_go() {
    for cached in [0, u64::MAX] {
        let folder = TempDir::new().unwrap();
        let disk = match SmallDisk::mount(folder.path(), 1 << 20) {
            Ok(disk) => disk,
            Err(said) => return eprintln!("not tested: {said}"),
        };
        let store = store(cached);
        let mut upload = store.put_multipart(&at(&folder, "file")).await.unwrap();
        let error = upload.put_part(bytes(0, 2 << 20).into()).await.unwrap_err();
        let said = format!("cannot write {}: No space", folder.path().join("file").display());
        assert!(error.to_string().contains(&said), "{error}");
        let error = DataFusionError::from(error);
        assert_eq!(ErrorKind::of(&error), ErrorKind::ResourceExhausted, "{error}");
        drop(upload);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        drop(disk);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    /// Whether they follow each other or not, are large or small, or go beyond the end, beside object_store's own.
    #[test]
    fn ranges_are_those_of_the_file(
        reads in prop::collection::vec(
            prop::collection::vec((0..4_000_000_u64, 0..2_000_000_u64), 0..4), 1..6
        ),
        follows in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        runtime.block_on(async {
            let folder = TempDir::new().unwrap();
            fs::write(folder.path().join("file"), bytes(0, 5_000_000)).unwrap();
            let (store, location) = (store(0), at(&folder, "file"));
            let mut end = 0;
            for read in reads {
                let range = |(start, size): (u64, u64)| {
                    let start = if follows { end } else { start };
                    end = start + size;
                    start..end
                };
                let ranges: Vec<Range<u64>> = read.into_iter().map(range).collect();
                let found = store.get_ranges(&location, &ranges).await;
                let is_large = ranges.iter().map(|range| range.end - range.start).sum::<u64>() >= ahead::LARGE;
                let is_there = ranges.iter().all(|range| !range.is_empty() && range.end <= 5_000_000);
                let ahead = store.read_ahead(&location, &ranges).await;
                assert_eq!(ahead.is_some(), is_large && is_there, "{ranges:?}");
                match LocalFileSystem::new().get_ranges(&location, &ranges).await {
                    Ok(expected) => assert!(found.unwrap() == expected, "{ranges:?}"),
                    Err(expected) => assert_eq!(found.unwrap_err().to_string(), expected.to_string()),
                }
            }
        });
    }
}

#[test]
fn what_follows_a_scan_is_asked_for_and_nothing_else() {
    let (scans, one, other) = (Scans::default(), Path::from("one"), Path::from("other"));
    let mib = |from: u64, to: u64| from << 20..to << 20;
    assert_eq!(scans.next(&one, &[mib(4, 5), mib(5, 8)]), None, "nobody has read what is before");
    assert_eq!(scans.next(&other, &[mib(8, 12)]), None, "another file");
    assert_eq!(scans.next(&one, &[mib(9, 12)]), None, "not the next bytes");
    assert_eq!(scans.next(&one, &[mib(8, 10), mib(10, 11)]), Some(mib(11, 14)));
    assert_eq!(scans.next(&one, &[mib(8, 11)]), None, "this scan has gone on");
    assert_eq!(scans.next(&other, &[mib(12, 112)]), Some(mib(112, 144)), "not more than so much");
    (0..100)
        .for_each(|at| assert_eq!(scans.next(&Path::from(format!("{at}")), &[mib(0, 1)]), None));
    assert_eq!(scans.next(&other, &[mib(112, 113)]), None, "long ago");
}

#[tokio::test]
async fn a_file_that_is_not_there_is_not_found() {
    let folder = TempDir::new().unwrap();
    let missing = store(0)
        .get_ranges(&at(&folder, "file"), &[0..1 << 20, 1 << 20..2 << 20])
        .await
        .unwrap_err();
    assert!(matches!(missing, object_store::Error::NotFound { .. }), "{missing}");
}
