//! Inference as operators, over emulated models: against a naive loop, and when things go wrong.

mod lost;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int32Type;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::physical_expr::expressions::col;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use forebay_udf::RuntimeError;
use forebay_udf::model::{BatchLimits, Determinism, ModelDeclaration, OnError, RuntimeKind, Share};
use forebay_udf::runtime::{Device, Prepared, Replica};
use futures::StreamExt;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::device::Ahead;
use crate::testing::{
    collect_all, context, context_of, digests, emulated_model, ids, limits, naive, numbers, table,
    values, with_package,
};
use crate::{
    Devices, ExchangeOptions, InferenceExec, Inventory, Placement, RestoreOrderExec, Sharing,
    StreamingExchangeExec, TransformExec,
};

const DEVICE: Device = Device::Emulated(0);

/// How the model is put above its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Direct,
    Exchange,
    Ordered,
}

/// The runtime of an emulated model that takes no time.
fn emulated(fail_on: Option<String>, memory_rows: Option<u32>) -> RuntimeKind {
    RuntimeKind::Emulated { service_ms: 0, fail_on, memory_rows, curve: None, loses: None }
}

pub(super) fn infer(
    input: Arc<dyn ExecutionPlan>,
    model: &Arc<ModelDeclaration>,
    output: &str,
    shape: Shape,
    replicas: usize,
    byte_budget: usize,
) -> Arc<dyn ExecutionPlan> {
    let args = vec![col("value", &input.schema()).unwrap()];
    let transform = TransformExec::try_new(input, Arc::clone(model), args).unwrap();
    let mut plan: Arc<dyn ExecutionPlan> = Arc::new(transform);
    if shape != Shape::Direct {
        let (batch, ordered) = (model.batch.clone(), shape == Shape::Ordered);
        let sharing = match model.determinism {
            Determinism::Volatile => Sharing::None,
            _ => Sharing::EqualInputs,
        };
        let no_progress_limit = None;
        let options = ExchangeOptions {
            replicas,
            byte_budget,
            byte_budget_max: byte_budget,
            batch,
            ordered,
            sharing,
            no_progress_limit,
        };
        plan = Arc::new(StreamingExchangeExec::try_new(plan, options).unwrap());
    }
    let placement = Placement { devices: vec![DEVICE; replicas] };
    let outputs = model.output_columns();
    let error = outputs.get(1).map(|field| field.name().clone());
    let names = std::iter::once(output.to_owned()).chain(error).map(Some).collect();
    plan = Arc::new(InferenceExec::try_new(plan, Arc::clone(model), names, placement).unwrap());
    match shape {
        Shape::Ordered => Arc::new(RestoreOrderExec::try_new(plan).unwrap()),
        Shape::Direct | Shape::Exchange => plan,
    }
}

pub(super) fn pool() -> Arc<dyn MemoryPool> {
    Arc::new(UnboundedMemoryPool::default())
}

