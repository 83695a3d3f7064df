//! The exchange as an operator: rows, order, memory, cancel, errors.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{Int32Type, Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::memory_pool::{
    GreedyMemoryPool, MemoryPool, MemoryReservation, UnboundedMemoryPool,
};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use forebay_udf::model::BatchLimits;
use futures::StreamExt;
use futures::stream::BoxStream;
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::{ExchangeOptions, RestoreOrderExec, Sharing, StreamingExchangeExec};
use crate::testing::{collect_all, context, ids, limits, numbers, table};
use crate::wire::ExprCodec;

fn options(replicas: usize, batch: BatchLimits) -> ExchangeOptions {
    ExchangeOptions {
        replicas,
        byte_budget: 1 << 20,
        byte_budget_max: 0,
        batch,
        ordered: false,
        sharing: Sharing::None,
        no_progress_limit: None,
    }
}

fn exchange(input: &Arc<dyn ExecutionPlan>, options: ExchangeOptions) -> Arc<dyn ExecutionPlan> {
    Arc::new(StreamingExchangeExec::try_new(Arc::clone(input), options).unwrap())
}

/// The restorer and its exchange, as another process would have them.
fn sent(restore: &RestoreOrderExec) -> RestoreOrderExec {
    let exchange = restore.input().downcast_ref::<StreamingExchangeExec>().unwrap();
    let (message, input) = (exchange.to_wire(&NoExprs).unwrap(), Arc::clone(exchange.input()));
    let exchange = StreamingExchangeExec::from_wire(message, input, &NoExprs).unwrap();
    RestoreOrderExec::from_wire(restore.to_wire(), Arc::new(exchange)).unwrap()
}

struct NoExprs;

