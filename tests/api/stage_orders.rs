//! What a plan relies on the order of rows for, or on each row being dealt out once, holds where it is
//! cut into stages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use forebay::{Catalog, ForebayContext, Inventory};
use tempfile::TempDir;

/// Each file is sorted, and the files have keys in common.
fn files() -> Vec<Vec<i64>> {
    [(0..9, 2), (3..12, 1), (0..14, 1)].map(|(keys, step)| keys.step_by(step).collect()).to_vec()
}

/// How often each key is there.
fn counts() -> BTreeMap<i64, i64> {
    let mut counts = BTreeMap::new();
    files().concat().into_iter().for_each(|key| *counts.entry(key).or_default() += 1);
    counts
}

async fn on_a_cluster(folder: &Path) -> ForebayContext {
    for (at, keys) in files().iter().enumerate() {
        let lines: String = keys.iter().map(|key| format!("{key}\n")).collect();
        fs::write(folder.join(format!("{at}.csv")), format!("k\n{lines}")).unwrap();
    }
    let inventory = Inventory::detect().with_cpus(4).with_emulated(1, 4 << 30);
    let builder = ForebayContext::builder().with_catalog(Catalog::in_memory());
    let forebay = builder.with_inventory(inventory).standalone().await.unwrap();
    forebay.register_model("echo", "tests/models/echo").await.unwrap();
    let folder = folder.display();
    let create = format!(
        "CREATE EXTERNAL TABLE sorted (k BIGINT) STORED AS CSV WITH ORDER (k) LOCATION '{folder}/'"
    );
    run(&forebay, &create).await;
    forebay
}

/// The rows of a result of numbers, as they come.
async fn run(forebay: &ForebayContext, sql: &str) -> Vec<Vec<i64>> {
    let batches = async { forebay.sql(sql).await?.collect().await }.await;
    let batches = batches.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    let rows = batches.iter().flat_map(|batch| {
        (0..batch.num_rows()).map(|row| {
            let values = batch.columns().iter();
            values.map(|values| values.as_primitive::<Int64Type>().value(row)).collect()
        })
    });
    rows.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_a_sorted_table_come_in_order() {
    let folder = TempDir::new().unwrap();
    let forebay = on_a_cluster(folder.path()).await;
    let groups = counts().into_iter().map(|(key, count)| vec![key, count]).collect::<Vec<_>>();
    for prefer_existing_sort in [false, true] {
        let set = format!("SET datafusion.optimizer.prefer_existing_sort = {prefer_existing_sort}");
        run(&forebay, &set).await;
        for grouped in [
            "SELECT k, count(*) FROM sorted GROUP BY k ORDER BY k",
            "SELECT k, n FROM (SELECT k, count(*) OVER (PARTITION BY k) AS n FROM sorted) \
             GROUP BY k, n ORDER BY k",
            "SELECT a.k, n FROM (SELECT DISTINCT k FROM sorted) a \
             JOIN (SELECT k, count(*) AS n FROM sorted GROUP BY k) b ON a.k = b.k ORDER BY a.k",
        ] {
            assert_eq!(run(&forebay, grouped).await, groups, "{grouped}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_that_are_not_dealt_out_give_each_row_once() {
    let folder = TempDir::new().unwrap();
    let forebay = on_a_cluster(folder.path()).await;
    let windows = "SELECT ml_predict(MODEL echo, k) IS NULL, k, n FROM \
                   (SELECT k, count(*) OVER (PARTITION BY k ORDER BY ml_predict(MODEL echo, 5)) AS n \
                    FROM sorted)";
    let sql = format!("SELECT count(*), sum(n)::BIGINT FROM ({windows})");
    let squares = counts().values().map(|count| count * count).sum();
    let expected = [vec![counts().values().sum::<i64>(), squares]];
    for option in ["repartition_windows", "repartition_sorts"] {
        run(&forebay, &format!("SET datafusion.optimizer.{option} = false")).await;
        assert_eq!(run(&forebay, &sql).await, expected, "without {option}: {sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unions_of_sorted_branches_come_in_order() {
    let folder = TempDir::new().unwrap();
    let forebay = on_a_cluster(folder.path()).await;
    let mut keys = files().concat();
    keys.extend(files().concat().into_iter().filter(|key| *key > 3).map(|key| key % 4));
    keys.sort_unstable();
    let keys: Vec<Vec<i64>> = keys.into_iter().map(|key| vec![key]).collect();
    for table in ["sorted", "copied"] {
        run(&forebay, "CREATE TABLE IF NOT EXISTS copied AS SELECT k FROM sorted").await;
        let sql = format!(
            "SELECT k FROM (SELECT k % 4 AS k FROM {table} WHERE k > 3 UNION ALL SELECT k FROM {table}) \
             ORDER BY k"
        );
        assert_eq!(run(&forebay, &sql).await, keys, "{sql}");
    }
}

/// Ballista's planner plans the stage below a shuffled join anew, and so the limit of a merge in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_below_a_shuffled_join_is_kept() {
    let folder = TempDir::new().unwrap();
    let forebay = on_a_cluster(folder.path()).await;
    let sql = "SELECT s.k FROM (SELECT k, ml_predict(MODEL echo, k) AS e FROM copied ORDER BY k DESC, e \
               LIMIT 2) AS s LEFT SEMI JOIN copied AS r ON s.k = r.k WHERE s.k = s.k GROUP BY s.k";
    run(&forebay, "CREATE TABLE copied AS SELECT k FROM sorted").await;
    let most = *counts().keys().next_back().unwrap();
    let rows = run(&forebay, sql).await;
    assert!(rows.iter().all(|row| row[0] + 1 >= most) && rows.len() <= 2, "{rows:?}");
}

/// Within each part of the union the rows are in the order of `a` alone, as `k` is one number in the
/// first and is `a` in the second. Merged they are not.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_union_come_in_the_order_that_was_asked_for() {
    let folder = TempDir::new().unwrap();
    let forebay = on_a_cluster(folder.path()).await;
    let sql = "SELECT k, a FROM ((SELECT 5 AS k, ml_predict(MODEL echo, k) % 3 AS a FROM sorted) \
               EXCEPT (SELECT k, k AS a FROM sorted) UNION ALL (SELECT k, k AS a FROM sorted)) \
               ORDER BY k, a";
    let rows = run(&forebay, sql).await;
    assert!(rows.is_sorted() && rows.len() > files().concat().len(), "{rows:?}");
}
