//! What each part costs by itself, so that a change that makes one slower shows: the exchange, its
//! batches, tokenizing, images, Arrow columns to tensors, the planner, plans as bytes, the scheduler.
//! Times of one machine, for comparing before and after; what Forebay claims is in the other benches.
//!
//! `cargo bench --bench parts`, or some of it: `cargo bench --bench parts -- image`

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark that cannot run should say why at once; criterion's macros have no docs"
)]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Int64Array, ListArray, RecordBatch,
    StringArray,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use datafusion::datasource::MemTable;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_plan::{ExecutionPlan, collect, collect_partitioned};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use forebay::prelude::*;
use forebay::{Catalog, Inventory};
use forebay_engine::{ExchangeOptions, Sharing, StreamingExchangeExec, TOKENS_COLUMN};
use forebay_planner::ForebayPhysicalCodec;
use forebay_scheduler::graph::{
    BlockReport, EdgeKind, EdgeSpec, Event, Granularity, JobGraph, JobSpec, Millis, StageId,
    StageSpec, WorkerId,
};
use forebay_scheduler::placement::{
    Admission, Device, Fleet, Job, PaperBudget, WorkerState, place,
};
use forebay_scheduler::resources::{AcceleratorNeed, Need};
use forebay_udf::model::{BatchLimits, ModelDeclaration, Package};
use forebay_udf::{runtime, transform};
use tokio::runtime::Runtime;
use url::Url;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

criterion_group!(parts, exchange, tokenize, image, tensor, planner, codec, scheduler);
criterion_main!(parts);

/// Rows of a column of numbers, and of tokens that are batched by their lengths.
fn exchange(criterion: &mut Criterion) {
    const ROWS: i64 = 131_072;
    let ids = |start: i64| Arc::new(Int64Array::from_iter_values(start..start + 1024)) as ArrayRef;
    let tokens = |start: i64| {
        let list = |id: i64| Some((0..10 + id * 7919 % 7).map(move |at| Some((id + at) as i32)));
        let lists = (start..start + 1024).map(list);
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)) as ArrayRef
    };
    let numbers = |start| RecordBatch::try_from_iter([("id", ids(start))]).unwrap();
    let texts = |start| {
        RecordBatch::try_from_iter([("id", ids(start)), (TOKENS_COLUMN, tokens(start))]).unwrap()
    };
    let starts = || (0..ROWS).step_by(1024);
    let mut group = criterion.benchmark_group("exchange");
    pass(&mut group, "numbers", &starts().map(numbers).collect::<Vec<_>>(), Sharing::None);
    let texts: Vec<_> = starts().map(texts).collect();
    pass(&mut group, "tokens, batched by length", &texts, Sharing::None);
    pass(&mut group, "tokens, equal inputs shared", &texts, Sharing::EqualInputs);
}

/// Rows per second, and bytes per second, through an exchange.
fn pass(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    batches: &[RecordBatch],
    sharing: Sharing,
) {
    let input =
        MemorySourceConfig::try_new_exec(&[batches.to_vec()], batches[0].schema(), None).unwrap();
    let options = ExchangeOptions {
        replicas: 1,
        byte_budget: 64 << 20,
        byte_budget_max: 64 << 20,
        batch: BatchLimits {
            max_rows: 1024,
            max_tokens: Some(16_384),
            max_bytes: None,
            window_rows: 8192,
        },
        ordered: false,
        sharing,
        no_progress_limit: None,
    };
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
    group.throughput(Throughput::ElementsAndBytes { elements: rows as u64, bytes: bytes as u64 });
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            let input: Arc<dyn ExecutionPlan> = Arc::clone(&input) as _;
            let plan = Arc::new(StreamingExchangeExec::try_new(input, options.clone()).unwrap());
            let found = RUNTIME.block_on(collect_partitioned(plan, Arc::default())).unwrap();
            let found: usize = found.iter().flatten().map(RecordBatch::num_rows).sum();
            assert_eq!(found, rows);
        });
    });
}