impl ExprCodec for NoExprs {
    fn encode(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<u8>> {
        panic!("{expr} is not expected")
    }

    fn decode(&self, _: &[u8], _: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
        panic!("no expression is expected")
    }
}

#[tokio::test]
async fn a_restorer_that_was_sent_is_watched_by_its_exchange() {
    let (input, _) = dealt(&[10], 1, |ids| numbers(ids, |_| false));
    let options = ExchangeOptions { ordered: true, ..options(2, limits(10, 10)) };
    let restore = sent(&RestoreOrderExec::try_new(exchange(&input, options)).unwrap());
    let exchange = restore.input().downcast_ref::<StreamingExchangeExec>().unwrap();
    let progress = exchange.next_progress();
    let waker = futures::task::noop_waker();
    assert!(progress.allows(1000, 20, &waker));
    let stream = restore.execute(0, context(1, unbounded())).unwrap();
    assert!(!progress.allows(1000, 20, &waker));
    drop(stream);
    assert!(progress.allows(1000, 20, &waker));
}

fn unbounded() -> Arc<dyn MemoryPool> {
    Arc::new(UnboundedMemoryPool::default())
}

/// `id` and a list of `id`-dependent length in the tokens' column; NULL for some.
fn texts(ids: std::ops::Range<i64>) -> RecordBatch {
    let tokens = |id: i64| {
        let length = id.wrapping_mul(2_654_435_761).rem_euclid(50);
        (length != 0).then(|| (0..length).map(|token| Some(token as i32)).collect::<Vec<_>>())
    };
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(ids.clone().map(tokens));
    let columns: [(&str, ArrayRef, bool); 2] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids)), false),
        (crate::TOKENS_COLUMN, Arc::new(lists), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Batches of the given sizes, numbered through, dealt to partitions.
fn dealt(
    sizes: &[usize],
    partitions: usize,
    batch: impl Fn(std::ops::Range<i64>) -> RecordBatch,
) -> (Arc<dyn ExecutionPlan>, i64) {
    let mut parts = vec![Vec::new(); partitions];
    let mut next = 0;
    for (at, size) in sizes.iter().enumerate() {
        let end = next + i64::try_from(*size).unwrap();
        parts[at % partitions].push(batch(next..end));
        next = end;
    }
    (table(&parts, batch(0..0).schema()), next)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_row_leaves_once_within_the_limits(
        sizes in prop::collection::vec(0usize..60, 0..12),
        partitions in 1usize..4,
        replicas in 1usize..4,
        max_rows in 1u32..20,
        max_tokens in prop::option::of(1u32..200),
        window_rows in 1u32..80,
        byte_budget in prop::sample::select(vec![1usize, 500, 5_000, 1_000_000]),
        pool_bytes in prop::sample::select(vec![1usize, 2_000, 1_000_000]),
    ) {
        let (input, rows) = dealt(&sizes, partitions, texts);
        let batch = BatchLimits { max_rows, max_tokens, max_bytes: None, window_rows };
        let options = ExchangeOptions { byte_budget, ..options(replicas, batch) };
        let plan = exchange(&input, options);
        let pool = Arc::new(WatchedPool::new(pool_bytes));
        let watched: Arc<dyn MemoryPool> = Arc::<WatchedPool>::clone(&pool);
        let batches = block_on(collect_all(&plan, &context(1, watched))).unwrap();
        for batch in &batches {
            let count = u32::try_from(batch.num_rows()).unwrap();
            let lengths = crate::weight::lengths_of(batch.column(1)).unwrap();
            let padded = count * lengths.iter().max().unwrap();
            prop_assert!((1..=max_rows).contains(&count));
            prop_assert!(count == 1 || max_tokens.is_none_or(|max| padded <= max));
        }
        let mut found = ids(&batches);
        found.sort_unstable();
        prop_assert_eq!(found, (0..rows).collect::<Vec<_>>());
        prop_assert_eq!(pool.reserved(), 0);
        prop_assert!(pool.peak() <= pool_bytes);
    }

    #[test]
    fn restored_rows_are_in_the_inputs_order(
        sizes in prop::collection::vec(0usize..60, 0..12),
        replicas in 1usize..4,
        max_rows in 1u32..20,
        max_tokens in prop::option::of(1u32..200),
        window_rows in 1u32..80,
        byte_budget in prop::sample::select(vec![1usize, 500, 1_000_000]),
        pool_bytes in prop::sample::select(vec![1usize, 2000, 100_000_000]),
        is_sent in any::<bool>(),
    ) {
        let (input, rows) = dealt(&sizes, 1, texts);
        let batch = BatchLimits { max_rows, max_tokens, max_bytes: None, window_rows };
        let options = ExchangeOptions { byte_budget, ordered: true, ..options(replicas, batch) };
        let plan = exchange(&input, options);
        let plan = RestoreOrderExec::try_new(plan).unwrap();
        let plan: Arc<dyn ExecutionPlan> = Arc::new(if is_sent { sent(&plan) } else { plan });
        prop_assert_eq!(plan.schema(), input.schema());
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(pool_bytes));
        let batches = block_on(collect_all(&plan, &context(1, Arc::clone(&pool)))).unwrap();
        prop_assert!(ids(&batches).into_iter().eq(0..rows));
        prop_assert_eq!(pool.reserved(), 0);
    }
}

/// A pool with a limit that remembers the most that was reserved.
#[derive(Debug)]
struct WatchedPool {
    pool: GreedyMemoryPool,
    peak: std::sync::atomic::AtomicUsize,
}

impl WatchedPool {
    fn new(bytes: usize) -> Self {
        Self { pool: GreedyMemoryPool::new(bytes), peak: 0.into() }
    }

    fn peak(&self) -> usize {
        self.peak.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn note(&self) {
        self.peak.fetch_max(self.pool.reserved(), std::sync::atomic::Ordering::SeqCst);
    }
}

impl std::fmt::Display for WatchedPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("watched")
    }
}

impl MemoryPool for WatchedPool {
    fn name(&self) -> &str {
        "watched"
    }

    fn grow(&self, reservation: &MemoryReservation, bytes: usize) {
        self.pool.grow(reservation, bytes);
        self.note();
    }

    fn shrink(&self, reservation: &MemoryReservation, bytes: usize) {
        self.pool.shrink(reservation, bytes);
    }

    fn try_grow(&self, reservation: &MemoryReservation, bytes: usize) -> Result<()> {
        self.pool.try_grow(reservation, bytes)?;
        self.note();
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }
}

/// A partition that a test writes out.
struct Scripted {
    schema: SchemaRef,
    stream: Box<dyn Fn() -> BoxStream<'static, Result<RecordBatch>> + Send + Sync>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl PartitionStream for Scripted {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), (self.stream)()))
    }
}

