//! What the operators cost around a model that costs nothing or a known time, in one run.
//!
//! - exchange: a no-op model over a million rows, with and without the exchange; over numbers, and
//!   over texts, which are tokenized in front of it; and the exchange alone over tokens
//! - overlap: an emulated accelerator (40 ms per 64 rows) behind CPU work that takes 80% as long,
//!   against the slower of the two alone
//! - planner: a query with 20 model calls, against one with 20 plain calls
//!
//! `cargo bench --bench operators`, or some of it: `cargo bench --bench operators -- exchange_alone`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot run should say why at once, and prints its result"
)]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, ListArray, RecordBatch};
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::MemTable;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_plan::ExecutionPlan;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use forebay_engine::{ExchangeOptions, Sharing, StreamingExchangeExec, TOKENS_COLUMN};
use forebay_udf::model::BatchLimits;
use futures::StreamExt;

const ROUNDS: usize = 9;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| name.contains(asked));
    runtime.block_on(async {
        if is_asked("exchange_of_numbers") {
            exchange_of_numbers().await;
        }
        if is_asked("exchange_of_texts") {
            exchange_of_texts().await;
        }
        if is_asked("exchange_alone") {
            exchange_alone().await;
        }
        if is_asked("overlap") {
            overlap().await;
        }
        if is_asked("planner") {
            planner().await;
        }
    });
}

/// A session with emulated accelerators and an emulated model `m` (BIGINT → BIGINT).
async fn session(
    accelerators: u16,
    partitions: usize,
    runtime: &str,
    batch: &str,
) -> ForebayContext {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_emulated(accelerators, 1 << 40))
        .with_config(SessionConfig::new().with_target_partitions(partitions))
        .build()
        .unwrap();
    let transform = "kind = \"tensor\"";
    let dir = package("BIGINT", transform, runtime, batch, "");
    forebay.register_model("m", dir.path().to_str().unwrap()).await.unwrap();
    // The session reads it whenever a query runs.
    std::mem::forget(dir);
    forebay
}

/// An emulated model of one input.
fn package(
    input: &str,
    transform: &str,
    runtime: &str,
    batch: &str,
    files: &str,
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let manifest = format!(
        "format = 1\nname = \"m\"\nversion = \"1\"\n\
         [[input]]\nname = \"input\"\ntype = \"{input}\"\n\
         [[output]]\nname = \"digest\"\ntype = \"BIGINT\"\n\
         [transform]\n{transform}\n[runtime]\nkind = \"emulated\"\n{runtime}\n\
         [resources]\ncpus = 0\ngpus = 1\nmemory = \"1 MiB\"\n[batch]\n{batch}\n\
         [files]\n{files}\n"
    );
    std::fs::write(dir.path().join("model.toml"), manifest).unwrap();
    dir
}

/// `t (id BIGINT)` in batches of 8,192 rows.
fn table(forebay: &ForebayContext, rows: i64, partitions: usize) {
    let batch = |start: i64| {
        let ids = Int64Array::from_iter_values(start..(start + 8192).min(rows));
        RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap()
    };
    let mut parts = vec![vec![]; partitions];
    for (at, start) in (0..rows).step_by(8192).enumerate() {
        parts[at % partitions].push(batch(start));
    }
    let schema = parts[0][0].schema();
    let table = MemTable::try_new(schema, parts).unwrap();
    forebay.session().register_table("t", Arc::new(table)).unwrap();
}

async fn seconds(forebay: &ForebayContext, sql: &str, rows: usize) -> f64 {
    let start = Instant::now();
    let batches = forebay.sql(sql).await.unwrap().collect().await.unwrap();
    let elapsed = start.elapsed().as_secs_f64();
    let found = batches[0].column(0).as_primitive::<Int64Type>().value(0);
    assert_eq!(usize::try_from(found).unwrap(), rows);
    elapsed
}

const ROWS: i64 = 1_000_000;

async fn exchange_of_numbers() {
    const QUERY: &str = "SELECT count(digest) FROM ml_predict(TABLE t, MODEL m, DESCRIPTOR(id))";
    let forebay = session(2, 2, "service_ms = 0", "max_rows = 1024\nwindow_rows = 8192").await;
    table(&forebay, ROWS, 2);
    exchange(&forebay, "numbers", QUERY, ROUNDS).await;
}