fn open(folder: &str) -> (ModelDeclaration, Package) {
    let folder = Path::new(folder).canonicalize().unwrap();
    let package = Package::open(&folder, None).unwrap();
    let url = Url::from_file_path(&folder).unwrap();
    let hash = package.content_hash.clone();
    (package.manifest.declaration("m", url, hash), package)
}

fn tokenize(criterion: &mut Criterion) {
    const ROWS: usize = 1024;
    let (model, package) = open(".forebay/models/all-minilm-l6-v2");
    let transform = transform::load(&model, &package).unwrap();
    let text =
        |at| format!("the quick brown fox jumps over {at} dogs that lie in front of a turbine");
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(text)));
    let mut group = criterion.benchmark_group("tokenize");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("all-minilm-l6-v2, 17 words", |bencher| {
        bencher.iter(|| transform.apply(&[Arc::clone(&texts)]).unwrap());
    });
}

/// On one core.
fn image(criterion: &mut Criterion) {
    let file = std::fs::read(".forebay/images/good/large.jpg").unwrap();
    let column: ArrayRef = Arc::new(BinaryArray::from_iter_values([&file; 4]));
    let forebay = session(1);
    register(&forebay, vec![RecordBatch::try_from_iter([("bytes", column)]).unwrap()]);
    let mut group = criterion.benchmark_group("image");
    group.throughput(Throughput::Elements(4)).sample_size(20);
    for (name, sql) in [
        ("decode", "SELECT image_decode(bytes) FROM t"),
        ("decode and resize", "SELECT image_resize(image_decode(bytes), 320, 240) FROM t"),
        ("preprocess", "SELECT image_preprocess(bytes, 256, 224) FROM t"),
    ] {
        let plan = plan(&forebay, sql);
        let context = forebay.session().task_ctx();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let rows = collect(Arc::clone(&plan), Arc::clone(&context));
                RUNTIME.block_on(rows).unwrap()
            });
        });
    }
}

/// A batch of a model's input columns to what libtorch takes, and back through a tiny model.
fn tensor(criterion: &mut Criterion) {
    const ROWS: usize = 256;
    let (model, package) = open(".forebay/fixtures/images-resnet/package");
    let _thread = runtime::enter_thread(&model, runtime::Device::Cpu).unwrap();
    let replica = runtime::load(&model, &package, runtime::Device::Cpu).unwrap();
    let numbers = Float32Array::from_iter_values((0..ROWS * 3072).map(|at| at as f32 / 1e6));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let vectors = FixedSizeListArray::new(item, 3072, Arc::new(numbers), None);
    let vectors: ArrayRef = Arc::new(vectors);
    let transform = transform::load(&model, &package).unwrap();
    let columns = transform.apply(&[vectors]).unwrap().columns;
    let mut group = criterion.benchmark_group("tensor");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("columns to tensors", |bencher| {
        bencher.iter(|| replica.prepare(&columns).unwrap());
    });
    group.bench_function("columns to tensors, a tiny model, and back", |bencher| {
        bencher.iter(|| replica.forward(replica.prepare(&columns).unwrap()).unwrap());
    });
}

/// A session with an emulated accelerator, and the emulated model `echo`.
fn session(partitions: usize) -> ForebayContext {
    let builder = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_emulated(1, 1 << 40))
        .with_config(SessionConfig::new().with_target_partitions(partitions));
    RUNTIME.block_on(async {
        let forebay = builder.build().unwrap();
        forebay.register_model("echo", "tests/models/echo").await.unwrap();
        forebay
    })
}

fn register(forebay: &ForebayContext, batches: Vec<RecordBatch>) {
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    forebay.session().register_table("t", Arc::new(table)).unwrap();
}

