//! Workers of one machine, which read each other's files.

use datafusion::prelude::SessionContext;
use forebay_testkit::proxy::Proxy;

use super::setup::{CPU, FILES, Stage, lines, run};

const ROWS: usize = 120_000;

/// What is shuffled has some megabytes, and what the session reads has one row.
const SHUFFLED: &str = "
    SELECT count(*) AS keys, sum(rows) AS rows, min(t) AS least, max(t) AS most
    FROM (SELECT t, count(*) AS rows FROM many GROUP BY t)";

/// Two workers that are reached by these names and whose blocks are read through proxies. Groups and sorts rows, compares
/// them with those of one process, and says how many bytes the proxies passed on.
async fn passed_on(hosts: [&str; 2]) -> u64 {
    let mut stage = Stage::new(60, &[]);
    let mut proxies = vec![];
    for host in hosts {
        let proxy = Proxy::start().await;
        let ports = format!("{},0", proxy.port());
        let reached = ["--host", host, "--advertised-ports", &ports];
        let at = stage.cluster.add_worker(&[CPU, &reached].concat());
        proxy.forward_to(stage.cluster.worker(at).blocks_port());
        proxies.push(proxy);
    }
    let table = stage.folder().join("many");
    let one = SessionContext::new();
    for file in 0..FILES {
        let (from, to) = (file * ROWS / FILES, (file + 1) * ROWS / FILES);
        let copy = format!(
            "COPY (SELECT md5(CAST(value AS VARCHAR)) AS t FROM range({from}, {to}))
             TO '{}/{file}.parquet' STORED AS PARQUET",
            table.display()
        );
        one.sql(&copy).await.unwrap().collect().await.unwrap();
    }
    let create = |name: &str, folder| {
        format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{folder}/'")
    };
    let session = stage.session().await;
    run(&session, &create("many", table.display())).await.unwrap();
    one.sql(&create("many", table.display())).await.unwrap();
    let expected = async |query| lines(&one.sql(query).await.unwrap().collect().await.unwrap());
    let rows = stage.run(&session, SHUFFLED).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert_eq!(rows, expected(SHUFFLED).await);
    run(&session, "SET forebay.range_bytes = 200000").await.unwrap();
    let sorted = stage.folder().join("sorted");
    let copy = format!(
        "COPY (SELECT t FROM many ORDER BY t) TO '{}/' STORED AS PARQUET",
        sorted.display()
    );
    stage.run(&session, &copy).await.unwrap();
    assert!(std::fs::read_dir(&sorted).unwrap().count() > 2);
    one.sql("SET datafusion.execution.target_partitions = 1").await.unwrap();
    one.sql(&create("sorted", sorted.display())).await.unwrap();
    assert!(
        expected("SELECT t FROM sorted").await == expected("SELECT t FROM many ORDER BY t").await
    );
    proxies.iter().map(Proxy::passed).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_workers_of_one_machine_read_of_each_other_goes_over_no_network() {
    let apart = passed_on(["127.0.0.1", "localhost"]).await;
    let together = passed_on(["localhost", "localhost"]).await;
    // One that does not answer in time, on a busy machine, is fetched from.
    assert!(apart > 1_000_000 && together < apart / 2, "{together} and {apart} bytes");
}
