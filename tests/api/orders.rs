//! What keeps or needs an order around a model, in one process and on a cluster: tables that are sorted,
//! joins by merging, offsets. The expected rows are counted here.

use std::fs;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use forebay::{Catalog, ForebayContext, Inventory};
use tempfile::TempDir;

/// `(k, id, d)` of so many rows, dealt out to three files, each sorted by `id`.
fn write(folder: &Path, name: &str, rows: impl Iterator<Item = (i64, i64, i64)>) {
    let mut files = [const { String::new() }; 3];
    for (at, (k, id, d)) in rows.enumerate() {
        files[at % 3] += &format!("{k},{id},{d}\n");
    }
    fs::create_dir(folder.join(name)).unwrap();
    for (at, rows) in files.iter().enumerate() {
        fs::write(folder.join(name).join(format!("{at}.csv")), format!("k,id,d\n{rows}")).unwrap();
    }
}

const LEFT: i64 = 40;
const RIGHT: i64 = 30;

async fn run(forebay: &ForebayContext, sql: &str) -> Vec<i64> {
    let batches = async { forebay.sql(sql).await?.collect().await }.await;
    let batches = batches.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    let Some(batch) = batches.iter().find(|batch| batch.num_rows() > 0) else { return vec![] };
    let number = |column: &arrow::array::ArrayRef| {
        column.as_primitive_opt::<Int64Type>().map_or(0, |column| column.value(0))
    };
    batch.columns().iter().map(number).collect()
}

async fn with_tables(forebay: ForebayContext, folder: &Path) -> ForebayContext {
    forebay.register_model("echo", "tests/models/echo").await.unwrap();
    for name in ["s", "o"] {
        let create = format!(
            "CREATE EXTERNAL TABLE {name} (k BIGINT, id BIGINT, d BIGINT) STORED AS CSV \
             LOCATION '{}/' WITH ORDER (id) OPTIONS ('format.has_header' 'true')",
            folder.join(name).display()
        );
        run(&forebay, &create).await;
    }
    forebay
}

/// One process, and a cluster.
async fn both(folder: &Path) -> [ForebayContext; 2] {
    write(folder, "s", (0..LEFT).map(|i| (i % 11, i, i % 7)));
    write(folder, "o", (0..RIGHT).map(|i| (i % 5, i * 2, i % 3)));
    let inventory = || Inventory::detect().with_cpus(4).with_emulated(1, 4 << 30);
    let builder =
        || ForebayContext::builder().with_catalog(Catalog::in_memory()).with_inventory(inventory());
    [
        with_tables(builder().build().unwrap(), folder).await,
        with_tables(builder().standalone().await.unwrap(), folder).await,
    ]
}

async fn set(forebay: &ForebayContext, option: &str, value: impl std::fmt::Display) {
    run(forebay, &format!("SET {option} = {value}")).await;
}

/// The column before the key is the model's alone, and dropped behind it: a sort for the key must not be
/// taken for one by what was in the key's place.
#[tokio::test(flavor = "multi_thread")]
async fn sorts_stay_with_their_columns_where_a_model_drops_others() {
    let folder = TempDir::new().unwrap();
    let model = "(SELECT id, d, ml_predict(MODEL echo, k) AS p FROM s)";
    let pairs = (0..LEFT).filter(|id| id % 2 == 0 && id / 2 < RIGHT);
    let (count, sum) = (pairs.clone().count() as i64, pairs.sum::<i64>());
    let all = LEFT * (LEFT - 1) / 2;
    let cases = [
        (format!("count(a.p), sum(a.id) FROM {model} a JOIN o ON a.id = o.id"), vec![count, sum]),
        (
            format!("count(a.p), sum(a.id) FROM {model} a LEFT JOIN o ON a.id = o.id"),
            vec![LEFT, all],
        ),
        (
            format!(
                "count(b.q), sum(a.id) FROM {model} a JOIN (SELECT id, ml_predict(MODEL echo, k) AS q \
                 FROM o) b ON a.id = b.id WHERE a.p IS NOT NULL"
            ),
            vec![count, sum],
        ),
        (
            format!(
                "count(p), sum(n)::BIGINT FROM (SELECT p, row_number() OVER (ORDER BY id) AS n FROM \
                 {model})"
            ),
            vec![LEFT, all + LEFT],
        ),
        (
            format!(
                "count(p), sum(n)::BIGINT FROM (SELECT p, id * row_number() OVER (PARTITION BY id \
                 ORDER BY d) AS n FROM {model})"
            ),
            vec![LEFT, all],
        ),
    ];
    for forebay in both(folder.path()).await {
        set(&forebay, "datafusion.optimizer.prefer_hash_join", false).await;
        set(&forebay, "datafusion.optimizer.hash_join_single_partition_threshold", 0).await;
        set(&forebay, "datafusion.optimizer.hash_join_single_partition_threshold_rows", 0).await;
        for (ordered, scans, partitions) in
            [(true, false, 4), (true, true, 4), (true, false, 1), (false, false, 4)]
        {
            set(&forebay, "forebay.ordered_exchanges", ordered).await;
            set(&forebay, "datafusion.optimizer.repartition_file_scans", scans).await;
            set(&forebay, "datafusion.execution.target_partitions", partitions).await;
            for exchange in [true, false] {
                set(&forebay, "forebay.exchange", exchange).await;
                for (query, expected) in &cases {
                    let found = run(&forebay, &format!("SELECT {query}")).await;
                    let how = format!(
                        "ordered {ordered}, scans {scans}, {partitions} partitions, exchange \
                         {exchange}: {query}"
                    );
                    assert_eq!(found, *expected, "{how}");
                }
            }
        }
    }
}

/// An offset without a limit is a limit as to order: what sorts its rows anew is above it.
#[tokio::test(flavor = "multi_thread")]
async fn an_offset_takes_the_first_rows_of_the_order_below_it() {
    let folder = TempDir::new().unwrap();
    let last = "(SELECT id, d, ml_predict(MODEL echo, k) AS p FROM s ORDER BY id DESC OFFSET 30)";
    // 0 to 9
    for forebay in both(folder.path()).await {
        for partitions in [1, 4] {
            set(&forebay, "datafusion.execution.target_partitions", partitions).await;
            for (query, expected) in [
                (format!("SELECT id, count(p) OVER () FROM {last} ORDER BY id"), vec![0, 10]),
                (format!("SELECT max(id), count(p) FROM {last}"), vec![9, 10]),
                (
                    format!("SELECT array_agg(id ORDER BY d, id)[10], count(p) FROM {last}"),
                    vec![6, 10],
                ),
                (
                    format!(
                        "SELECT sum(n)::BIGINT, count(p) FROM (SELECT p, row_number() OVER (ORDER BY d, \
                         id) * id AS n FROM {last})"
                    ),
                    // By (d, id): 0 7 1 8 2 9 3 4 5 6
                    vec![2 * 7 + 3 + 4 * 8 + 5 * 2 + 6 * 9 + 7 * 3 + 8 * 4 + 9 * 5 + 10 * 6, 10],
                ),
                (
                    format!(
                        "SELECT sum(x[1]), count(*) FROM (SELECT d, array_agg(id ORDER BY id DESC) AS x \
                         FROM {last} GROUP BY d)"
                    ),
                    // The largest of each d: 7 8 9 3 4 5 6
                    vec![42, 7],
                ),
            ] {
                let found = run(&forebay, &query).await;
                assert_eq!(found, expected, "{partitions} partitions: {query}");
            }
        }
    }
}
