//! A cluster of its own, in this process.

use forebay::{Catalog, ForebayContext, Inventory};

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_cluster_gives_the_rows_of_one_process() {
    let inventory = || Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30);
    let builder =
        || ForebayContext::builder().with_catalog(Catalog::in_memory()).with_inventory(inventory());
    let mut results = vec![];
    for forebay in [builder().build().unwrap(), builder().standalone().await.unwrap()] {
        forebay.register_model("echo", "tests/models/echo").await.unwrap();
        let query = "SELECT column1 AS n, ml_predict(MODEL echo, column1) AS d
                     FROM (VALUES (1), (2), (3), (2)) ORDER BY n";
        let rows = forebay.sql(query).await.unwrap().collect().await.unwrap();
        results.push(arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string());
    }
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0].lines().count(), 8, "{}", results[0]);
}

/// A message of protocol buffers is read to a depth of 100, and a plan on a cluster is one.
#[test]
fn deep_queries_travel_or_are_refused_before_they_do() {
    // As the executable has it: DataFusion walks plans by recursion.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.thread_stack_size(32 << 20).enable_all().build().unwrap();
    runtime.block_on(runtime.spawn(run_deep_queries())).unwrap();
}

async fn run_deep_queries() {
    let inventory = Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30);
    let builder =
        ForebayContext::builder().with_catalog(Catalog::in_memory()).with_inventory(inventory);
    let cluster = builder.standalone().await.unwrap();
    cluster.register_model("echo", "tests/models/echo").await.unwrap();
    let run = async |sql: &str| {
        let rows = cluster.sql(sql).await?.collect().await?;
        Ok::<_, datafusion::error::DataFusionError>(
            arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string(),
        )
    };
    run("CREATE TABLE t (id BIGINT) AS VALUES (1), (2), (3), (4)").await.unwrap();
    let nested = |levels: usize, around: fn(&str, usize) -> String| {
        (0..levels).fold("SELECT id FROM t".to_owned(), |query, level| around(&query, level))
    };
    let models = nested(20, |query, level| {
        format!("SELECT ml_predict(MODEL echo, id) AS id FROM ({query}) WHERE id <> {level}")
    });
    let windows = nested(12, |query, level| {
        format!(
            "SELECT sum(id) OVER (PARTITION BY id % {} ORDER BY id) AS id FROM ({query})",
            level + 2
        )
    });
    let groups = nested(20, |query, level| {
        format!("SELECT max(id) AS id FROM ({query}) GROUP BY id % {}", 100 - level)
    });
    for query in [models, windows, groups] {
        let rows = run(&format!("SELECT count(*) FROM ({query})")).await.unwrap();
        assert!(rows.contains("| 4 "), "{rows}");
    }
    let calls = (0..24).fold("id".to_owned(), |call, _| format!("abs({call} - 1)"));
    let error = run(&format!("SELECT {calls} FROM t")).await.unwrap_err().to_string();
    assert!(error.contains("nested too deeply for a cluster"), "{error}");
}
