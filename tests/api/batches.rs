//! The size of batches is learned on an accelerator: an emulated one, whose times and memory are declared, so
//! that the best size is known and nothing depends on how fast this machine is.

use std::path::Path;
use std::time::Duration;

use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionConfig;
use forebay::{Catalog, ForebayContext, Inventory};
use futures::StreamExt;
use tempfile::TempDir;

/// For each batch, and for each of its rows.
const FIXED_MS: f64 = 1.0;
const ROW_MS: f64 = 0.01;
/// A fifth of the memory is left to others.
const ROWS_MAX: usize = 800;
const CROWDED_ROWS_MAX: usize = 200;

/// A model on a device with memory for 1000 rows, of which others hold so much that there is room for only
/// 250 between two batches.
fn package(crowded: Option<[u32; 2]>) -> TempDir {
    let free = match crowded {
        Some([from, to]) => format!("[[0, 1000000], [{from}, 250000], [{to}, 1000000]]"),
        None => "[[0, 1000000]]".to_owned(),
    };
    let runtime = format!(
        "kind = \"emulated\"\nservice_ms = 1\n[runtime.curve]\nunit_ns = 10000\nunit_bytes = 1000\n\
         free_bytes = {free}"
    );
    let echo = std::fs::read_to_string("tests/models/echo/model.toml").unwrap();
    let echo = echo
        .replace("kind = \"emulated\"\nservice_ms = 1", &runtime)
        .replace("gpus = 0.5", "gpus = 1");
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("model.toml"), echo).unwrap();
    dir
}

async fn session(catalog: &Path, package: &TempDir) -> ForebayContext {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::open(catalog).unwrap())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(1))
        .build()
        .unwrap();
    let create = format!("CREATE MODEL IF NOT EXISTS m LOCATION '{}'", package.path().display());
    forebay.sql(&create).await.unwrap();
    forebay
}

/// In no order that is known: what puts rows back in order joins the batches that have come.
fn query(rows: usize, options: &str) -> String {
    format!(
        "SELECT value, digest FROM ml_predict((SELECT value % 1000003 AS value FROM \
         generate_series(1, {rows})), MODEL m, DESCRIPTOR(value){options})"
    )
}

/// Rows of the batches of a query, in the order in which they were computed.
async fn batches(forebay: &ForebayContext, rows: usize, options: &str) -> Vec<usize> {
    let frame = forebay.sql(&query(rows, options)).await.unwrap();
    let stream = frame.execute_stream().await.unwrap();
    let batches: Vec<usize> = stream
        .map(|batch| batch.unwrap().num_rows())
        .filter(|rows| futures::future::ready(*rows > 0))
        .collect()
        .await;
    assert_eq!(batches.iter().sum::<usize>(), rows);
    batches
}

async fn text(forebay: &ForebayContext, statement: &str) -> String {
    let batches = forebay.sql(statement).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

/// A thread keeps what it learned when its batches are over, which nobody waits for.
async fn wait_until_kept(catalog: &Path, line: &str) {
    let kept = || {
        let files = std::fs::read_dir(catalog.join("learned")).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect::<String>()
    };
    for _ in 0..1000 {
        if kept().contains(line) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{line} is not in {}", kept());
}

/// Rows per millisecond in batches of so many.
fn rate(rows: usize) -> f64 {
    rows as f64 / (FIXED_MS + ROW_MS * rows as f64)
}

fn is_good(rows: usize, best: usize) -> bool {
    rows <= best && rate(rows) >= 0.95 * rate(best)
}

/// Without those that producers were too slow for, or that were what was left of a window: smaller ones than one
/// before them.
fn full_ones(batches: &[usize]) -> Vec<usize> {
    let mut largest = 0;
    let is_full = |rows: &&usize| {
        largest = largest.max(**rows);
        **rows * 8 >= largest * 7
    };
    batches.iter().filter(is_full).copied().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_batches_are_enough_and_the_next_process_knows() {
    let (catalog, package) = (TempDir::new().unwrap(), package(None));
    let forebay = session(catalog.path(), &package).await;
    let explained = text(&forebay, &format!("EXPLAIN {}", query(9, ""))).await;
    assert!(explained.contains("batch=learned, outputs"), "{explained}");
    assert!(explained.contains("byte_budget=64.0 MiB to 1.0 GiB, window_rows=1024"), "{explained}");
    let all = batches(&forebay, 40_000, "").await;
    assert_eq!(all[0], 128, "{all:?}");
    assert!(all.iter().all(|rows| *rows <= ROWS_MAX), "{all:?}");
    let full = full_ones(&all);
    assert!(full.len() > 30, "{all:?}");
    // Without the last, which is what was left.
    let later = &full[20..full.len() - 1];
    assert!(later.iter().all(|rows| is_good(*rows, ROWS_MAX)), "{all:?}");
    let described = text(&forebay, "DESCRIBE MODEL m").await;
    assert!(described.contains("batch_rows on emulated"), "{described}");
    assert!(described.contains(&format!("{ROWS_MAX}, larger ones are tried")), "{described}");
    let analyzed = text(&forebay, &format!("EXPLAIN ANALYZE {}", query(5_000, ""))).await;
    assert!(analyzed.contains(&format!("batch_size={ROWS_MAX}")), "{analyzed}");
    // An option caps what was learned, in a window of its own.
    let capped = batches(&forebay, 5_000, ", max_batch_rows => 100").await;
    assert!(capped.iter().all(|rows| *rows <= 100), "{capped:?}");
    wait_until_kept(catalog.path(), &format!("batch_size = {ROWS_MAX}")).await;
    let next = session(catalog.path(), &package).await;
    assert_eq!(batches(&next, 5_000, "").await[0], ROWS_MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_with_equal_inputs_stay_together_while_batches_grow() {
    let (catalog, package) = (TempDir::new().unwrap(), package(None));
    let forebay = session(catalog.path(), &package).await;
    let query = "SELECT sum(n) AS n, count(*) AS pairs, count(DISTINCT value) AS v FROM (SELECT value, \
                 digest, count(*) AS n FROM ml_predict((SELECT value / 3 AS value FROM \
                 generate_series(1, 40000)), MODEL m, DESCRIPTOR(value)) GROUP BY value, digest)";
    let found = text(&forebay, query).await;
    assert!(found.contains("| 40000 | 13334 | 13334 |"), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_others_fill_for_a_while_gets_its_batches_back() {
    let (catalog, package) = (TempDir::new().unwrap(), package(Some([40, 80])));
    let forebay = session(catalog.path(), &package).await;
    let all = batches(&forebay, 80_000, "").await;
    // While there was little memory, and what is not full.
    let of = |best: usize| all.iter().filter(|rows| is_good(**rows, best)).count();
    let (roomy, crowded) = (of(ROWS_MAX), of(CROWDED_ROWS_MAX));
    assert!(crowded >= 20, "{crowded} of {all:?}");
    assert!(roomy >= 20, "{roomy} of {all:?}");
    let last = &all[all.len() - 21..all.len() - 1];
    let good = last.iter().filter(|rows| is_good(**rows, ROWS_MAX)).count();
    assert!(good >= 15, "{good} of {all:?}");
}