fn devices(context: &TaskContext) -> Arc<Devices> {
    Devices::from_context(context).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The same rows, whatever is between them and the model.
    #[test]
    fn rows_equal_a_naive_loop(
        sizes in prop::collection::vec(0i64..50, 0..8),
        partitions in 1usize..4,
        replicas in 1usize..4,
        shape in prop::sample::select(vec![Shape::Direct, Shape::Exchange, Shape::Ordered]),
        max_rows in 1u32..20,
        max_bytes in prop::option::of(1u64..100),
        window_rows in 1u32..60,
        null_every in prop::sample::select(vec![1i64, 2, 3, 1000]),
        gpus in prop::sample::select(vec![0.3, 0.5, 1.0]),
        byte_budget in prop::sample::select(vec![1usize, 300, 100_000]),
        pool_bytes in prop::sample::select(vec![1usize, 100_000_000]),
        distinct in prop::sample::select(vec![1i64, 5, 1000]),
        determinism in prop::sample::select(vec![Determinism::Deterministic, Determinism::Volatile]),
        memory_rows in prop::option::of(1u32..10),
        poison in prop::option::of(0i64..10),
        on_error in prop::sample::select(vec![OnError::Null, OnError::Route]),
        is_ahead in any::<bool>(),
    ) {
        let dir = TempDir::new().unwrap();
        let mut model = emulated_model("m");
        model.determinism = determinism;
        model.on_error = if poison.is_some() { on_error } else { OnError::Fail };
        let fail_on = poison.map(|poison| format!("{poison}.0"));
        model.runtime = emulated(fail_on, memory_rows);
        model.batch = BatchLimits { max_rows, max_tokens: None, max_bytes, window_rows };
        model.resources.gpus = Share::try_from(gpus).unwrap();
        let model = with_package(model, dir.path());
        let partitions = if shape == Shape::Ordered { 1 } else { partitions };
        let mut parts = vec![Vec::new(); partitions];
        let mut next = 0;
        for (at, size) in sizes.iter().enumerate() {
            let value = |id: i64| (id % null_every != 0).then_some((id % distinct) as f32);
            parts[at % partitions].push(values(next..next + size, value));
            next += size;
        }
        let input = table(&parts, numbers(0..0, |_| false).schema());
        let plan = infer(input, &model, "digest", shape, replicas, byte_budget);
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(pool_bytes));
        let context = context(1, Arc::clone(&pool));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2).enable_all().build().unwrap();
        if is_ahead {
            // The device has the next batch before it is done with one.
            let ahead = |inner| -> Arc<dyn Replica> {
                Arc::new(Ahead { inner, seen: Arc::default(), is_faulty: false })
            };
            runtime.block_on(devices(&context).replace_replica(&model, DEVICE, ahead));
        }
        let batches = runtime.block_on(collect_all(&plan, &context)).unwrap();
        prop_assert!(batches.iter().all(|batch| batch.num_rows() <= max_rows as usize
            || shape == Shape::Ordered || distinct < 1000));
        if model.on_error == OnError::Route {
            for batch in &batches {
                let digests = batch.column_by_name("digest").unwrap();
                let (values, errors) =
                    (batch.column_by_name("value").unwrap(), batch.column_by_name("_error").unwrap());
                for row in 0..batch.num_rows() {
                    let failed = values.is_valid(row) && digests.is_null(row);
                    prop_assert_eq!(errors.is_valid(row), failed);
                }
            }
        }
        let mut found = digests(&batches);
        let mut expected = naive(&model, &parts.concat());
        if shape != Shape::Ordered {
            found.sort_unstable();
            expected.sort_unstable();
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(pool.reserved(), 0);
        prop_assert_eq!(devices(&context).leased_millis(DEVICE), 0);
    }
}

/// An emulated replica that also does what a test wants.
#[derive(Debug)]
struct Faulty {
    inner: Arc<dyn Replica>,
    fault: Fault,
    calls: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    OutOfMemoryAbove(usize),
    /// The first batch does not fit, the second ends in a panic.
    OutOfMemoryThenPanic,
    Panic,
    None,
}

impl Replica for Faulty {
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError> {
        self.inner.prepare(columns)
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::OutOfMemoryThenPanic if call == 0 => Err(RuntimeError::OutOfMemory {
                model: "m".to_owned(),
                rows: batch.rows,
                problem: "made up".to_owned(),
            }),
            Fault::OutOfMemoryThenPanic => panic!("a bug in a model"),
            Fault::OutOfMemoryAbove(fits) if batch.rows > fits => Err(RuntimeError::OutOfMemory {
                model: "m".to_owned(),
                rows: batch.rows,
                problem: "made up".to_owned(),
            }),
            Fault::Panic => panic!("a bug in a model"),
            Fault::OutOfMemoryAbove(_) | Fault::None => self.inner.forward(batch),
        }
    }
}

/// A model over one partition of 20 rows in batches of at most 8, with a fault.
async fn faulty(
    fault: Fault,
) -> (TempDir, Arc<ModelDeclaration>, Arc<dyn ExecutionPlan>, Arc<TaskContext>, Arc<AtomicUsize>) {
    let dir = TempDir::new().unwrap();
    let model = with_package(emulated_model("m"), dir.path());
    let batch = numbers(0..20, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", Shape::Direct, 1, 1 << 20);
    let context = context(1, pool());
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    devices(&context)
        .replace_replica(&model, DEVICE, |inner| Arc::new(Faulty { inner, fault, calls: counter }))
        .await;
    (dir, model, plan, context, calls)
}

/// Of the topmost inference.
fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    if !plan.is::<InferenceExec>() {
        return metric(plan.children()[0], name);
    }
    plan.metrics().unwrap().sum_by_name(name).map_or(0, |value| value.as_usize())
}

