//! What a cluster costs and keeps to, in one run: a scheduler and workers that talk over loopback,
//! CPU work and accelerators that take a known time and compute nothing.
//!
//! - overlap: CPU work and an accelerator that take the same time, streamed and stage by stage,
//!   against the time of either; and the most bytes that waited in blocks
//! - tasks: what 2,000 empty tasks cost, each
//! - journal: what it costs that a scheduler writes its jobs down, and how soon another goes on with them; what there
//!   is of a long job (`long_job` alone)
//! - memory: loads that expand, under memory limits, with each mechanism switched off in turn (the
//!   memory experiment of the streaming batch model, arXiv 2501.12407, figure 9, at a tenth)
//! - relational: queries without a model, against stock Ballista
//! - shuffle: rows that are dealt out by hash, and by stock Ballista; into many partitions, merged and not
//! - tpch: TPC-H's 22 queries against stock Ballista, at the scale `FOREBAY_TPCH_SCALE` (1)
//! - writes: 4 GB of vectors into Parquet files, by the workers and by the session
//! - watching: what it costs a scheduler that clients watch many jobs, in CPU time
//!
//! - stock: no bench, but a stock Ballista cluster that runs what it reads, for `benches/peers`; only if it is named
//!
//! `cargo bench --bench cluster`, or some of it: `cargo bench --bench cluster -- overlap`

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot run should say why at once, and prints its result"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Int64Array, LargeListArray, RecordBatch,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::datasource::MemTable;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use forebay::prelude::*;
use forebay::{
    Catalog, Devices, Functions, Inventory, RunningScheduler, RunningWorker, Scheduler, Worker,
};
use forebay_scheduler::journal::State;
use forebay_testkit::random::Random;
use tempfile::TempDir;

mod journal;
mod relational;
mod shuffle;
mod stock;
mod tpch;
mod watching;
mod writes;

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // Work that sleeps holds a thread.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(8).enable_all().build().unwrap();
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|asked| name.contains(asked));
    runtime.block_on(async {
        if asked == ["stock"] {
            return stock::shell().await;
        }
        if is_asked("overlap") {
            overlap().await;
        }
        if is_asked("tasks") {
            tasks().await;
        }
        for limit_mb in [600, 800, 1000, 1200, 1400, 1600] {
            if is_asked(&format!("memory_{limit_mb}")) {
                memory(limit_mb).await;
            }
        }
        if is_asked("journal") {
            journal::journal().await;
        }
        if is_asked("journal_of_a_long_job") {
            journal::long_job().await;
        }
        if is_asked("relational") {
            relational::relational().await;
        }
        if is_asked("shuffle") {
            shuffle::shuffle().await;
        }
        if is_asked("tpch") {
            tpch::tpch().await;
        }
        if is_asked("writes") {
            writes::writes().await;
        }
        if is_asked("watching") {
            watching::watching().await;
        }
    });
}

/// What a worker has.
struct Has {
    cpus: u32,
    accelerators: u16,
    work_limit: Option<u64>,
}

/// A scheduler and workers, gone when it is dropped.
struct Cluster {
    scheduler: RunningScheduler,
    _workers: Vec<RunningWorker>,
    folder: TempDir,
}

impl Cluster {
    async fn start(workers: &[Has]) -> Self {
        Self::start_in(folder(), workers).await
    }

    async fn start_in(folder: TempDir, workers: &[Has]) -> Self {
        Self::start_with(folder, None, workers).await
    }

    /// Its scheduler writes to `state`, if that is given.
    async fn start_with(folder: TempDir, state: Option<PathBuf>, workers: &[Has]) -> Self {
        let state = match state {
            Some(folder) => Some(State::in_folder(&folder).take().await.unwrap()),
            None => None,
        };
        let scheduler = Scheduler {
            functions: functions(),
            state,
            ..Scheduler::new(RuntimeEnvBuilder::new().build_arc().unwrap())
        };
        let scheduler = scheduler.start().await.unwrap();
        let mut running = vec![];
        for has in workers {
            running.push(has.start(&scheduler, folder.path()).await);
        }
        Self { scheduler, _workers: running, folder }
    }

