//! Many queries at once.

use super::history::{self, tasks};
use super::setup::{ACCELERATOR, CPU, FILES, QUERY, Running, Stage, is_long, report, run};

/// Rows of the table that small queries are about.
const SMALL_ROWS: usize = 400;

/// How often a large query reads the table: each file once more is a task for a core.
const COPIES: usize = 8;

fn large_query() -> String {
    let copies = ["SELECT * FROM words"; COPIES].join(" UNION ALL ");
    QUERY.replace("FROM words", &format!("FROM ({copies})"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_queries_and_large_ones() {
    let (small, large) = if is_long() { (50, 2) } else { (10, 1) };
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let begun = stage.cluster.tasks_begun();
    let large: Vec<Running> = (0..large).map(|_| stage.start(&session, &large_query())).collect();
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
    let copied = undisturbed.rows.iter().flat_map(|row| vec![row.clone(); COPIES]);
    let copied: Vec<String> = copied.collect();
    for running in large {
        assert!(stage.end(running).await.unwrap() == copied);
    }
    nobody_starved(&session, small).await;
    stage.until_nothing_is_left(&[0, 1, 2, 3]).await;
    assert_eq!(history::busy_workers(&session).await, Vec::<String>::new());
}

/// Looks at the jobs, of which so many are small. One that waits holds nothing, and so is the next that
/// gets a core: it does not wait for the tasks of a large one, of which there are many.
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
    let of_large = begun.len();
    assert!(of_large >= COPIES * FILES, "large queries have {of_large} tasks");
    assert!(most * 2 < of_large, "{most} of {of_large} tasks before one of a small query");
}
