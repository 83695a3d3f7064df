//! TPC-H's queries at a small scale: plain DataFusion, Forebay in one process and a cluster of two workers give the
//! same rows in the same order.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::{SessionConfig, SessionContext};
use forebay::{Catalog, ForebayContext};
use forebay_testkit::tpch;

use super::setup::{CPU, NEIGHBOUR, Stage};

/// Of 6,000,000 rows of `lineitem`.
const SCALE: f64 = 0.01;
const PARTITIONS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_queries_give_what_plain_datafusion_gives() {
    let stage = Stage::new(60, &[CPU, NEIGHBOUR]);
    let tables = stage.folder().join("tpch");
    tpch::write_tables(&tables, SCALE, PARTITIONS).await;
    let config = || SessionConfig::new().with_target_partitions(PARTITIONS);

    let plain = SessionContext::new_with_config(config());
    let builder =
        || ForebayContext::builder().with_catalog(Catalog::in_memory()).with_config(config());
    let embedded = builder().build().unwrap();
    let cluster = builder().connect(stage.cluster.address()).await.unwrap();
    // However small a side is, both are dealt out where one process would have collected one.
    let threshold = "datafusion.optimizer.hash_join_single_partition_threshold";
    let all_by_hash = || {
        let config = config().set_u64(threshold, 0).set_u64(&format!("{threshold}_rows"), 0);
        let builder = ForebayContext::builder().with_catalog(Catalog::in_memory());
        builder.with_config(config).connect(stage.cluster.address())
    };
    let by_hash = all_by_hash().await.unwrap();
    // As large tables are, in partitions of half a megabyte.
    let large = builder().connect(stage.cluster.address()).await.unwrap();
    let large_by_hash = all_by_hash().await.unwrap();
    for session in [&large, &large_by_hash] {
        session.sql("SET forebay.partition_bytes = 500000").await.unwrap();
    }
    let sessions = [
        (&embedded, "in one process"),
        (&cluster, "on a cluster"),
        (&by_hash, "on a cluster, with all joins by hash"),
        (&large, "on a cluster, in more partitions"),
        (&large_by_hash, "on a cluster, with all joins by hash and in more partitions"),
    ];
    for name in tpch::TABLES {
        let create = tpch::create_table(name, &tables);
        plain.sql(&create).await.unwrap();
        for (session, _) in sessions {
            session.sql(&create).await.unwrap();
        }
    }

    let begun = stage.cluster.tasks_begun();
    let mut empty = vec![];
    for number in 1..=tpch::QUERIES {
        let query = tpch::query(number, SCALE);
        let expected = plain.sql(&query).await.unwrap().collect().await.unwrap();
        if expected.iter().all(|batch| batch.num_rows() == 0) {
            empty.push(number);
        }
        let expected = pretty_format_batches(&expected).unwrap().to_string();
        for (session, place) in sessions {
            let rows = async { session.sql(&query).await?.collect().await };
            let rows = stage.bounded(rows).await.unwrap();
            let found = pretty_format_batches(&rows).unwrap().to_string();
            assert_eq!(found, expected, "query {number} {place}");
        }
    }
    let plan =
        large.sql("EXPLAIN SELECT DISTINCT l_orderkey, l_comment FROM lineitem").await.unwrap();
    let plan = pretty_format_batches(&plan.collect().await.unwrap()).unwrap().to_string();
    let counts = plan.split(" partitions; reads").filter_map(|text| text.rsplit(' ').next());
    let most = counts.filter_map(|count| count.parse::<usize>().ok()).max();
    assert!(most > Some(PARTITIONS), "{plan}");
    assert!(empty.is_empty(), "the data are too few for queries {empty:?}");
    assert!(stage.cluster.tasks_begun() - begun > 2 * tpch::QUERIES, "the workers did it");
    stage.nothing_ran_again(&cluster).await;
}