#[tokio::test]
async fn a_batch_that_does_not_fit_is_halved_and_the_size_that_fits_is_remembered() {
    let (_dir, model, plan, context, calls) = faulty(Fault::OutOfMemoryAbove(2)).await;
    let batches = collect_all(&plan, &context).await.unwrap();
    assert_eq!(digests(&batches), naive(&model, &[numbers(0..20, |_| false)]));
    assert!(metric(&plan, "oom_splits") >= 3);
    assert_eq!(metric(&plan, "rows_inferred"), 20);
    assert_eq!(metric(&plan, "batches"), calls.load(Ordering::SeqCst));
}

/// 20 rows of which some fail, through a plan whose model has this policy.
async fn with_failing_rows(
    failing: f32,
    on_error: OnError,
    max_error_ratio: f64,
    shape: Shape,
) -> datafusion::common::Result<(Vec<RecordBatch>, usize)> {
    let dir = TempDir::new().unwrap();
    let mut model = emulated_model("m");
    (model.on_error, model.max_error_ratio) = (on_error, max_error_ratio);
    let fail_on = Some(format!("{failing:?}"));
    model.runtime = emulated(fail_on, None);
    let model = with_package(model, dir.path());
    let batch = values(0..20, |id| (id != 7).then_some(id as f32));
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", shape, 2, 1 << 20);
    let batches = collect_all(&plan, &context(1, pool())).await?;
    Ok((batches, metric(&plan, "rows_failed")))
}

#[tokio::test]
async fn a_row_gives_the_same_wherever_it_is_in_its_batch() {
    let good = with_failing_rows(-1.0, OnError::Null, 1.0, Shape::Ordered).await.unwrap().0;
    for failing in 0..20 {
        for shape in [Shape::Direct, Shape::Exchange, Shape::Ordered] {
            let failed = with_failing_rows(failing as f32, OnError::Null, 1.0, shape).await;
            let (batches, rows_failed) = failed.unwrap();
            let mut found = digests(&batches);
            found.sort_unstable();
            let mut expected = digests(&good);
            expected[usize::try_from(failing).unwrap()].1 = None;
            assert_eq!(found, expected, "{failing} {shape:?}");
            assert_eq!(rows_failed, usize::from(failing != 7), "row 7 is NULL");
        }
    }
}

#[tokio::test]
async fn a_routed_row_says_what_failed_and_nothing_of_its_batch() {
    for shape in [Shape::Direct, Shape::Exchange, Shape::Ordered] {
        let (batches, _) = with_failing_rows(3.0, OnError::Route, 1.0, shape).await.unwrap();
        let mut errors = Vec::new();
        for batch in &batches {
            let column = batch.column_by_name("_error").unwrap().as_struct();
            for row in (0..batch.num_rows()).filter(|row| column.is_valid(*row)) {
                let text = |at: usize| column.column(at).as_string::<i32>().value(row).to_owned();
                let attempt = column.column(2).as_primitive::<Int32Type>().value(row);
                let id = ids(std::slice::from_ref(batch))[row];
                errors.push((id, text(0), text(1), attempt));
            }
        }
        let message = "this emulated model fails on '3.0'".to_owned();
        assert_eq!(errors, [(3, "program".to_owned(), message, 1)], "{shape:?}");
    }
}

#[tokio::test]
async fn more_failures_than_allowed_end_the_query() {
    for shape in [Shape::Direct, Shape::Exchange, Shape::Ordered] {
        let error = with_failing_rows(3.0, OnError::Null, 0.04, shape).await.unwrap_err();
        assert!(error.to_string().contains("1 of 20 rows failed"), "{error}");
        assert!(with_failing_rows(3.0, OnError::Null, 0.05, shape).await.is_ok());
        let error = with_failing_rows(3.0, OnError::Fail, 1.0, shape).await.unwrap_err();
        assert!(error.to_string().contains("fails on '3.0'"), "{error}");
    }
}

