//! Embedding throughput of the engine against the model alone, in one run.
//!
//! The limit: the same texts, already tokenized and cut into the same kind of batches (longest
//! first within the package's window, up to its padded tokens), forward passes only, as many
//! threads as cores with one intra-op thread each. The engine: SQL over the Parquet file,
//! tokenizing, exchange and result columns included. Rounds are interleaved; the medians' ratio is
//! printed.
//!
//! `cargo bench --bench embedding`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot run should say why at once, and prints its result"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::{concat, take};
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use forebay_udf::model::{ModelDeclaration, Package};
use forebay_udf::runtime::{self, Device, Replica};
use forebay_udf::transform;

const PACKAGE: &str = ".forebay/models/all-minilm-l6-v2";
const TEXTS: &str = "sql-examples/data/wordnet.parquet";
const ROWS: usize = 4_000;
const ROUNDS: usize = 5;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let threads = std::thread::available_parallelism().unwrap().get();
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(threads as u32))
        .build()
        .unwrap();
    forebay.register_model("minilm", PACKAGE).await.unwrap();
    let model = Arc::new(forebay.catalog().get("minilm").unwrap().declaration);
    let env = forebay.session().runtime_env();
    let package = Package::fetch(model.pinned(), &env).await.unwrap();
    let replica = runtime::load(&model, &package, Device::Cpu).unwrap();
    let batches = batches(&model, &package, texts(&forebay).await);

    let (mut limit, mut engine) = (vec![], vec![]);
    for round in 0..=ROUNDS {
        let (l, e) = (raw(&model, &replica, &batches, threads), sql(&forebay).await);
        if round > 0 {
            limit.push(l);
            engine.push(e);
        }
    }
    let (limit, engine) = (median(&mut limit), median(&mut engine));
    println!(
        "{{\"name\": \"embedding throughput, engine / model alone\", \"threads\": {threads}, \
         \"rows\": {ROWS}, \"batches\": {}, \"limit_rows_per_s\": {limit:.1}, \
         \"engine_rows_per_s\": {engine:.1}, \"ratio\": {:.3}}}",
        batches.len(),
        engine / limit
    );
}

async fn texts(forebay: &ForebayContext) -> ArrayRef {
    let sql = format!("SELECT gloss FROM '{TEXTS}' LIMIT {ROWS}");
    let rows = forebay.sql(&sql).await.unwrap().collect().await.unwrap();
    let columns: Vec<&dyn Array> = rows.iter().map(|batch| batch.column(0).as_ref()).collect();
    concat(&columns).unwrap()
}

/// Token ids in batches: longest first, as many rows as the package's limits allow.
fn batches(model: &ModelDeclaration, package: &Package, texts: ArrayRef) -> Vec<Vec<ArrayRef>> {
    let transform = transform::load(model, package).unwrap();
    let tokens = transform.apply(&[texts]).unwrap().columns.remove(0);
    let lists = tokens.as_list::<i32>();
    let (max_rows, max_tokens) = (model.batch.max_rows as usize, model.batch.max_tokens);
    let rows: Vec<u32> = (0..lists.len() as u32).collect();
    let mut batches = vec![];
    for window in rows.chunks(model.batch.window_rows as usize) {
        let mut order = window.to_vec();
        order.sort_by_key(|row| std::cmp::Reverse(lists.value_length(*row as usize)));
        while !order.is_empty() {
            let longest = lists.value_length(order[0] as usize).max(1) as usize;
            let fits = max_tokens.map_or(max_rows, |max| max as usize / longest);
            let rest = order.split_off(fits.clamp(1, max_rows).min(order.len()));
            let rows = UInt32Array::from(std::mem::replace(&mut order, rest));
            batches.push(vec![take(&tokens, &rows, None).unwrap()]);
        }
    }
    batches
}

/// Rows per second of forward passes alone.
fn raw(
    model: &ModelDeclaration,
    replica: &Arc<dyn Replica>,
    batches: &[Vec<ArrayRef>],
    threads: usize,
) -> f64 {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let _guard = runtime::enter_thread(model, Device::Cpu).unwrap();
                while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    replica.forward(replica.prepare(batch).unwrap()).unwrap();
                }
            });
        }
    });
    ROWS as f64 / start.elapsed().as_secs_f64()
}

/// Rows per second of the whole query.
async fn sql(forebay: &ForebayContext) -> f64 {
    let sql = format!(
        "SELECT gloss, ml_predict(MODEL minilm, gloss) AS e FROM (SELECT gloss FROM '{TEXTS}' LIMIT {ROWS})"
    );
    let start = Instant::now();
    let rows = forebay.sql(&sql).await.unwrap().collect().await.unwrap();
    assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), ROWS);
    ROWS as f64 / start.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
