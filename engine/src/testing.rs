//! What the tests of this crate share: models, inputs, and polling by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use arrow::array::{ArrayRef, AsArray, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type, SchemaRef};
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use forebay_udf::model::{
    BatchCaps, BatchLimits, Determinism, DeviceChoice, ModelDeclaration, OnError, Package,
    Precision, Resources, RuntimeKind, Share, Signature, TransformKind,
};
use futures::task::{ArcWake, waker};

use crate::device::{Devices, Inventory};

/// One number in, one digest out; runs on emulated accelerators without taking any time.
pub(crate) fn emulated_model(name: &str) -> ModelDeclaration {
    let field = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
    ModelDeclaration {
        name: name.to_owned(),
        version: "1".to_owned(),
        location: url::Url::parse("file:///nowhere").unwrap(),
        content_hash: String::new(),
        signature: Signature {
            inputs: vec![field("value", DataType::Float32)].into(),
            outputs: vec![field("digest", DataType::Int64)].into(),
        },
        transform: TransformKind::Tensor,
        prompts: BTreeMap::new(),
        prompt: None,
        runtime: RuntimeKind::Emulated {
            service_ms: 0,
            fail_on: None,
            memory_rows: None,
            curve: None,
            loses: None,
        },
        resources: Resources {
            cpus: Share::ONE,
            gpus: Share::ONE,
            memory: 1 << 20,
            gpu_memory: 0,
            worker_labels: BTreeSet::new(),
        },
        batch: limits(8, 32),
        batch_caps: BatchCaps::default(),
        device: DeviceChoice::Emulated,
        needs_accelerator: true,
        max_replicas: None,
        precision: Precision::Fp32,
        precisions: None,
        allow_native: None,
        quality: BTreeMap::new(),
        determinism: Determinism::Deterministic,
        on_error: OnError::Fail,
        max_error_ratio: 1.0,
        output_prefix: String::new(),
        description: None,
    }
}

pub(crate) fn limits(max_rows: u32, window_rows: u32) -> BatchLimits {
    BatchLimits { max_rows, max_tokens: None, max_bytes: None, window_rows }
}

/// Writes a package for the model and points the model at it.
pub(crate) fn with_package(mut model: ModelDeclaration, dir: &Path) -> Arc<ModelDeclaration> {
    let mut text = format!("format = 1\nname = \"{}\"\nversion = \"1\"\n", model.name);
    let columns = [("input", &model.signature.inputs), ("output", &model.signature.outputs)];
    for (kind, fields) in columns {
        for field in fields {
            let sql_type = forebay_udf::model::type_name(field.data_type());
            let name = field.name();
            writeln!(text, "[[{kind}]]\nname = \"{name}\"\ntype = \"{sql_type}\"").unwrap();
        }
    }
    text += "[transform]\nkind = \"tensor\"\n[runtime]\nkind = \"emulated\"\nservice_ms = 0\n";
    text += "[resources]\ncpus = 1.0\ngpus = 1.0\nmemory = \"1 MiB\"\n";
    text += "[batch]\nmax_rows = 8\nwindow_rows = 32\n";
    std::fs::write(dir.join("model.toml"), text).unwrap();
    model.location = url::Url::from_directory_path(dir).unwrap();
    model.content_hash = Package::open(dir, None).unwrap().content_hash;
    Arc::new(model)
}

/// One process with emulated accelerators and a memory pool.
pub(crate) fn context(accelerators: u16, pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
    let inventory = Inventory::detect().with_cpus(2).with_emulated(accelerators, 1 << 30);
    let devices = Arc::new(Devices::new(inventory));
    context_of(devices, pool)
}

pub(crate) fn context_of(devices: Arc<Devices>, pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
    let config = SessionConfig::new().with_extension(devices).with_batch_size(64);
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    Arc::new(TaskContext::default().with_session_config(config).with_runtime(runtime))
}

/// `id` and a `value` that is NULL where the closure says so.
pub(crate) fn numbers(ids: std::ops::Range<i64>, is_null: impl Fn(i64) -> bool) -> RecordBatch {
    values(ids, |id| (!is_null(id)).then_some(id as f32 / 7.0))
}