#[tokio::test]
async fn a_row_that_fits_into_no_memory_is_tried_twice_and_then_given_up() {
    let dir = TempDir::new().unwrap();
    let mut model = emulated_model("m");
    model.on_error = OnError::Route;
    model.runtime = emulated(None, Some(0));
    let model = with_package(model, dir.path());
    let batch = numbers(0..3, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", Shape::Direct, 1, 1 << 20);
    let batches = collect_all(&plan, &context(1, pool())).await.unwrap();
    assert_eq!(digests(&batches), [(0, None), (1, None), (2, None)]);
    for batch in &batches {
        let errors = batch.column_by_name("_error").unwrap().as_struct();
        assert_eq!(errors.column(0).as_string::<i32>().value(0), "out_of_memory");
        assert_eq!(errors.column(2).as_primitive::<Int32Type>().value(0), 2);
    }
}

#[tokio::test]
async fn equal_inputs_are_computed_once_within_a_window() {
    let dir = TempDir::new().unwrap();
    let mut model = emulated_model("m");
    model.batch = limits(8, 1000);
    let model = with_package(model, dir.path());
    let batch = values(0..1000, |id| (id % 11 != 0).then_some((id % 10) as f32));
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", Shape::Exchange, 2, 1 << 20);
    let mut found = digests(&collect_all(&plan, &context(1, pool())).await.unwrap());
    found.sort_unstable();
    assert_eq!(found, naive(&model, &[batch]));
    assert_eq!(metric(&plan, "rows_inferred"), 10);
}

#[tokio::test]
async fn a_single_row_that_does_not_fit_is_a_retryable_error() {
    let (_dir, _, plan, context, _) = faulty(Fault::OutOfMemoryAbove(0)).await;
    let error = collect_all(&plan, &context).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("'m'") && text.contains("1 rows"), "{text}");
    let datafusion::common::DataFusionError::External(error) = error.find_root() else {
        panic!("typed, not {error:?}")
    };
    assert!(error.downcast_ref::<crate::EngineError>().unwrap().is_retryable());
}

#[tokio::test]
async fn a_panic_in_a_model_is_an_error() {
    let (_dir, model, plan, context, _) = faulty(Fault::Panic).await;
    let error = collect_all(&plan, &context).await.unwrap_err().to_string();
    assert!(error.contains("a bug in a model") && error.contains("emulated:0"), "{error}");
    // The batch after it may have started; its lease comes back as well.
    devices(&context).lease(DEVICE, &model).await.unwrap();
}

