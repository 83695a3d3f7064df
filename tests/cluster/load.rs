//! Many queries at once.

use super::setup::{ACCELERATOR, CPU, QUERY, Stage};

const SMALL: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_queries_and_a_large_one() {
    let mut stage = Stage::new(10, &[CPU, CPU, ACCELERATOR, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    let large = stage.start(&session, QUERY);
    let small: Vec<_> = (0..SMALL)
        .map(|n| {
            let some = format!("FROM words WHERE id % {SMALL} = {n} AND id < 400");
            stage.start(&session, &QUERY.replace("FROM words", &some))
        })
        .collect();
    for (n, running) in small.into_iter().enumerate() {
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("query {n}: {e}\n{}", stage.cluster.said()));
        let wanted = undisturbed.rows.iter().filter(|row| {
            let id: usize = row.split('|').next().unwrap().parse().unwrap();
            id % SMALL == n && id < 400
        });
        assert!(rows.iter().eq(wanted), "query {n}: {} rows, or others", rows.len());
    }
    assert!(stage.end(large).await.unwrap() == undisturbed.rows);
    stage.until_nothing_is_left(&[0, 1, 2, 3]).await;
}