/// `id` and the `value` that it is given.
pub(crate) fn values(ids: std::ops::Range<i64>, value: impl Fn(i64) -> Option<f32>) -> RecordBatch {
    let values: Float32Array = ids.clone().map(value).collect();
    let columns: [(&str, ArrayRef, bool); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids)), false),
        ("value", Arc::new(values), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Partitions of batches, as a plan.
pub(crate) fn table(partitions: &[Vec<RecordBatch>], schema: SchemaRef) -> Arc<dyn ExecutionPlan> {
    MemorySourceConfig::try_new_exec(partitions, schema, None).unwrap()
}

/// All partitions of a plan, each polled by a task of its own.
pub(crate) async fn collect_all(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> Result<Vec<RecordBatch>> {
    datafusion::physical_plan::collect(Arc::clone(plan), Arc::clone(context)).await
}

/// Column `id`, in order of the batches.
pub(crate) fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    let ids = |batch: &RecordBatch| {
        batch.column_by_name("id").unwrap().as_primitive::<Int64Type>().values().to_vec()
    };
    batches.iter().flat_map(ids).collect()
}

/// Each row as (id, digest), in order of the batches.
pub(crate) fn digests(batches: &[RecordBatch]) -> Vec<(i64, Option<i64>)> {
    let rows = |batch: &RecordBatch| {
        let ids = batch.column_by_name("id").unwrap().as_primitive::<Int64Type>().clone();
        let digests = batch.column_by_name("digest").unwrap().as_primitive::<Int64Type>().clone();
        (0..batch.num_rows())
            .map(|row| (ids.value(row), digests.iter().nth(row).flatten()))
            .collect::<Vec<_>>()
    };
    batches.iter().flat_map(rows).collect()
}

/// What the model gives, one row at a time, straight from its runtime; nothing for rows that it
/// fails on.
pub(crate) fn naive(model: &ModelDeclaration, batches: &[RecordBatch]) -> Vec<(i64, Option<i64>)> {
    let dir = Path::new(model.location.path());
    let package = Package::open(dir, None).unwrap();
    let device = forebay_udf::runtime::Device::Emulated(0);
    let replica = forebay_udf::runtime::load(model, &package, device).unwrap();
    let mut rows = Vec::new();
    for batch in batches {
        let values = batch.column_by_name("value").unwrap();
        for (row, id) in ids(std::slice::from_ref(batch)).into_iter().enumerate() {
            let value = values.slice(row, 1);
            let digest =
                value.as_primitive::<Float32Type>().iter().next().flatten().and_then(|_| {
                    let prepared = replica.prepare(std::slice::from_ref(&value)).unwrap();
                    let outputs = replica.forward(prepared).ok()?;
                    Some(outputs[0].as_primitive::<Int64Type>().value(0))
                });
            rows.push((id, digest));
        }
    }
    rows
}

/// Whether a waker was called.
#[derive(Debug, Default)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    /// Whether, since it was asked last.
    pub(crate) fn get(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

impl ArcWake for Flag {
    fn wake_by_ref(flag: &Arc<Self>) {
        flag.0.store(true, Ordering::SeqCst);
    }
}

pub(crate) fn flag_waker() -> (Waker, Arc<Flag>) {
    let flag = Arc::new(Flag::default());
    (waker(Arc::clone(&flag)), flag)
}

/// Polls once; the result if there is one.
pub(crate) fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A future that a test polls by hand.
pub(crate) struct Polled<F: Future> {
    future: Pin<Box<F>>,
    output: Option<F::Output>,
    waker: Waker,
    flag: Arc<Flag>,
}

impl<F: Future> Polled<F> {
    pub(crate) fn new(future: F) -> Self {
        let (waker, flag) = flag_waker();
        Self { future: Box::pin(future), output: None, waker, flag }
    }

    /// Polls it, unless it is done; whether it is not.
    pub(crate) fn is_pending(&mut self) -> bool {
        if self.output.is_none()
            && let Poll::Ready(output) =
                self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
        {
            self.output = Some(output);
        }
        self.output.is_none()
    }

    /// What it was done with, if it is.
    pub(crate) fn into_output(self) -> Option<F::Output> {
        self.output
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.flag.get()
    }
}
