//! Clusters with hardly enough of something.

use std::fs;
use std::path::PathBuf;

use forebay_engine::ErrorKind;
use forebay_testkit::disk::SmallDisk;

use super::history;
use super::setup::{ACCELERATOR, CPU, QUERY, Stage, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_work_dir_of_one_worker_is_left_to_another() {
    let full = [CPU, &["--work-limit", "1kB"]].concat();
    let stage = Stage::new(10, &[&full, CPU, ACCELERATOR]);
    let session = stage.session().await;
    let expected = run(&stage.local().await, QUERY).await.unwrap();
    // What it may keep is known. Only who does not look at that tries it.
    for (admission, tries) in [("reserve", false), ("off", true)] {
        run(&session, &format!("SET forebay.admission = '{admission}'")).await.unwrap();
        let rows = stage.run(&session, QUERY).await;
        let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
        assert!(rows == expected);
        assert_eq!(stage.cluster.tasks_begun_by(0) > 0, tries, "{admission}");
    }
}

/// A worker's own folder.
fn folder_of(stage: &mut Stage, worker: usize) -> PathBuf {
    let name = stage.cluster.worker(worker).name().to_owned();
    stage.cluster.work_dir().join(name)
}

/// No file can be made in it, which goes for root as well.
fn break_disk(stage: &mut Stage, worker: usize) {
    let folder = folder_of(stage, worker);
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "a file where a folder should be").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_is_tried_once_for_each_core_and_left_to_another() {
    let many = ["--cpus", "2", "--gpus", "none"];
    let mut stage = Stage::new(10, &[&many, CPU, ACCELERATOR]);
    break_disk(&mut stage, 0);
    let session = stage.session().await;
    const SHUFFLED: &str = "SELECT count(*) FROM (SELECT id, word FROM words GROUP BY id, word)";
    for (query, begun_at_most) in [(QUERY, 2), (SHUFFLED, 4)] {
        let rows = stage.run(&session, query).await;
        let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
        assert!(rows == run(&stage.local().await, query).await.unwrap());
        let job = history::last_job(&session).await;
        let worker = stage.cluster.worker(0).name().to_owned();
        let there = format!(
            "SELECT state, reason FROM forebay.tasks WHERE job_id = '{job}' AND worker_id = '{worker}'"
        );
        let there = run(&session, &there).await.unwrap();
        assert!((1..=begun_at_most).contains(&there.len()), "{there:#?}");
        for task in &there {
            assert!(task.starts_with("failed|") && task.contains("another --work-dir"), "{task}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_that_fail_everywhere_are_an_error_that_says_so() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    for worker in [0, 1] {
        break_disk(&mut stage, worker);
    }
    let session = stage.session().await;
    let error = stage.run(&session, QUERY).await.unwrap_err();
    assert_eq!(ErrorKind::of(&error), ErrorKind::Unavailable, "{error}");
    let error = error.strip_backtrace();
    assert!(error.contains("Not a directory") && error.contains("another --work-dir"), "{error}");
}

/// On the file system that has no room for the result of one worker's tasks, but for some of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_one_worker_is_left_to_another() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR]);
    let folder = folder_of(&mut stage, 0);
    let _disk = match SmallDisk::mount(&folder, 8 << 10) {
        Ok(disk) => disk,
        Err(problem) => return println!("skipped, a full file system cannot be made: {problem}"),
    };
    let session = stage.session().await;
    let rows = stage.run(&session, QUERY).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == run(&stage.local().await, QUERY).await.unwrap());
    let full =
        "SELECT count(*) > 0 FROM forebay.tasks WHERE reason LIKE '%No space left on device%'";
    assert_eq!(run(&session, full).await.unwrap(), ["true"], "{}", stage.cluster.said());
}

/// Less than all blocks of the query need, and more than those that wait at a time: what has been
/// read makes room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_work_dir_holds_a_large_query() {
    let small = [ACCELERATOR, &["--work-limit", "96kB"]].concat();
    let stage = Stage::new(10, &[&small]);
    let session = stage.session().await;
    let few = format!("SELECT id, label FROM ({QUERY}) WHERE score < 0.1");
    let rows = stage.run(&session, &few).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert!(rows == run(&stage.local().await, &few).await.unwrap());
    let job = history::last_job(&session).await;
    let written = format!("SELECT sum(bytes) > 96000 FROM forebay.blocks WHERE job_id = '{job}'");
    assert_eq!(run(&session, &written).await.unwrap(), ["true"], "the work dir had room for all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_work_dirs_everywhere_are_an_error_that_says_so() {
    let full = [CPU, &["--work-limit", "1kB"]].concat();
    let full_too = [ACCELERATOR, &["--work-limit", "1kB"]].concat();
    let mut stage = Stage::new(10, &[&full, &full_too]);
    let session = stage.session().await;
    let error = stage.run(&session, QUERY).await.unwrap_err().strip_backtrace();
    assert!(error.contains("raise --work-limit"), "{error}");
    stage.until_nothing_is_left(&[0, 1]).await;
}

/// A hash shuffle has room, and gives it back; a larger one is an error that says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hash_shuffles_are_within_the_limit_of_the_work_dir() {
    const SHUFFLED: &str = "SELECT count(*) FROM (SELECT id, word FROM words GROUP BY id, word)";
    let mut stage = Stage::new(10, &[&[CPU, &["--work-limit", "4MB"]].concat()]);
    let session = stage.session().await;
    let expected = run(&stage.local().await, SHUFFLED).await.unwrap();
    for _ in 0..3 {
        let rows = stage.run(&session, SHUFFLED).await;
        let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
        assert_eq!(rows, expected);
    }
    stage.until_nothing_is_left(&[0]).await;

    let mut stage = Stage::new(10, &[&[CPU, &["--work-limit", "8kB"]].concat()]);
    let session = stage.session().await;
    let error = stage.run(&session, SHUFFLED).await.unwrap_err().strip_backtrace();
    assert!(error.contains("a task of a hash shuffle has no room"), "{error}");
    assert!(error.contains("raise --work-limit"), "{error}");
    stage.until_nothing_is_left(&[0]).await;
}

/// Stages that need a core, a whole accelerator, a core again and half of an accelerator; then a
/// shuffle and a sort; one task at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_core_and_one_accelerator_run_a_chain_of_stages() {
    const CHAIN: &str = "
        SELECT substr(label, 1, 1) AS initial, count(*) AS rows, min(id) AS first, max(id) AS last
        FROM ml_predict(
          (SELECT DISTINCT id, upper(label) AS text FROM ml_predict(
             (SELECT id, upper(word) AS text FROM words WHERE id < 800),
             MODEL whole, DESCRIPTOR(text))),
          MODEL half, DESCRIPTOR(text), gpus => 0.5)
        GROUP BY initial ORDER BY rows DESC, initial";
    let mut stage = Stage::new(10, &[ACCELERATOR]);
    stage.add_model("whole", 2, None);
    stage.add_model("half", 2, None);
    let session = stage.session().await;
    let rows = stage.run(&session, CHAIN).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert_eq!(rows, run(&stage.local().await, CHAIN).await.unwrap());
    let job = history::last_job(&session).await;
    let needs = format!(
        "SELECT cpus, accelerators, count(*) FROM forebay.stages WHERE job_id = '{job}' GROUP BY 1, 2"
    );
    let needs = run(&session, &needs).await.unwrap();
    assert_eq!(needs, ["0.0|0.5|1", "0.0|1.0|1", "1.0|0.0|6"]);
    stage.until_nothing_is_left(&[0]).await;
}