    async fn session(&self, partitions: usize) -> ForebayContext {
        ForebayContext::builder()
            .with_catalog(Catalog::in_memory())
            .with_functions(functions())
            .with_config(SessionConfig::new().with_target_partitions(partitions))
            .connect(&self.scheduler.address().to_string())
            .await
            .unwrap()
    }

    /// Bytes of all files of the workers.
    fn bytes(&self) -> u64 {
        size(self.folder.path())
    }
}

/// For what workers write. In memory where there is such a folder: disks differ, and are not what is measured.
fn folder() -> TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => TempDir::new_in("/dev/shm").unwrap(),
        false => TempDir::new().unwrap(),
    }
}

impl Has {
    async fn start(&self, scheduler: &RunningScheduler, folder: &Path) -> RunningWorker {
        let inventory = Inventory::detect().with_cpus(self.cpus).with_cuda(vec![]);
        let devices = Devices::new(inventory.with_emulated(self.accelerators, 1 << 40));
        let worker = Worker {
            work_dir: folder.to_owned(),
            work_limit: self.work_limit,
            functions: functions(),
            ..Worker::new(
                scheduler.address().to_string(),
                Arc::new(devices),
                RuntimeEnvBuilder::new().build_arc().unwrap(),
            )
        };
        worker.start().await.unwrap()
    }
}

fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// `pause(x, us)`: `x`, after as many microseconds per row. `load(x, ms, rows, bytes)`: a list of so
/// many binary values that cannot be compressed, after some time. `length_of(x)`: of a binary value.
fn functions() -> Functions {
    Functions {
        scalar: vec![
            Arc::new(pause_of_ids()),
            Arc::new(pause_of_rows()),
            Arc::new(load()),
            Arc::new(length_of()),
            Arc::new(writes::vector_of()),
        ],
        ..Functions::default()
    }
}

fn pause_of_ids() -> ScalarUDF {
    let kinds = vec![DataType::Int64, DataType::Int64];
    create_udf("pause", kinds, DataType::Int64, Volatility::Immutable, Arc::new(paused))
}

fn pause_of_rows() -> ScalarUDF {
    let kinds = vec![DataType::Binary, DataType::Int64];
    create_udf("pause_of", kinds, DataType::Binary, Volatility::Immutable, Arc::new(paused))
}

fn paused(args: &[ColumnarValue]) -> datafusion::error::Result<ColumnarValue> {
    let [x, us] = args else { unreachable!("two arguments") };
    let rows = match x {
        ColumnarValue::Array(x) => x.len(),
        ColumnarValue::Scalar(_) => 1,
    };
    std::thread::sleep(Duration::from_micros(number(us) * rows as u64));
    Ok(x.clone())
}

fn length_of() -> ScalarUDF {
    let run = |args: &[ColumnarValue]| {
        let values = ColumnarValue::values_to_arrays(args)?;
        let lengths = values[0].as_binary::<i32>().offsets().lengths().map(|length| length as i64);
        Ok(ColumnarValue::Array(Arc::new(Int64Array::from_iter_values(lengths))))
    };
    let kinds = vec![DataType::Binary];
    create_udf("length_of", kinds, DataType::Int64, Volatility::Immutable, Arc::new(run))
}