/// Each text is another one, of eight words.
async fn exchange_of_texts() {
    const PACKAGE: &str = ".forebay/models/all-minilm-l6-v2";
    const QUERY: &str = "SELECT count(digest) FROM ml_predict((SELECT 'the quick brown fox jumps \
                         over dog ' || CAST(id AS VARCHAR) AS text FROM t), MODEL texts, \
                         DESCRIPTOR(text))";
    let forebay = session(2, 2, "service_ms = 0", "max_rows = 1024\nwindow_rows = 8192").await;
    table(&forebay, ROWS, 2);
    let manifest = std::fs::read_to_string(format!("{PACKAGE}/model.toml")).unwrap();
    let hash = manifest.lines().find(|line| line.starts_with("\"tokenizer.json\"")).unwrap();
    let transform = "kind = \"tokenize\"\ntokenizer = \"tokenizer.json\"\nmax_tokens = 256\n\
                     pad_id = 0\narguments = [\"input_ids\", \"attention_mask\"]";
    let batch = "max_rows = 1024\nmax_tokens = 16384\nwindow_rows = 8192";
    let dir = package("STRING", transform, "service_ms = 0", batch, hash);
    let tokenizer = "tokenizer.json";
    std::fs::copy(format!("{PACKAGE}/{tokenizer}"), dir.path().join(tokenizer)).unwrap();
    forebay.register_model("texts", dir.path().to_str().unwrap()).await.unwrap();
    exchange(&forebay, "texts behind a tokenizer", QUERY, ROUNDS).await;
}

/// Each round runs all three ways, beginning with another one, and compares what ran side by side:
/// what drifts from round to round is in none of the differences.
async fn exchange(forebay: &ForebayContext, of: &str, query: &str, rounds: usize) {
    const WAYS: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..=rounds {
        for at in (0..WAYS.len()).map(|at| (at + round) % WAYS.len()) {
            let (exchange, share) = WAYS[at];
            for (option, value) in [("exchange", exchange), ("share_equal_inputs", share)] {
                forebay.sql(&format!("SET forebay.{option} = {value}")).await.unwrap();
            }
            let time = seconds(forebay, query, ROWS as usize).await;
            if round > 0 {
                times[at].push(time);
            }
        }
    }
    let [without, with, sharing] = &times;
    let ns_per_row = |with: &[f64]| {
        let pairs = with.iter().zip(without);
        Spread::of(pairs.map(|(with, without)| (with - without) / ROWS as f64 * 1e9))
    };
    let ratio = |with: &[f64]| Spread::of(with.iter().zip(without).map(|(a, b)| a / b));
    let seconds = |times: &[f64]| Spread::of(times.iter().copied());
    println!(
        "{{\"name\": \"exchange around a no-op model, 1 million {of}\", \"rounds\": {rounds}, \
         \"seconds_without\": {:.3}, \"seconds_with\": {:.3}, \"seconds_sharing\": {:.3}, \
         \"ns_per_row\": {:.0}, \"ns_per_row_sharing\": {:.0}, \"ratio\": {:.3}, \
         \"ratio_sharing\": {:.3}}}",
        seconds(without),
        seconds(with),
        seconds(sharing),
        ns_per_row(with),
        ns_per_row(sharing),
        ratio(with),
        ratio(sharing),
    );
}

/// The exchange by itself over rows of about 13 tokens, from two partitions to two replicas that
/// throw away what they get: what it costs, without the noise of a tokenizer.
async fn exchange_alone() {
    let batch = |start: i64| {
        let ids = start..start + 1024;
        let tokens = |id: i64| Some((0..10 + id * 7919 % 7).map(move |at| Some((id + at) as i32)));
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(ids.clone().map(tokens));
        let ids = Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef;
        RecordBatch::try_from_iter([("id", ids), (TOKENS_COLUMN, Arc::new(lists) as ArrayRef)])
            .unwrap()
    };
    let batches: Vec<_> = (0..ROWS).step_by(1024).map(batch).collect();
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let parts: Vec<_> = batches.chunks(batches.len().div_ceil(2)).map(<[_]>::to_vec).collect();
    let input = MemorySourceConfig::try_new_exec(&parts, batches[0].schema(), None).unwrap();
    for sharing in [Sharing::None, Sharing::EqualInputs] {
        let options = ExchangeOptions {
            replicas: 2,
            byte_budget: 64 << 20,
            byte_budget_max: 64 << 20,
            batch: batch_limits(),
            ordered: false,
            sharing,
            no_progress_limit: None,
        };
        let (mut walls, mut cores) = (vec![], vec![]);
        for round in 0..=ROUNDS {
            let plan = StreamingExchangeExec::try_new(Arc::clone(&input) as _, options.clone());
            let plan: Arc<dyn ExecutionPlan> = Arc::new(plan.unwrap());
            let context = Arc::new(TaskContext::default());
            let (start, used) = (Instant::now(), cpu_seconds());
            let drain = |partition| {
                let mut stream = plan.execute(partition, Arc::clone(&context)).unwrap();
                SpawnedTask::spawn(async move {
                    let mut found = 0;
                    while let Some(batch) = stream.next().await {
                        found += batch.unwrap().num_rows();
                    }
                    found
                })
            };
            let found = futures::future::join_all([0, 1].map(drain)).await;
            let found: usize = found.into_iter().map(Result::unwrap).sum();
            assert_eq!(found, rows);
            if round > 0 {
                walls.push(start.elapsed().as_secs_f64() / rows as f64 * 1e9);
                cores.push((cpu_seconds() - used) / rows as f64 * 1e9);
            }
        }
        println!(
            "{{\"name\": \"the exchange alone, 1 million rows of 13 tokens, {}\", \"rounds\": \
             {ROUNDS}, \"ns_per_row\": {:.0}, \"cpu_ns_per_row\": {:.0}}}",
            if sharing == Sharing::None { "nothing shared" } else { "equal inputs shared" },
            Spread::of(walls.into_iter()),
            Spread::of(cores.into_iter()),
        );
    }
}

