//! Queries that end before their rows: nobody wants them any more, or they cannot go on.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::TryStreamExt;

use super::history;
use super::setup::{
    ACCELERATOR, CPU, QUERY, SLOW, Stage, begin, is_long, moments, poll_for, random, run, text,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_stream_ends_all_tasks_and_removes_all_blocks() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    for moment in moments(&[0.0, 0.5]) {
        let before = stage.cluster.tasks_begun();
        let mut rows = begin(&session, QUERY).await;
        let tasks = ((undisturbed.tasks as f64 * moment).ceil() as usize).max(1);
        while stage.cluster.tasks_begun() < before + tasks {
            poll_for(&mut rows, Duration::from_millis(20)).await;
        }
        drop(rows);
        let runs = "SELECT name FROM forebay.jobs WHERE state IN ('queued', 'running')";
        while !run(&session, runs).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stage.until_nothing_is_left(&[0, 1]).await;
        let begun = stage.cluster.tasks_begun();
        // What comes after the end of a query comes before the tasks of the next one.
        assert!(stage.run(&session, QUERY).await.unwrap() == undisturbed.rows);
        let next = history::last_job(&session).await;
        let of_next = history::tasks(&session, &next).await.len();
        // One may have been on its way to each worker.
        let late = (stage.cluster.tasks_begun() - begun).saturating_sub(of_next);
        assert!(late <= 2, "{late} tasks began after the end of their query");
        assert!(begun - before < undisturbed.tasks, "all tasks ran though nobody wanted the rows");
    }
}

/// A task that was bound when its query was dropped may never come to its worker, which has to say so: whatever it
/// was given there would be taken for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_are_dropped_at_any_moment_leave_nothing_taken() {
    let stage = Stage::with_service(2, 10, &[CPU, CPU, ACCELERATOR]);
    let session = stage.session().await;
    let mut random = random();
    for _ in 0..if is_long() { 200 } else { 30 } {
        let running = stage.start(&session, QUERY);
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        drop(running);
    }
    let rows = stage.run(&session, QUERY).await.unwrap();
    assert_eq!(rows, run(&stage.local().await, QUERY).await.unwrap());
    // With what the clients of those were to read.
    let taken = "SELECT worker_id || ' uses ' || (cpus_used + accelerators_used) FROM forebay.workers \
                 WHERE cpus_used + accelerators_used > 0 UNION ALL \
                 SELECT job_id || ' drains on ' || worker_id FROM forebay.tasks WHERE state = 'draining'";
    let since = Instant::now();
    loop {
        let taken = run(&session, taken).await.unwrap();
        if taken.is_empty() {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{taken:?}\n{}", stage.cluster.said());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_client_ends_all_tasks_and_removes_all_blocks() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    drop(stage.session().await); // Writes the table.
    let folder = stage.folder().display().to_string();
    let statements = format!(
        "SET forebay.block_bytes = 8192; SET forebay.edge_budget = 49152;
         CREATE TEMPORARY MODEL slow LOCATION '{folder}/{SLOW}/slow';
         CREATE EXTERNAL TABLE words STORED AS PARQUET LOCATION '{folder}/words/'; {QUERY}"
    );
    let mut client = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["shell", "-q", "--connect", stage.cluster.address(), "-c", &statements])
        .env("HOME", &folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    stage.until_tasks_run(4).await;
    assert!(client.try_wait().unwrap().is_none(), "the client ended before it was killed");
    client.kill().unwrap();
    client.wait().unwrap();
    stage.until_nothing_is_left(&[0, 1]).await;
}

/// The worker that holds rows goes while they are read: they are made again, and read once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_lost_while_they_are_read_are_made_again() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let expected = run(&stage.local().await, QUERY).await.unwrap();
    let mut stream = begin(&session, QUERY).await;
    let mut batches = vec![stage.bounded(stream.try_next()).await.unwrap().unwrap()];
    stage.until_result_waits(&session).await;
    stage.cluster.worker(1).kill();
    stage.cluster.add_worker(ACCELERATOR);
    let rest = stage.bounded(stream.try_collect::<Vec<_>>()).await;
    batches.extend(rest.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said())));
    assert!(text(&batches) == expected, "rows are missing, or came twice");
    stage.until_nothing_is_left(&[0, 2]).await;
}

/// A client that stops to read costs the cluster a bounded number of bytes, and no tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_holds_the_query_back() {
    let stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    run(&session, "SET forebay.edge_budget = 8192").await.unwrap();
    let mut stream = begin(&session, QUERY).await;
    let mut batches = vec![stage.bounded(stream.try_next()).await.unwrap().unwrap()];
    let job = history::last_job(&session).await;
    // It is held back when none of its tasks begins while another query runs from its beginning to
    // its end on the same workers.
    let (mut before, mut begun) = (usize::MAX, 0);
    while before != begun {
        before = history::tasks(&session, &job).await.len();
        stage.run(&session, QUERY).await.unwrap();
        begun = history::tasks(&session, &job).await.len();
    }
    let state = format!("SELECT state FROM forebay.jobs WHERE job_id = '{job}'");
    assert_eq!(run(&session, &state).await.unwrap(), ["running"]);
    batches.extend(stage.bounded(stream.try_collect::<Vec<_>>()).await.unwrap());
    assert!(text(&batches) == run(&stage.local().await, QUERY).await.unwrap());
    assert_eq!(run(&session, &state).await.unwrap(), ["finished"]);
}

/// How many rows a batch has depends on when they come.
fn without_batch_size(error: &str) -> String {
    match error.split_once("batch of ") {
        Some((before, after)) => {
            format!("{before}batch of{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => error.to_owned(),
    }
}

/// A query that fails says the same as in one process, is not tried again, and leaves nothing.
async fn fails(stage: &mut Stage, query: &str, says: &str) {
    let session = stage.session().await;
    let alone = run(&stage.local().await, query).await.unwrap_err();
    let alone = without_batch_size(&alone.strip_backtrace());
    assert!(alone.contains(says), "{alone}");
    let error = stage.run(&session, query).await.unwrap_err();
    let error = without_batch_size(&error.strip_backtrace());
    // A cluster's errors are all of one kind; what follows the kind is the same.
    assert!(error.ends_with(&alone), "alone: {alone}\non a cluster: {error}");
    stage.until_nothing_is_left(&[0, 1]).await;
    let log = stage.cluster.scheduler().log();
    assert!(!log.contains("gave up"), "it was tried again\n{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_of_the_author_end_a_query_at_once() {
    let mut stage = Stage::new(10, &[CPU, ACCELERATOR]);
    stage.add_model("fragile", 1, Some("700"));
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let begun = stage.cluster.tasks_begun();
    let cast = QUERY.replace(
        "concat(upper(word)",
        "concat(CAST(CASE WHEN id = 700 THEN 'x' ELSE '1' END AS INT)",
    );
    fails(&mut stage, &cast, "Cannot cast string 'x'").await;
    let row = "SELECT id, label FROM ml_predict((SELECT id, CAST(id AS VARCHAR) AS text FROM words), \
               MODEL fragile, DESCRIPTOR(text), on_error => 'fail')";
    fails(&mut stage, row, "700").await;
    let begun = stage.cluster.tasks_begun() - begun;
    assert!(begun < 2 * undisturbed.tasks, "{begun} tasks for two queries that fail");
}