fn plan(forebay: &ForebayContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let plan = async { forebay.sql(sql).await.unwrap().create_physical_plan().await.unwrap() };
    RUNTIME.block_on(plan)
}

fn with_model_calls(calls: usize) -> (ForebayContext, String) {
    let forebay = session(2);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    register(&forebay, vec![RecordBatch::try_from_iter([("id", ids)]).unwrap()]);
    let calls: Vec<_> = (0..calls).map(|at| format!("ml_predict(MODEL echo, id + {at})")).collect();
    let sql = format!("SELECT {} FROM t WHERE id > 3", calls.join(", "));
    (forebay, sql)
}

fn planner(criterion: &mut Criterion) {
    let (forebay, sql) = with_model_calls(20);
    criterion.bench_function("planner/20 model calls", |bencher| {
        bencher.iter(|| plan(&forebay, &sql));
    });
}

fn codec(criterion: &mut Criterion) {
    let (forebay, sql) = with_model_calls(5);
    let (plan, codec) = (plan(&forebay, &sql), ForebayPhysicalCodec::default());
    let context = forebay.session().task_ctx();
    let write = || physical_plan_to_bytes_with_extension_codec(Arc::clone(&plan), &codec).unwrap();
    let bytes = write();
    let mut group = criterion.benchmark_group("codec");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("plan to bytes", |bencher| bencher.iter(write));
    group.bench_function("bytes to plan", |bencher| {
        let read = || physical_plan_from_bytes_with_extension_codec(&bytes, &context, &codec);
        bencher.iter(|| read().unwrap());
    });
}

/// A job of two stages, 1,000 tasks that each give one block for an accelerator: placed, and all that
/// happens to them reported. Each task is two events.
fn scheduler(criterion: &mut Criterion) {
    const TASKS: u32 = 1000;
    let mut group = criterion.benchmark_group("scheduler");
    group.throughput(Throughput::Elements(4 * u64::from(TASKS))).sample_size(20);
    group.bench_function("events of a job of 1,000 tasks on 10 workers", |bencher| {
        bencher.iter(|| run_job(TASKS));
    });
}

fn run_job(tasks: u32) {
    let accelerator = Need::cpus(0).with_accelerator(AcceleratorNeed::try_new(1000).unwrap());
    let scan = StageSpec::new("scan", Need::cpus(1000), tasks).with_replayable();
    let infer = StageSpec::new("infer", accelerator, 0).with_replayable();
    let edge = EdgeKind::Streaming(Granularity::Block);
    let edge = EdgeSpec::new(StageId(0), StageId(1), edge).with_budget_bytes(1 << 30);
    let spec = JobSpec { stages: vec![scan, infer], edges: vec![edge], ..JobSpec::default() };
    let mut graph = JobGraph::try_new(spec).unwrap();
    let mut paper = PaperBudget::default();
    let worker = |at| {
        let worker = WorkerState::new(WorkerId::new(format!("w{at}")), 4000, 1 << 40);
        worker.with_devices(vec![Device::new("cuda", 1 << 40)])
    };
    let mut fleet = Fleet::default();
    fleet.attend((0..10).map(worker).collect());
    graph.apply(Event::Started, Millis(0));
    let mut now = 0;
    while graph.is_running_job() {
        now += 1;
        let (graph, paper) = (&mut graph, &mut paper);
        let job = Job { id: "job", graph, weight: 1, admission: Admission::Reserve, paper };
        let bindings = place(&mut [job], &mut fleet, Millis(now));
        assert!(!bindings.is_empty(), "the job stands still");
        for binding in bindings {
            let task = binding.bound.task;
            let block = BlockReport {
                seq: 0,
                bytes: 1000,
                rows: 10,
                checksum: 1,
                run: None,
                segments: None,
            };
            graph.apply(Event::BlockSealed { task, block: block.clone() }, Millis(now));
            graph.apply(Event::TaskFinished { task, blocks: vec![block] }, Millis(now));
        }
    }
}