fn scripted(
    partitions: usize,
    stream: impl Fn() -> BoxStream<'static, Result<RecordBatch>> + Send + Sync + Clone + 'static,
) -> Arc<dyn ExecutionPlan> {
    let schema = numbers(0..0, |_| false).schema();
    let partition = |_| -> Arc<dyn PartitionStream> {
        Arc::new(Scripted { schema: Arc::clone(&schema), stream: Box::new(stream.clone()) })
    };
    let partitions = (0..partitions).map(partition).collect();
    let plan = StreamingTableExec::try_new(Arc::clone(&schema), partitions, None, [], false, None);
    Arc::new(plan.unwrap())
}

fn endless() -> BoxStream<'static, Result<RecordBatch>> {
    futures::stream::repeat_with(|| Ok(numbers(0..10, |_| false))).boxed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producers_error_ends_every_replica_with_it_once() {
    let input = scripted(2, || {
        let error: Result<RecordBatch> = Err(exec_datafusion_err!("disk on fire"));
        futures::stream::iter([Ok(numbers(0..5, |_| false)), error]).boxed()
    });
    let plan = exchange(&input, options(2, limits(4, 16)));
    let pool = unbounded();
    let context = context(1, Arc::clone(&pool));
    let mut errors = 0;
    let streams: Vec<_> =
        (0..2).map(|partition| plan.execute(partition, Arc::clone(&context)).unwrap()).collect();
    for mut stream in streams {
        while let Some(item) = stream.next().await {
            if let Err(error) = item {
                assert!(error.to_string().contains("disk on fire"), "{error}");
                assert!(matches!(error.find_root(), DataFusionError::Execution(_)), "{error:?}");
                errors += 1;
            }
        }
    }
    assert_eq!(errors, 2);
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producers_panic_is_an_error() {
    let input = scripted(1, || futures::stream::once(async { panic!("a bug in a scan") }).boxed());
    let plan = exchange(&input, options(1, limits(4, 16)));
    let error = collect_all(&plan, &context(1, unbounded())).await.unwrap_err().to_string();
    assert!(error.contains("a bug in a scan") && error.contains("partition 0"), "{error}");
}

/// Tells when it is dropped.
struct Ends(mpsc::Sender<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.try_send(()).ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_streams_ends_the_producers_and_frees_the_memory() {
    let (sender, mut ended) = mpsc::channel(3);
    let input = scripted(3, move || {
        let ends = Ends(sender.clone());
        endless().inspect(move |_| _ = &ends).boxed()
    });
    let plan = exchange(&input, options(2, limits(4, 16)));
    let pool = unbounded();
    let context = context(1, Arc::clone(&pool));
    let mut first = plan.execute(0, Arc::clone(&context)).unwrap();
    let second = plan.execute(1, context).unwrap();
    assert_eq!(first.next().await.unwrap().unwrap().num_rows(), 4);
    // The producers never end, so there are soon rows that wait again.
    while pool.reserved() == 0 {
        tokio::task::yield_now().await;
    }
    drop((first, second));
    for _ in 0..3 {
        ended.recv().await.unwrap();
    }
    // A producer holds the queue, and with it the rows, until its task is gone.
    while pool.reserved() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_may_take_everything() {
    let (input, rows) = dealt(&[50, 50], 2, |ids| numbers(ids, |_| false));
    let plan = exchange(&input, options(3, limits(8, 32)));
    let context = context(1, unbounded());
    let stream = plan.execute(1, Arc::clone(&context)).unwrap();
    let batches = datafusion::physical_plan::common::collect(stream).await.unwrap();
    assert_eq!(ids(&batches).len(), usize::try_from(rows).unwrap());
    // The partitions of a finished execution are not taken for those of the next.
    assert_eq!(ids(&collect_all(&plan, &context).await.unwrap()).len(), 100);
}

/// DataFusion's merging operators execute each partition in a task of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_asked_for_late_belongs_to_the_same_execution() {
    let (input, rows) = dealt(&[50, 50], 2, |ids| numbers(ids, |_| false));
    let plan = exchange(&input, options(2, limits(8, 32)));
    let context = context(1, unbounded());
    let mut batches = Vec::new();
    for partition in 0..2 {
        let stream = plan.execute(partition, Arc::clone(&context)).unwrap();
        batches.extend(datafusion::physical_plan::common::collect(stream).await.unwrap());
    }
    assert_eq!(ids(&batches).len(), usize::try_from(rows).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn execute_alone_reads_nothing() {
    let input = scripted(1, || futures::stream::once(async { panic!("was polled") }).boxed());
    let plan = exchange(&input, options(2, limits(4, 16)));
    let context = context(1, unbounded());
    drop(plan.execute(0, Arc::clone(&context)).unwrap());
    drop(plan.execute(1, context).unwrap());
}

#[test]
fn properties_and_refusals() {
    let (input, _) = dealt(&[5, 5], 2, texts);
    let plan = exchange(&input, options(3, limits(4, 16)));
    assert_eq!(plan.output_partitioning().partition_count(), 3);
    assert!(plan.output_ordering().is_none());
    assert_eq!(
        datafusion::physical_plan::displayable(plan.as_ref()).one_line().to_string().trim(),
        "StreamingExchangeExec: partitions=2 -> 3, byte_budget=1.0 MiB, window_rows=16, \
         batching=tokens, share_equal_inputs=false, ordered=false"
    );
    let ordered = ExchangeOptions { ordered: true, ..options(3, limits(4, 16)) };
    let error = StreamingExchangeExec::try_new(Arc::clone(&input), ordered).unwrap_err();
    assert!(error.to_string().contains("one partition"), "{error}");
    let error = StreamingExchangeExec::try_new(input, options(0, limits(4, 16))).unwrap_err();
    assert!(error.to_string().contains("at least one replica"), "{error}");
    assert!(RestoreOrderExec::try_new(plan).is_err());
}

#[tokio::test]
async fn a_plan_that_is_run_again_gives_every_row_once() {
    let (input, rows) = dealt(&[40; 20], 2, texts);
    let plan = exchange(&input, options(3, limits(4, 16)));
    // A run of which one partition was begun and dropped, and the others never asked for.
    let mut dropped = plan.execute(0, context(1, unbounded())).unwrap();
    dropped.next().await.unwrap().unwrap();
    drop(dropped);
    let again = context(1, unbounded());
    let (mut found, mut streams) = (Vec::new(), Vec::new());
    for partition in [1, 0, 2] {
        streams.push(plan.execute(partition, Arc::clone(&again)).unwrap());
    }
    for stream in streams {
        found.extend(ids(&datafusion::physical_plan::common::collect(stream).await.unwrap()));
    }
    found.sort_unstable();
    assert_eq!(found, (0..rows).collect::<Vec<_>>());
    // Two runs at once.
    let (left, right) = (context(1, unbounded()), context(1, unbounded()));
    let (left, right) = futures::join!(collect_all(&plan, &left), collect_all(&plan, &right));
    for batches in [left.unwrap(), right.unwrap()] {
        let mut found = ids(&batches);
        found.sort_unstable();
        assert_eq!(found, (0..rows).collect::<Vec<_>>());
    }
}

/// One row of so many bytes, whose turn is not yet, above no exchange.
fn early(bytes: usize) -> Arc<dyn ExecutionPlan> {
    let columns: [(&str, ArrayRef); 2] = [
        ("text", Arc::new(StringArray::from_iter_values(["x".repeat(bytes)]))),
        (crate::SEQUENCE_COLUMN, Arc::new(UInt64Array::from(vec![7]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let schema = batch.schema();
    Arc::new(RestoreOrderExec::try_new(table(&[vec![batch]], schema)).unwrap())
}

#[tokio::test]
async fn rows_that_wait_for_their_turn_respect_the_memory_limit() {
    let run = async |bytes, pool: Arc<dyn MemoryPool>| {
        collect_all(&early(bytes), &context(1, pool)).await.unwrap_err().to_string()
    };
    let full = || -> Arc<dyn MemoryPool> { Arc::new(GreedyMemoryPool::new(1)) };
    let error = run(65 << 20, full()).await;
    for part in ["65.0 MiB of rows wait for row 0", "batch_window_rows", "Resources exhausted"] {
        assert!(error.contains(part), "{error}");
    }
    // Taken in: what is wrong is only that nothing else came.
    for (bytes, pool) in [(1 << 20, full()), (65 << 20, unbounded())] {
        let error = run(bytes, pool).await;
        assert!(error.contains("row 0 never came"), "{error}");
    }
}
