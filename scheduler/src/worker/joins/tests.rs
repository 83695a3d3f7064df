//! Tables that tasks share, and sides that are swapped.

use std::path::Path;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::common::NullEquality;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::{GreedyMemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::Column;
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
use tempfile::TempDir;

use super::*;
use crate::block::{BlockSize, BlockStore, BlockWriterExec};

const ALL: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::RightSemi,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::LeftMark,
    JoinType::RightMark,
];

/// Rows of a key, which may be null or several rows', and a number.
fn batch(names: [&str; 2], rows: i64, seed: i64) -> RecordBatch {
    let key = |row: i64| match (row * 7 + seed) % 13 {
        12 => None,
        key => Some(key),
    };
    let keys: ArrayRef = Arc::new((0..rows).map(key).collect::<Int64Array>());
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    RecordBatch::try_from_iter_with_nullable([(names[0], keys, true), (names[1], numbers, false)])
        .unwrap()
}

fn in_memory(batch: RecordBatch) -> Plan {
    let schema = batch.schema();
    MemorySourceConfig::try_new_exec(&[vec![batch]], schema, None).unwrap()
}

fn join(
    left: Plan,
    right: Plan,
    kind: JoinType,
    mode: PartitionMode,
    columns: Option<Vec<usize>>,
) -> Plan {
    let key = |name| Arc::new(Column::new(name, 0)) as Arc<dyn PhysicalExpr>;
    let (on, nulls) = (vec![(key("l"), key("r"))], NullEquality::NullEqualsNothing);
    let join = HashJoinExec::try_new(
        left, right, on, None, &kind, columns, mode, nulls, /* null_aware */ false,
    );
    Arc::new(join.unwrap())
}

async fn found(plan: &Plan, context: &Arc<TaskContext>) -> Vec<String> {
    let batches = plan.execute(0, Arc::clone(context)).unwrap();
    let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
    let rows = |batch: &RecordBatch| {
        assert_eq!(batch.schema().fields().len(), plan.schema().fields().len());
        let row = |row| {
            let columns = batch.columns().iter();
            let cells = columns.map(|column| format!("{:?}|", column.slice(row, 1)));
            cells.collect::<String>()
        };
        (0..batch.num_rows()).map(row).collect::<Vec<_>>()
    };
    let mut rows: Vec<String> = batches.iter().flat_map(rows).collect();
    rows.sort();
    rows
}

fn measured(plan: &Plan, name: &str) -> usize {
    let metrics = plan.metrics().unwrap();
    metrics.sum_by_name(name).map_or(0, |value| value.as_usize())
}

/// What a stage wrote, and the context of tasks that read it.
async fn written(folder: &Path, batch: RecordBatch) -> (Plan, Arc<TaskContext>) {
    let store = BlockStore::new("w".to_owned(), folder.to_owned(), u64::MAX);
    let store = Arc::new(store);
    let schema = batch.schema();
    let halves = vec![batch.slice(0, 2), batch.slice(2, batch.num_rows() - 2)];
    let input = MemorySourceConfig::try_new_exec(&[halves], Arc::clone(&schema), None).unwrap();
    let writer = BlockWriterExec::new(input, BlockSize::up_to(1));
    let config = SessionConfig::new().with_extension(Arc::clone(&store));
    let context = Arc::new(TaskContext::default().with_session_config(config));
    let blocks = writer.write(&store, "job", 1, 2, Arc::clone(&context), &|_, _| {});
    let located = blocks.await.unwrap().into_iter().map(|(id, sealed)| BlockLocation {
        job: "job".to_owned(),
        id,
        worker: "w".to_owned(),
        address: String::new(),
        bytes: sealed.bytes,
        rows: sealed.rows,
        checksum: sealed.checksum,
        segment_at: None,
    });
    let blocks = vec![located.collect()];
    (Arc::new(BlockReaderExec::new(1, schema, blocks)), context)
}

#[tokio::test]
async fn tasks_build_one_table_and_each_has_its_own_rows() {
    let folder = TempDir::new().unwrap();
    let (left, context) = written(folder.path(), batch(["l", "a"], 40, 0)).await;
    for (at, kind) in ALL.into_iter().enumerate() {
        let tables = Tables::default();
        let (mut built, mut streamed) = (vec![], vec![]);
        for seed in 0..3 {
            let planned = || {
                let right = in_memory(batch(["r", "b"], 30 + seed, seed));
                join(Arc::clone(&left), right, kind, PartitionMode::CollectLeft, None)
            };
            let run = tables.joined("job", at as u32, planned()).unwrap();
            let used = tables.used("job", at as u32);
            assert_eq!(found(&run, &context).await, found(&planned(), &context).await, "{kind}");
            built.push(measured(&run, "build_input_rows"));
            streamed.push(measured(&run, "input_rows"));
            used.ended_well(&UnboundedMemoryPool::default());
        }
        let by_what_streams = kind == JoinType::Inner || kind.to_string().starts_with("Right");
        assert_eq!(built, if by_what_streams { [40, 0, 0] } else { [40; 3] }, "{kind}");
        assert!(!by_what_streams || streamed == [30, 31, 32], "{kind}: {streamed:?}");
    }
}