fn load() -> ScalarUDF {
    let item = Arc::new(Field::new("item", DataType::Binary, true));
    let run = |args: &[ColumnarValue]| {
        let [ids, ms, rows, bytes] = args else { unreachable!("four arguments") };
        let (rows, bytes) = (number(rows) as usize, number(bytes) as usize);
        let arrays = ColumnarValue::values_to_arrays(std::slice::from_ref(ids))?;
        let ids = arrays[0].as_primitive::<Int64Type>();
        let start = Instant::now();
        let values = noise(rows * ids.len() * bytes, ids.values());
        // It takes this time in all.
        let whole = Duration::from_millis(number(ms) * ids.len() as u64);
        std::thread::sleep(whole.saturating_sub(start.elapsed()));
        let offsets = OffsetBuffer::from_repeated_length(bytes, rows * ids.len());
        let values = BinaryArray::try_new(offsets, values, None)?;
        let lists = OffsetBuffer::from_repeated_length(rows, ids.len());
        let item = Arc::new(Field::new("item", DataType::Binary, true));
        let lists = LargeListArray::try_new(item, lists, Arc::new(values), None)?;
        Ok(ColumnarValue::Array(Arc::new(lists)))
    };
    let kinds = vec![DataType::Int64; 4];
    create_udf("load", kinds, DataType::LargeList(item), Volatility::Immutable, Arc::new(run))
}

fn number(value: &ColumnarValue) -> u64 {
    match value {
        ColumnarValue::Scalar(scalar) => scalar.to_string().parse().unwrap(),
        ColumnarValue::Array(array) => array.as_primitive::<Int64Type>().value(0) as u64,
    }
}

/// Bytes that no compression makes fewer, other ones for each seed: parts of the same noise, which is
/// not copied, so that loads cost their time and nothing else.
fn noise(bytes: usize, seeds: &[i64]) -> Buffer {
    const SEEDS: usize = 16_777_259;
    const LENGTH_MAX: usize = 64_000_000;
    static NOISE: LazyLock<Buffer> =
        LazyLock::new(|| Random::new(1).bytes(SEEDS + LENGTH_MAX).into());
    let start = seeds.iter().fold(1, |a: usize, b| a.wrapping_mul(31).wrapping_add(*b as usize));
    NOISE.slice_with_length(start.wrapping_mul(1_000_003) % SEEDS, bytes)
}

/// A model of whole accelerators: BIGINT → BIGINT.
async fn add_model(session: &ForebayContext, service_ms: u32, rows: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!(
        "format = 1\nname = \"m\"\nversion = \"1\"\n[[input]]\nname = \"input\"\ntype = \
         \"BIGINT\"\n[[output]]\nname = \"digest\"\ntype = \"BIGINT\"\n[transform]\nkind = \
         \"tensor\"\n[runtime]\nkind = \"emulated\"\nservice_ms = {service_ms}\n[resources]\ncpus \
         = 0\ngpus = 1\nmemory = \"1 MiB\"\n[batch]\nmax_rows = {rows}\nwindow_rows = \
         {rows}\n[files]\n"
    );
    std::fs::write(folder.path().join("model.toml"), manifest).unwrap();
    session.register_model("m", folder.path().to_str().unwrap()).await.unwrap();
    folder
}

/// `t (id BIGINT)`: so many rows in each of so many partitions.
fn add_table(session: &ForebayContext, partitions: i64, rows: i64) {
    let part = |at: i64| {
        let ids = Int64Array::from_iter_values(at * rows..(at + 1) * rows);
        vec![RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef)]).unwrap()]
    };
    let parts: Vec<_> = (0..partitions).map(part).collect();
    let schema = parts[0][0].schema();
    let table = MemTable::try_new(schema, parts).unwrap();
    session.session().register_table("t", Arc::new(table)).unwrap();
}

async fn set(session: &ForebayContext, option: &str, value: impl std::fmt::Display) {
    let statement = format!("SET {option} = '{value}'");
    session.sql(&statement).await.unwrap().collect().await.unwrap();
}

/// One number.
async fn ask(session: &ForebayContext, query: &str) -> datafusion::error::Result<i64> {
    let batches = session.sql(query).await?.collect().await?;
    let found = batches.iter().find(|batch| batch.num_rows() > 0).unwrap();
    Ok(found.column(0).as_primitive::<Int64Type>().value(0))
}

