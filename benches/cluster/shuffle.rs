//! Rows that are dealt out by a hash of their keys: on Forebay's cluster and on stock Ballista. Two workers with half of
//! the cores each; both plan with as many partitions and have no memory limit.
//!
//! `FOREBAY_SHUFFLE_ROWS` (of each of both tables, 4,000,000) and `FOREBAY_SHUFFLE_PARTITIONS` (16) are for more. And with
//! many partitions (`FOREBAY_MERGE_PARTITIONS`, 256): with segments that are merged, and with all of them read one by one.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, StringArray};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use tempfile::TempDir;

use super::relational::{numbers, random, write};
use super::stock::{Stock, cpu_seconds, text};
use super::{Cluster, Has, median, set};

const ROUNDS: usize = 5;

const TABLES: [&str; 2] = ["a", "b"];

const QUERIES: [(&str, &str); 3] = [
    ("groups", "SELECT count(*), max(n) FROM (SELECT key, count(*) AS n FROM a GROUP BY key)"),
    (
        "texts",
        "SELECT count(*), max(last) FROM (SELECT key, max(text) AS last FROM a GROUP BY key)",
    ),
    ("join", "SELECT count(*), max(concat(a.text, b.text)) FROM a JOIN b ON a.key = b.key"),
];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

pub(super) async fn shuffle() {
    let rows = number("FOREBAY_SHUFFLE_ROWS", 4_000_000);
    let tables = TempDir::new().unwrap();
    for (column, table) in (0..).zip(TABLES) {
        write(tables.path(), table, rows, |keys| {
            let text = |key: u64| format!("{key:020} is a text that follows its key about");
            let texts = random(keys.clone(), column + 7, rows).map(text);
            let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
            vec![("key", numbers(random(keys, column, rows))), ("text", texts)]
        });
    }
    let cores = std::thread::available_parallelism().unwrap().get().div_ceil(2);
    let has = || Has { cpus: cores as u32, accelerators: 0, work_limit: None };
    let cluster = Cluster::start_in(TempDir::new().unwrap(), &[has(), has()]).await;

    let partitions = number("FOREBAY_SHUFFLE_PARTITIONS", 16) as usize;
    let blocks = cluster.session(partitions).await;
    let stock = Stock::start(&[cores, cores], partitions).await;
    let sessions = [("blocks", blocks.session()), ("stock", stock.session())];
    compared(&sessions, tables.path(), rows, partitions).await;

    let partitions = number("FOREBAY_MERGE_PARTITIONS", 256) as usize;
    let (merged, apart) = (cluster.session(partitions).await, cluster.session(partitions).await);
    set(&merged, "forebay.merge_segments_from", 1).await;
    set(&merged, "forebay.merge_segments_below", 1_u64 << 30).await;
    set(&apart, "forebay.merge_segments_below", 0).await;
    let sessions = [("merged", merged.session()), ("apart", apart.session())];
    compared(&sessions, tables.path(), rows, partitions).await;
}

/// Each query in each session, in turn.
async fn compared(
    sessions: &[(&str, &SessionContext)],
    tables: &Path,
    rows: u64,
    partitions: usize,
) {
    for (_, session) in sessions {
        for table in TABLES {
            let path = tables.join(table);
            let options = ParquetReadOptions::default();
            session.register_parquet(table, path.to_str().unwrap(), options).await.unwrap();
        }
        // Both sides are dealt out, however many rows there are.
        let threshold = "datafusion.optimizer.hash_join_single_partition_threshold";
        for option in [threshold.to_owned(), format!("{threshold}_rows")] {
            session.sql(&format!("SET {option} = 0")).await.unwrap();
        }
    }
    for (query, sql) in QUERIES {
        let mut took: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); sessions.len()];
        let mut results = vec![];
        for round in 0..=ROUNDS {
            for ((_, session), (seconds, cpu)) in sessions.iter().zip(&mut took) {
                let (start, before) = (Instant::now(), cpu_seconds());
                results.push(text(&session.sql(sql).await.unwrap().collect().await.unwrap()));
                // The first round warms all up.
                if round > 0 {
                    seconds.push(start.elapsed().as_secs_f64());
                    cpu.push(cpu_seconds() - before);
                }
            }
        }
        assert!(results.iter().all(|result| *result == results[0]), "query {query}: other rows");
        for ((who, _), (seconds, cpu)) in sessions.iter().zip(&took) {
            println!(
                "{{\"name\": \"cluster, shuffle, {query}, {who}\", \"rows\": {rows}, \"partitions\": {partitions}, \
                 \"seconds\": {:.3}, \"cpu_seconds\": {:.2}}}",
                median(seconds),
                median(cpu)
            );
        }
    }
}