#[tokio::test]
async fn a_panic_at_the_second_attempt_is_not_a_rows_error() {
    let dir = TempDir::new().unwrap();
    let mut model = emulated_model("m");
    (model.on_error, model.batch) = (OnError::Null, limits(1, 1));
    let model = with_package(model, dir.path());
    let batch = numbers(0..3, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", Shape::Direct, 1, 1 << 20);
    let context = context(1, pool());
    let (fault, calls) = (Fault::OutOfMemoryThenPanic, Arc::new(AtomicUsize::new(0)));
    devices(&context)
        .replace_replica(&model, DEVICE, |inner| Arc::new(Faulty { inner, fault, calls }))
        .await;
    let error = collect_all(&plan, &context).await.unwrap_err().to_string();
    assert!(error.contains("a bug in a model"), "{error}");
}

#[tokio::test]
async fn rows_with_null_never_reach_the_model() {
    let (_dir, model, _, context, calls) = faulty(Fault::None).await;
    let batch = numbers(0..20, |_| true);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, &model, "digest", Shape::Direct, 1, 1 << 20);
    let found = digests(&collect_all(&plan, &context).await.unwrap());
    assert_eq!(found, (0..20).map(|id| (id, None)).collect::<Vec<_>>());
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_dropped_query_gives_back_what_it_waits_for() {
    let (_dir, model, plan, context, calls) = faulty(Fault::None).await;
    let devices = devices(&context);
    let lease = devices.lease(DEVICE, &model).await.unwrap();
    let mut stream = plan.execute(0, Arc::clone(&context)).unwrap();
    // Until it waits for the lease that the test holds.
    while metric(&plan, "replicas") == 0 {
        assert!(futures::poll!(stream.next()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(stream);
    drop(lease);
    // Complete only if nobody keeps a share.
    let all = devices.lease(DEVICE, &model).await.unwrap();
    drop(all);
    assert!(calls.load(Ordering::SeqCst) <= 1);
}

#[tokio::test]
async fn the_batch_behind_the_first_computes_while_nobody_polls() {
    let (_dir, model, plan, context, calls) = faulty(Fault::None).await;
    let lease = devices(&context).lease(DEVICE, &model).await.unwrap();
    let mut stream = plan.execute(0, Arc::clone(&context)).unwrap();
    while metric(&plan, "replicas") == 0 {
        assert!(futures::poll!(stream.next()).is_pending());
        tokio::task::yield_now().await;
    }
    drop(lease);
    while calls.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ids(&datafusion::physical_plan::common::collect(stream).await.unwrap()).len(), 20);
}

#[tokio::test]
async fn a_stream_that_is_not_polled_holds_no_lease() {
    let (_dir, model, plan, context, _) = faulty(Fault::None).await;
    let mut stream = plan.execute(0, Arc::clone(&context)).unwrap();
    stream.next().await.unwrap().unwrap();
    // The next batch may compute by now; when it has, the device is free.
    devices(&context).lease(DEVICE, &model).await.unwrap();
    assert_eq!(ids(&datafusion::physical_plan::common::collect(stream).await.unwrap()).len(), 12);
}

#[tokio::test]
async fn chained_models_share_one_accelerator() {
    for (shape, replicas) in [(Shape::Direct, 1), (Shape::Exchange, 3), (Shape::Ordered, 2)] {
        let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let first = with_package(emulated_model("first"), dirs[0].path());
        let second = with_package(emulated_model("second"), dirs[1].path());
        let batches: Vec<_> = (0..10).map(|at| numbers(at * 10..at * 10 + 10, |_| false)).collect();
        let input = table(std::slice::from_ref(&batches), batches[0].schema());
        let plan = infer(input, &first, "one", shape, replicas, 1 << 20);
        let plan = infer(plan, &second, "digest", shape, replicas, 1 << 20);
        let names: Vec<_> =
            plan.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["id", "value", "one", "digest"]);
        let context = context(1, pool());
        let mut found = digests(&collect_all(&plan, &context).await.unwrap());
        found.sort_unstable();
        assert_eq!(found, naive(&second, &batches));
        assert_eq!(devices(&context).leased_millis(DEVICE), 0);
    }
}

#[tokio::test]
async fn queries_share_an_accelerator_and_a_loaded_model() {
    let dir = TempDir::new().unwrap();
    let model = with_package(emulated_model("m"), dir.path());
    let inventory = Inventory::detect().with_emulated(1, 1 << 30);
    let devices = Arc::new(Devices::new(inventory));
    let query = || {
        let batch = numbers(0..100, |_| false);
        let input = table(&[vec![batch.clone()]], batch.schema());
        let plan = infer(input, &model, "digest", Shape::Exchange, 2, 1 << 20);
        let context = context_of(Arc::clone(&devices), pool());
        async move { collect_all(&plan, &context).await.unwrap() }
    };
    let (left, right) = futures::join!(query(), query());
    assert_eq!((ids(&left).len(), ids(&right).len()), (100, 100));
    assert_eq!(devices.loaded(), 1);
    assert_eq!(devices.clear_idle(), 1);
    assert_eq!((devices.loaded(), devices.leased_millis(DEVICE)), (0, 0));
}

/// Runs a model over a few rows.
async fn run(model: &Arc<ModelDeclaration>, devices: &Arc<Devices>) {
    let batch = numbers(0..20, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let plan = infer(input, model, "digest", Shape::Exchange, 1, 1 << 20);
    let rows = collect_all(&plan, &context_of(Arc::clone(devices), pool())).await.unwrap();
    assert_eq!(ids(&rows).len(), 20);
}

#[tokio::test]
async fn replicas_on_one_device_have_the_same_weights() {
    let dir = TempDir::new().unwrap();
    let model = with_package(emulated_model("m"), dir.path());
    let devices = Devices::new(Inventory::detect().with_emulated(1, 100));
    let env = Arc::new(datafusion::execution::runtime_env::RuntimeEnv::default());
    let load = || devices.replica(&model, DEVICE, &env);
    let (one, other) = (load().await.unwrap(), load().await.unwrap());
    assert!(Arc::ptr_eq(&one.replica, &other.replica));
    // Under another name too.
    let mut renamed = ModelDeclaration::clone(&model);
    renamed.name = "n".to_owned();
    let named = devices.replica(&Arc::new(renamed), DEVICE, &env).await.unwrap();
    assert!(Arc::ptr_eq(&one.replica, &named.replica));
}

#[tokio::test]
async fn the_least_recently_used_model_makes_room() {
    let devices = Arc::new(Devices::new(Inventory::detect().with_emulated(1, 100)));
    let dirs: Vec<TempDir> = (0..3).map(|_| TempDir::new().unwrap()).collect();
    let models: Vec<_> = ["a", "b", "c"]
        .iter()
        .zip(&dirs)
        .map(|(name, dir)| {
            let mut model = emulated_model(name);
            model.resources.gpu_memory = 40;
            with_package(model, dir.path())
        })
        .collect();
    let is_loaded = |at: usize| devices.is_loaded(&models[at], DEVICE);
    run(&models[0], &devices).await;
    run(&models[1], &devices).await;
    run(&models[0], &devices).await;
    assert_eq!((devices.loaded(), is_loaded(0), is_loaded(1)), (2, true, true));
    run(&models[2], &devices).await;
    assert_eq!((is_loaded(0), is_loaded(1), is_loaded(2)), (true, false, true));
    // In use, so it stays although there is no room for all.
    let env = Arc::new(datafusion::execution::runtime_env::RuntimeEnv::default());
    let held = devices.replica(&models[0], DEVICE, &env).await.unwrap();
    let _held_too = devices.replica(&models[2], DEVICE, &env).await.unwrap();
    run(&models[1], &devices).await;
    assert_eq!((is_loaded(0), is_loaded(1), is_loaded(2)), (true, true, true));
    drop(held);
}

#[tokio::test]
async fn what_did_not_fit_is_remembered_for_the_next_query() {
    let dir = TempDir::new().unwrap();
    let mut model = emulated_model("m");
    model.runtime = emulated(None, Some(2));
    let model = with_package(model, dir.path());
    let devices = Arc::new(Devices::new(Inventory::detect().with_emulated(1, 1 << 30)));
    assert_eq!(devices.learned().get(&model, "emulated").padded_max, None);
    run(&model, &devices).await;
    assert_eq!(devices.learned().get(&model, "emulated").padded_max, Some(2));
}

#[test]
fn what_explain_shows_and_what_is_refused() {
    let mut model = emulated_model("m");
    model.batch = limits(64, 2048);
    model.batch.max_tokens = Some(1024);
    let model = Arc::new(model);
    let batch = numbers(0..1, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let placement = Placement { devices: vec![DEVICE] };
    let names = vec![Some("digest".to_owned())];
    let plan = infer(Arc::clone(&input), &model, "digest", Shape::Direct, 1, 1);
    assert_eq!(
        displayable(plan.as_ref()).one_line().to_string().trim(),
        "InferenceExec: model=m@1, device=emulated (not a real device), replicas=1, cpus=1, \
         gpus=1, max_batch_rows=64, max_batch_tokens=1024, outputs=[digest]"
    );
    let model_clone = Arc::clone(&model);
    let error =
        InferenceExec::try_new(Arc::clone(&input), model_clone, names.clone(), placement.clone());
    assert!(error.unwrap_err().to_string().contains("put a TransformExec below"));
    let mut routed = emulated_model("m");
    routed.on_error = OnError::Route;
    let transform = plan.children()[0];
    let error = InferenceExec::try_new(Arc::clone(transform), Arc::new(routed), names, placement);
    assert!(error.unwrap_err().to_string().contains("has 2 output columns, found 1 names"));
    let error = TransformExec::try_new(input, model, Vec::new()).unwrap_err();
    assert!(error.to_string().contains("wants 1 input columns, found 0"), "{error}");
}

#[test]
fn an_order_survives_the_model_with_and_without_an_exchange() {
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_plan::sorts::sort::SortExec;
    let model = Arc::new(emulated_model("m"));
    let batch = numbers(0..10, |_| false);
    let input = table(&[vec![batch.clone()]], batch.schema());
    let by_value = PhysicalSortExpr::new_default(col("value", &batch.schema()).unwrap());
    let sorted: Arc<dyn ExecutionPlan> = Arc::new(SortExec::new([by_value].into(), input));
    for (shape, is_ordered) in
        [(Shape::Direct, true), (Shape::Exchange, false), (Shape::Ordered, true)]
    {
        let plan = infer(Arc::clone(&sorted), &model, "digest", shape, 2, 1 << 20);
        let ordering = plan.output_ordering().map(ToString::to_string);
        assert_eq!(ordering, is_ordered.then(|| "value@1 ASC".to_owned()), "{shape:?}");
    }
}
