//! Many queries at once.

use super::history::{self, tasks};
use super::setup::{ACCELERATOR, CPU, QUERY, Running, Stage, is_long, report, run};

/// Rows of the table that small queries are about.
const SMALL_ROWS: usize = 400;

/// Tasks of large queries that may be given a core between a small query's arrival and its first
/// task: it holds nothing then, and so is the next that gets one.
const TASKS_BEFORE_MAX: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_queries_and_large_ones() {
    let (small, large) = if is_long() { (50, 2) } else { (10, 1) };
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let begun = stage.cluster.tasks_begun();
    let large: Vec<Running> = (0..large).map(|_| stage.start(&session, QUERY)).collect();
    stage.until_tasks_run(begun + 1).await;
    let small_ones: Vec<_> = (0..small)
        .map(|n| {
            let some = format!("FROM words WHERE id % {small} = {n} AND id < {SMALL_ROWS}");
            stage.start(&session, &QUERY.replace("FROM words", &some))
        })
        .collect();
    for (n, running) in small_ones.into_iter().enumerate() {
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("query {n}: {e}\n{}", stage.cluster.said()));
        let wanted = undisturbed.rows.iter().filter(|row| {
            let id: usize = row.split('|').next().unwrap().parse().unwrap();
            id % small == n && id < SMALL_ROWS
        });
        assert!(rows.iter().eq(wanted), "query {n}: {} rows, or others", rows.len());
    }
    for running in large {
        assert!(stage.end(running).await.unwrap() == undisturbed.rows);
    }
    nobody_starved(&session, small).await;
    stage.until_nothing_is_left(&[0, 1, 2, 3]).await;
    assert_eq!(history::busy_workers(&session).await, Vec::<String>::new());
}

/// Looks at the last jobs, of which so many are small.
async fn nobody_starved(session: &forebay::ForebayContext, small: usize) {
    let jobs = "SELECT job_id, CAST(queued AS BIGINT), CAST(started AS BIGINT), name LIKE '%WHERE%' \
                FROM forebay.jobs WHERE state = 'finished'";
    let (mut arrivals, mut begun) = (vec![], vec![]);
    for job in run(session, jobs).await.unwrap() {
        let cells: Vec<_> = job.split('|').collect();
        match cells[3] {
            "true" => arrivals.push((cells[1].parse::<i64>().unwrap(), cells[2].parse().unwrap())),
            _ => {
                let on_cores = tasks(session, cells[0]).await.into_iter();
                begun.extend(on_cores.filter(|task| task.unit.0 == 0).map(|task| task.started));
            }
        }
    }
    assert_eq!(arrivals.len(), small);
    let before = |(queued, started): &(i64, i64)| {
        begun.iter().filter(|began| (*queued..*started).contains(*began)).count()
    };
    let most = arrivals.iter().map(before).max().unwrap_or(0);
    let waited = arrivals.iter().map(|(queued, started)| started - queued).max().unwrap_or(0);
    if is_long() {
        report(&format!(
            "{small} small queries: none waited for more than {waited} ms, or {most} CPU tasks \
             of large ones"
        ));
    }
    assert!(most <= TASKS_BEFORE_MAX, "{most} tasks of large queries before one of a small query");
}