/// What a task has put on disk for all of them is read by the next one.
#[tokio::test]
async fn a_table_that_does_not_fit_is_on_disk_for_all_tasks() {
    let folder = TempDir::new().unwrap();
    let (left, ample) = written(folder.path(), batch(["l", "a"], 6000, 0)).await;
    let pool = Arc::new(GreedyMemoryPool::new(160 << 10));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    let config = ample.session_config().clone();
    let scarce = TaskContext::default().with_session_config(config).with_runtime(runtime);
    let scarce = Arc::new(scarce);
    for (at, kind) in ALL.into_iter().enumerate() {
        let tables = Tables::default();
        let mut spilled = vec![];
        for seed in 0..2 {
            let planned = || {
                let right = in_memory(batch(["r", "b"], 5, seed));
                join(Arc::clone(&left), right, kind, PartitionMode::CollectLeft, None)
            };
            let run = tables.joined("job", at as u32, planned()).unwrap();
            let found_rows = found(&run, &scarce).await;
            assert!(found_rows == found(&planned(), &ample).await, "{kind}");
            spilled.push(run.metrics().unwrap().spilled_rows().unwrap_or(0));
        }
        let by_what_streams = kind == JoinType::Inner || kind.to_string().starts_with("Right");
        assert!(spilled[0] >= 6005, "{kind}: {spilled:?}");
        assert_eq!(spilled[1] < 6000, by_what_streams, "{kind}: {spilled:?}");
    }
}

#[tokio::test]
async fn a_table_goes_with_a_failure_with_its_blocks_and_under_a_limit_of_memory() {
    let folder = TempDir::new().unwrap();
    let (left, context) = written(folder.path(), batch(["l", "a"], 40, 0)).await;
    let tables = Tables::default();
    let run = |left: &Plan| {
        let right = in_memory(batch(["r", "b"], 9, 3));
        let planned =
            join(Arc::clone(left), right, JoinType::Inner, PartitionMode::CollectLeft, None);
        tables.joined("job", 1, planned).unwrap()
    };
    let build = async |left: &Plan| {
        let run = run(left);
        found(&run, &context).await;
        measured(&run, "build_input_rows")
    };
    assert_eq!(build(&left).await, 40);
    assert_eq!(build(&left).await, 0, "it is there");
    drop(tables.used("job", 2));
    assert_eq!(build(&left).await, 0, "another stage's task has failed");
    drop(tables.used("job", 1));
    assert_eq!(build(&left).await, 40, "a task has failed");
    let reader = left.downcast_ref::<BlockReaderExec>().unwrap();
    let mut blocks = reader.partitions().to_vec();
    blocks[0].reverse();
    let other: Plan = Arc::new(BlockReaderExec::new(1, left.schema(), blocks));
    assert_eq!(build(&other).await, 40, "other blocks");
    assert_eq!(build(&other).await, 0);
    tables.used("job", 1).ended_well(&GreedyMemoryPool::new(1 << 30));
    assert_eq!(build(&other).await, 40, "what is idle would take room");
    let (first, second) = (run(&other), run(&other));
    tables.used("job", 1).ended_well(&GreedyMemoryPool::new(1 << 30));
    let third = run(&other);
    assert_eq!(found(&first, &context).await, found(&second, &context).await);
    assert_eq!(found(&first, &context).await, found(&third, &context).await);
    assert_eq!(measured(&second, "build_input_rows"), 0, "they run at a time");
    assert_eq!(measured(&third, "build_input_rows"), 0, "they run at a time");
}

#[tokio::test]
async fn swapped_sides_give_the_same_rows_in_the_same_columns() {
    let context = Arc::new(TaskContext::default());
    for kind in ALL.into_iter().filter(|kind| kind.supports_swap()) {
        for columns in [None, Some(vec![1, 0])] {
            let left = in_memory(batch(["l", "a"], 40, 0));
            let right = in_memory(batch(["r", "b"], 9, 5));
            let planned = join(left, right, kind, PartitionMode::Partitioned, columns);
            let run: Plan = Arc::new(RunJoin::new(Arc::clone(&planned), None).unwrap());
            assert_eq!(run.schema(), planned.schema());
            let rows = found(&run, &context).await;
            assert_eq!(measured(&run, "build_input_rows"), 9, "{kind}");
            assert_eq!(rows, found(&planned, &context).await, "{kind}");
            assert_eq!(run.children()[0].schema().field(0).name(), "l", "{kind}");
        }
    }
}

#[test]
fn sides_are_swapped_by_what_a_task_reads() {
    // Segments of so many rows each, or rows that nobody has counted.
    let side = |columns: [&str; 2], rows: Option<&[u64]>| -> Plan {
        let Some(rows) = rows else { return in_memory(batch(columns, 1, 0)) };
        let segment = |rows: &u64| {
            let segment_at = Some(7);
            BlockLocation { rows: *rows, segment_at, ..BlockLocation::default() }
        };
        let blocks = vec![rows.iter().map(segment).collect()];
        Arc::new(BlockReaderExec::new(1, batch(columns, 1, 0).schema(), blocks))
    };
    let swaps = |left, right, kind, mode| {
        let planned = join(side(["l", "a"], left), side(["r", "b"], right), kind, mode, None);
        Tables::default().joined("job", 1, planned).unwrap().is::<RunJoin>()
    };
    let (by_hash, inner) = (PartitionMode::Partitioned, JoinType::Inner);
    assert!(swaps(Some(&[5, 4]), Some(&[1, 3]), inner, by_hash));
    assert!(swaps(Some(&[5, 4]), Some(&[]), inner, by_hash));
    assert!(swaps(Some(&[10, 10]), Some(&[0]), JoinType::RightAnti, by_hash));
    assert!(!swaps(Some(&[5, 4]), Some(&[2, 3]), inner, by_hash));
    assert!(!swaps(Some(&[]), Some(&[2, 3]), inner, by_hash));
    assert!(!swaps(Some(&[20]), None, inner, by_hash));
    assert!(!swaps(Some(&[20]), Some(&[1]), JoinType::Left, PartitionMode::CollectLeft));
}
