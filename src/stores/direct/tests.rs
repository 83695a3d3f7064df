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

use super::upload::BLOCK;
use super::*;

fn store(cached: u64) -> DirectFiles {
    DirectFiles { files: Arc::default(), cached: Arc::new(Allowance::new(cached)) }
}

fn at(folder: &TempDir, name: &str) -> Path {
    Path::from_absolute_path(folder.path().join(name)).unwrap()
}

fn bytes(from: usize, count: usize) -> Bytes {
    (from..from + count).map(|at| (at % 251) as u8).collect()
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
                // In chunks, of which no buffer has the beginning at a block.
                let part = bytes(end, size);
                let (one, other) = (part.slice(..size / 3), part.slice(size / 3..));
                parts.push(upload.put_part([one, other].into_iter().collect()));
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
