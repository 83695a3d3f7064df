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