/// Seconds that a query takes.
async fn timed(
    session: &ForebayContext,
    query: &str,
    expected: i64,
) -> datafusion::error::Result<f64> {
    let start = Instant::now();
    let found = ask(session, query).await?;
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(found, expected);
    Ok(seconds)
}

/// Seconds that a query takes, and the most bytes that the workers' files had meanwhile. To look at many files costs
/// time that the query would have.
async fn timed_and_sized(
    cluster: &Cluster,
    session: &ForebayContext,
    query: &str,
    expected: i64,
) -> Result<(f64, u64), String> {
    let start = Instant::now();
    let mut answer = Box::pin(ask(session, query));
    let mut peak = 0;
    let found = loop {
        tokio::select! {
            found = &mut answer => break found,
            () = tokio::time::sleep(Duration::from_millis(10)) => peak = peak.max(cluster.bytes()),
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(found.map_err(|error| error.strip_backtrace())?, expected);
    Ok((seconds, peak))
}

/// 25,600 rows: 1.25 ms each on 4 cores, 40 ms per 64 on 2 accelerators. Both take 8 s.
async fn overlap() {
    const PARTITIONS: i64 = 16;
    const ROWS: i64 = 1600;
    const IDEAL_S: f64 = 8.0;
    const QUERY: &str = "SELECT count(*) FROM ml_predict((SELECT pause(id, 1250) AS id FROM t), \
                         MODEL m, DESCRIPTOR(id)) WHERE digest IS NOT NULL";
    const BUDGET: u64 = 1 << 20;
    let cpus = Has { cpus: 4, accelerators: 0, work_limit: None };
    let accelerators = Has { cpus: 1, accelerators: 2, work_limit: None };
    let cluster = Cluster::start(&[cpus, accelerators]).await;
    let session = cluster.session(PARTITIONS as usize).await;
    let _model = add_model(&session, 40, 64).await;
    add_table(&session, PARTITIONS, ROWS);
    // Rows come as they are made, not 8,192 at a time.
    set(&session, "datafusion.execution.batch_size", 64).await;
    set(&session, "forebay.edge_budget", BUDGET).await;
    let mut seconds = BTreeMap::new();
    let mut peaks = vec![];
    for _ in 0..3 {
        for streams in [true, false] {
            set(&session, "forebay.stream_stages", streams).await;
            let run = timed_and_sized(&cluster, &session, QUERY, PARTITIONS * ROWS).await.unwrap();
            seconds.entry(streams).or_insert_with(Vec::new).push(run.0);
            peaks.extend(streams.then_some(run.1));
        }
    }
    let (streamed, staged) = (median(&seconds[&true]), median(&seconds[&false]));
    println!(
        "{{\"name\": \"cluster, CPU and accelerator alike\", \"seconds_limit\": {IDEAL_S}, \
         \"seconds\": {streamed:.3}, \"seconds_blocking_stages\": {staged:.3}, \"ratio\": {:.3}, \
         \"ratio_blocking_stages\": {:.3}, \"block_bytes_peak\": {}, \"block_bytes_budget\": \
         {BUDGET}}}",
        streamed / IDEAL_S,
        staged / IDEAL_S,
        peaks.iter().max().unwrap(),
    );
}

/// Tasks that do nothing: what is left is what it takes to bind, send, start and report them.
async fn tasks() {
    const TASKS: i64 = 2000;
    const QUERY: &str = "SELECT count(*) FROM t WHERE id >= 0";
    let has = Has { cpus: 8, accelerators: 0, work_limit: None };
    let cluster = Cluster::start(&[has]).await;
    let mut found = BTreeMap::new();
    for partitions in [1, TASKS] {
        let session = cluster.session(partitions as usize).await;
        add_table(&session, partitions, TASKS / partitions);
        for _ in 0..3 {
            let took = timed(&session, QUERY, TASKS).await.unwrap();
            found.entry(partitions).or_insert_with(Vec::new).push(took);
        }
    }
    let (one, many) = (median(&found[&1]), median(&found[&TASKS]));
    println!(
        "{{\"name\": \"cluster, empty tasks\", \"tasks\": {TASKS}, \"seconds\": {many:.3}, \
         \"seconds_one_task\": {one:.3}, \"ms_per_task\": {:.3}}}",
        1000.0 * (many - one) / TASKS as f64
    );
}

/// One configuration of the memory experiment.
struct Variant {
    name: &'static str,
    options: &'static [(&'static str, &'static str)],
}

const VARIANTS: [Variant; 5] = [
    Variant { name: "all", options: &[] },
    Variant { name: "the paper's admission", options: &[("forebay.admission", "paper")] },
    Variant { name: "no admission", options: &[("forebay.admission", "off")] },
    Variant { name: "no dynamic blocks", options: &[("forebay.dynamic_blocks", "false")] },
    Variant { name: "no streaming", options: &[("forebay.stream_stages", "false")] },
];

/// 160 loads of 0.5 s that give 500 rows of 100 kB each, 50 ms of CPU work per 100 rows, and 50 ms
/// per 100 rows on an accelerator; 8 cores and 4 accelerators. (160 · 0.5 s + 800 · 50 ms) / 8 is
/// 15 s; the accelerators need 10 s.
///
/// What a memory limit leaves for blocks is what the loads that run do not hold themselves.
async fn memory(limit_mb: u64) {
    const LOADS: i64 = 160;
    const ROWS: i64 = 500;
    const ROW_BYTES: u64 = 100_000;
    const CPUS: u32 = 8;
    const IDEAL_S: f64 = 15.0;
    let query = format!(
        "SELECT sum(bytes) FROM (SELECT length_of(payload) AS bytes FROM ml_predict(\
         (SELECT id, pause_of(payload, 500) AS payload FROM \
         (SELECT id, unnest(load(id, 500, {ROWS}, {ROW_BYTES})) AS payload FROM t)), \
         MODEL m, DESCRIPTOR(id)) WHERE digest IS NOT NULL)"
    );
    let loads_hold = u64::from(CPUS) * ROWS as u64 * ROW_BYTES;
    for variant in &VARIANTS {
        let left = limit_mb * 1_000_000 - loads_hold;
        let has = Has { cpus: CPUS, accelerators: 4, work_limit: Some(left) };
        let cluster = Cluster::start(&[has]).await;
        let session = cluster.session(LOADS as usize).await;
        let _model = add_model(&session, 50, 100).await;
        add_table(&session, LOADS, 1);
        set(&session, "datafusion.execution.batch_size", 100).await;
        set(&session, "forebay.block_bytes", 12_800_000).await;
        set(&session, "forebay.edge_budget", left).await;
        // Half of it is for what runs behind the loads, whose output is small here.
        set(&session, "forebay.job_budget", 2 * left).await;
        for (option, value) in variant.options {
            set(&session, option, value).await;
        }
        let expected = LOADS * ROWS * ROW_BYTES as i64;
        let outcome = match timed_and_sized(&cluster, &session, &query, expected).await {
            Ok((seconds, peak)) => format!(
                "\"seconds\": {seconds:.1}, \"ratio\": {:.2}, \"block_mb_peak\": {}",
                seconds / IDEAL_S,
                peak / 1_000_000
            ),
            Err(error) => format!("\"error\": {error:?}"),
        };
        println!(
            "{{\"name\": \"cluster, memory experiment, {}\", \"limit_mb\": {limit_mb}, \
                 \"block_limit_mb\": {}, \"seconds_limit\": {IDEAL_S}, {outcome}}}",
            variant.name,
            left / 1_000_000
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