fn batch_limits() -> BatchLimits {
    BatchLimits { max_rows: 1024, max_tokens: Some(16_384), max_bytes: None, window_rows: 8192 }
}

/// What this process has computed so far, on all cores.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The fields after the name, which may have blanks; in hundredths of a second.
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// A median with the quarters around it.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |part: usize| values[(values.len() - 1) * part / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, median, high } = self;
        let digits = f.precision().unwrap_or(3);
        write!(
            f,
            "{{\"median\": {median:.digits$}, \"quartiles\": [{low:.digits$}, {high:.digits$}]}}"
        )
    }
}

async fn overlap() {
    const ROWS: i64 = 64 * 50;
    // 64 rows take 32 ms on the CPU and 40 ms on the accelerator.
    const CPU_PER_ROW: Duration = Duration::from_micros(500);
    let forebay = session(1, 1, "service_ms = 40", "max_rows = 64\nwindow_rows = 256").await;
    let burn = |args: &[ColumnarValue]| {
        let ids = ColumnarValue::values_to_arrays(args)?.remove(0);
        let until = Instant::now() + CPU_PER_ROW * ids.len() as u32;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        Ok(ColumnarValue::Array(ids))
    };
    let types = (vec![DataType::Int64], DataType::Int64);
    let burn = create_udf("burn", types.0, types.1, Volatility::Volatile, Arc::new(burn));
    forebay.session().register_udf(burn);
    // Small batches, as a decoder of images would make them.
    let batches = (0..ROWS).step_by(32).map(|start| {
        let ids = Int64Array::from_iter_values(start..start + 32);
        RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap()
    });
    let batches: Vec<_> = batches.collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    forebay.session().register_table("t", Arc::new(table)).unwrap();

    let cpu = "SELECT count(burn(id)) FROM t";
    let accelerator = "SELECT count(digest) FROM ml_predict(TABLE t, MODEL m, DESCRIPTOR(id))";
    let both = "SELECT count(digest) FROM ml_predict((SELECT burn(id) AS id FROM t), MODEL m, \
                DESCRIPTOR(id))";
    let (mut limits, mut walls) = (vec![], vec![]);
    for _ in 0..3 {
        let alone = [
            seconds(&forebay, cpu, ROWS as usize).await,
            seconds(&forebay, accelerator, ROWS as usize).await,
        ];
        limits.push(alone[0].max(alone[1]));
        walls.push(seconds(&forebay, both, ROWS as usize).await);
    }
    let (limit, wall) = (median(&mut limits), median(&mut walls));
    println!(
        "{{\"name\": \"CPU work at 80% in front of an emulated accelerator, wall / slower alone\", \
         \"seconds_limit\": {limit:.3}, \"seconds\": {wall:.3}, \"ratio\": {:.3}}}",
        wall / limit
    );
}

async fn planner() {
    let forebay = session(1, 2, "service_ms = 0", "max_rows = 64\nwindow_rows = 256").await;
    table(&forebay, 100, 1);
    let query = |call: &dyn Fn(usize) -> String| {
        let calls: Vec<String> = (0..20).map(call).collect();
        format!("SELECT {} FROM t WHERE id > 3", calls.join(", "))
    };
    let models = query(&|i| format!("ml_predict(MODEL m, id + {i})"));
    let plain = query(&|i| format!("abs(id + {i})"));
    let (mut with_models, mut without) = (vec![], vec![]);
    for _ in 0..=ROUNDS {
        for (sql, times) in [(&models, &mut with_models), (&plain, &mut without)] {
            let start = Instant::now();
            forebay.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let (with_models, without) = (median(&mut with_models), median(&mut without));
    println!(
        "{{\"name\": \"planning 20 model calls\", \"ms\": {with_models:.1}, \"ms_plain_calls\": \
         {without:.1}, \"ratio\": {:.1}}}",
        with_models / without
    );
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
