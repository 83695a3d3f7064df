//! Hash joins as a worker runs them: knowing how many rows each side has, and once for all tasks.
//!
//! - **Sides.** A plan says which side of a join is built into a table, by an estimate. What a task of a join
//!   by hash reads has been written, and its locations say how many rows it has: if the other side has far
//!   fewer in this partition, that one is built. Partitions do not depend on each other, nor does the result
//!   on the choice, so each task chooses by itself, and one that runs again may choose otherwise.
//! - **Tables.** A side that all tasks read whole is the same for all of them: a worker builds one table of
//!   it, for the tasks of the stage that it runs at a time or one after the other. The latter only if no
//!   limit of memory is set, as nobody could take it away from an idle table; one that nobody has used for a
//!   while goes by itself.
//!
//! Only joins that give rows for rows of the side that streams past share a table: one that gives rows of
//! the table by what has met them keeps that in it.
//!
//! Under a limit of memory any of them goes to disk when it does not fit ([`SpillingJoinExec`]), which a plan that
//! comes from elsewhere does not say.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ballista_core::execution_plans::ShuffleReaderExec;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    StatisticsArgs, StatisticsContext, replace_children_if_necessary,
};
use forebay_engine::SpillingJoinExec;
use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use crate::block::BlockReaderExec;
use crate::protocol::location::BlockLocation;

type Plan = Arc<dyn ExecutionPlan>;

/// After so long without a task that reads it, a table goes.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// A side is built instead of the other one if it has less than one row for so many of that.
const TIMES_FEWER: usize = 2;

/// A join of a stage: the job, the stage, and which of the stage's joins it is.
type Place = (String, u32, usize);

/// The tables that the tasks of a worker share.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    built: Mutex<HashMap<Place, Table>>,
}

#[derive(Debug)]
struct Table {
    /// The join that builds it, or has.
    join: Weak<SpillingJoinExec>,
    /// The same, as long as it may be idle.
    kept: Option<Arc<SpillingJoinExec>>,
    /// What it is built of.
    of: Vec<BlockLocation>,
    used: Instant,
}

impl Tables {
    /// A task's plan with the joins as they are run here.
    ///
    /// # Errors
    /// None that building the plan did not find already.
    pub(crate) fn joined(&self, job: &str, stage: u32, plan: Plan) -> Result<Plan> {
        let mut number = 0;
        plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else {
                return Ok(Transformed::no(node));
            };
            number += 1;
            let table = match table_of(join) {
                Some(of) => Some(self.table((job.to_owned(), stage, number), of, &node)?),
                None if has_fewer_right(join) => None,
                None => return SpillingJoinExec::in_place_of(node),
            };
            Ok(Transformed::yes(Arc::new(RunJoin::new(node, table)?) as Plan))
        })
        .data()
    }

    /// The join that builds this table.
    fn table(
        &self,
        place: Place,
        of: &[BlockLocation],
        plan: &Plan,
    ) -> Result<Arc<SpillingJoinExec>> {
        let mut built = self.built.lock();
        let now = Instant::now();
        if let Some(table) = built.get_mut(&place)
            && table.of == of
            && let Some(join) = table.join.upgrade()
        {
            table.used = now;
            return Ok(join);
        }
        // Without the other side: that is each task's own.
        let join = hash_join(plan)?;
        let sides: Vec<Plan> =
            vec![Arc::clone(join.left()), Arc::new(EmptyExec::new(join.right().schema()))];
        let join = join.builder().with_new_children(sides)?.build()?;
        let join = Arc::new(SpillingJoinExec::try_new(&join)?);
        let (kept, seen) = (Some(Arc::clone(&join)), Arc::downgrade(&join));
        built.insert(place, Table { join: seen, kept, of: of.to_vec(), used: now });
        Ok(join)
    }

    /// A task of a stage runs. The stage's tables are forgotten if it does not end well: what they are
    /// built of may not be there.
    pub(crate) fn used<'a>(&'a self, job: &'a str, stage: u32) -> Used<'a> {
        Used { tables: self, job, stage, ended_well: false }
    }

    /// Lets go of what nobody has used for a while.
    fn tidy(&self) {
        let now = Instant::now();
        self.built.lock().retain(|_, table| {
            let kept = table.kept.as_ref();
            table.join.strong_count() > usize::from(kept.is_some())
                || kept.is_some() && now.duration_since(table.used) < IDLE_MAX
        });
    }
}

/// Lets go of tables that nobody has used for a while, for ever.
pub(crate) async fn tidy(tables: Arc<Tables>) {
    let mut ticks = tokio::time::interval(IDLE_MAX);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tables.tidy();
    }
}

/// While a task of a stage runs.
#[derive(Debug)]
pub(crate) struct Used<'a> {
    tables: &'a Tables,
    job: &'a str,
    stage: u32,
    ended_well: bool,
}

impl Used<'_> {
    /// The task has ended well. Without a limit of memory its tables stay for the next one.
    pub(crate) fn ended_well(mut self, memory: &dyn MemoryPool) {
        self.ended_well = true;
        let may_idle = matches!(memory.memory_limit(), MemoryLimit::Infinite);
        let now = Instant::now();
        for ((job, stage, _), table) in self.tables.built.lock().iter_mut() {
            if job == self.job && *stage == self.stage {
                table.used = now;
                table.kept = table.kept.take().filter(|_| may_idle);
            }
        }
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        if !self.ended_well {
            let mut built = self.tables.built.lock();
            built.retain(|(job, stage, _), _| job != self.job || *stage != self.stage);
        }
    }
}

/// The blocks of which a join builds a table that other tasks of its stage build, too.
fn table_of(join: &HashJoinExec) -> Option<&[BlockLocation]> {
    let for_all = *join.partition_mode() == PartitionMode::CollectLeft && !join.null_aware;
    let by_what_streams = match join.join_type() {
        JoinType::Inner
        | JoinType::Right
        | JoinType::RightSemi
        | JoinType::RightAnti
        | JoinType::RightMark => true,
        JoinType::Left
        | JoinType::Full
        | JoinType::LeftSemi
        | JoinType::LeftAnti
        | JoinType::LeftMark => false,
    };
    let reader = join.left().downcast_ref::<BlockReaderExec>()?;
    match reader.partitions() {
        [blocks] if for_all && by_what_streams => Some(blocks),
        _ => None,
    }
}

/// Whether the right side of a join by hash has far fewer rows than the left one, which is built.
fn has_fewer_right(join: &HashJoinExec) -> bool {
    let may_swap = *join.partition_mode() == PartitionMode::Partitioned
        && !join.null_aware
        && join.join_type().supports_swap()
        && join.right().output_ordering().is_none();
    match (rows(join.left()), rows(join.right())) {
        (Some(left), Some(right)) if may_swap => right.saturating_mul(TIMES_FEWER) < left,
        _ => false,
    }
}

/// Rows that a task reads of a hash shuffle.
fn rows(plan: &Plan) -> Option<usize> {
    if let Some(reader) = plan.downcast_ref::<BlockReaderExec>() {
        let [blocks] = reader.partitions() else { return None };
        let rows = blocks.iter().fold(0, |rows: u64, block| rows.saturating_add(block.rows));
        return usize::try_from(rows).ok();
    }
    let reader = plan.downcast_ref::<ShuffleReaderExec>()?;
    let read = StatisticsContext::new().compute(reader, &StatisticsArgs::new());
    read.ok()?.num_rows.get_value().copied()
}

fn hash_join(plan: &Plan) -> Result<&HashJoinExec> {
    plan.downcast_ref()
        .ok_or_else(|| internal_datafusion_err!("{} is not a hash join", plan.name()))
}

/// A hash join that is run otherwise than it was planned. To others it is what was planned: its inputs are
/// in the plan's order, and what it measured is one task's.
#[derive(Debug)]
struct RunJoin {
    planned: Plan,
    /// That of other tasks; without one, the sides are swapped.
    table: Option<Arc<SpillingJoinExec>>,
    /// Tells the task's partitions from those of others that have the same table.
    number: usize,
    run: Plan,
}

impl RunJoin {
    fn new(planned: Plan, table: Option<Arc<SpillingJoinExec>>) -> Result<Self> {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let join = hash_join(&planned)?;
        let run = match &table {
            None => {
                let swapped = join.swap_inputs(PartitionMode::Partitioned)?;
                swapped.transform_up(SpillingJoinExec::in_place_of).data()?
            }
            Some(table) => {
                let right: Plan = Arc::new(Numbered(Arc::clone(join.right())));
                Arc::new(table.with_probe_side(&right)?)
            }
        };
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { planned, table, number, run })
    }

    /// What the join calls a partition of this task.
    fn numbered(&self, partition: usize) -> usize {
        match self.table {
            Some(_) => self.number.wrapping_mul(PARTITIONS_MAX) | partition,
            None => partition,
        }
    }
}

impl DisplayAs for RunJoin {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.planned.fmt_as(format, f)
    }
}

impl ExecutionPlan for RunJoin {
    fn name(&self) -> &'static str {
        "HashJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.properties()
    }

    fn children(&self) -> Vec<&Plan> {
        self.planned.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.planned.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let planned = replace_children_if_necessary(Arc::clone(&self.planned), children)?;
        Ok(Arc::new(Self::new(planned, self.table.clone())?))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.run.execute(self.numbered(partition), context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        if self.table.is_none() {
            // Above it there may be what puts the columns in the plan's order.
            let children = self.run.children();
            let join = if self.run.is::<HashJoinExec>() { &self.run } else { *children.first()? };
            return join.metrics();
        }
        let mut own = MetricsSet::new();
        let all = self.run.metrics()?;
        let is_own = |partition: usize| partition / PARTITIONS_MAX == self.number;
        let found = all.iter().filter(|metric| metric.partition().is_none_or(is_own));
        found.for_each(|metric| own.push(Arc::clone(metric)));
        Some(own)
    }
}

/// Partitions of one task's plan, at most.
const PARTITIONS_MAX: usize = 1 << 20;

/// The side of a join that streams past a table. Its partitions are asked for by numbers that no other task
/// has: the join measures by them.
#[derive(Debug)]
struct Numbered(Plan);

impl DisplayAs for Numbered {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Numbered")
    }
}

impl ExecutionPlan for Numbered {
    fn name(&self) -> &'static str {
        "Numbered"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.0]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self(input))),
            Err(all) => internal_err!("Numbered takes one input, found {}", all.len()),
        }
    }

    fn execute(
        &self,
        number: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.0.execute(number % PARTITIONS_MAX, context)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::datatypes::Schema;
    use ballista_core::serde::scheduler::{PartitionId, PartitionLocation, PartitionStats};
    use datafusion::common::NullEquality;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, UnboundedMemoryPool};
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_expr::Partitioning;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::prelude::SessionConfig;
    use futures::TryStreamExt;
    use tempfile::TempDir;

    use super::*;
    use crate::ballista::wake;
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
        RecordBatch::try_from_iter_with_nullable([
            (names[0], keys, true),
            (names[1], numbers, false),
        ])
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
                assert_eq!(
                    found(&run, &context).await,
                    found(&planned(), &context).await,
                    "{kind}"
                );
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
        let stats = |rows: Option<u64>| PartitionStats::new(rows, None, Some(1));
        let shuffle = |schema: Arc<Schema>, rows: Option<u64>| -> Plan {
            let location = PartitionLocation {
                map_partition_id: 0,
                partition_id: PartitionId { job_id: "job".into(), stage_id: 1, partition_id: 0 },
                executor_meta: wake::waker(),
                partition_stats: stats(rows),
                file_id: None,
                is_sort_shuffle: true,
            };
            let parts = vec![vec![location.clone(), location]];
            let partitioning = Partitioning::UnknownPartitioning(1);
            Arc::new(ShuffleReaderExec::try_new(1, parts, schema, partitioning).unwrap())
        };
        let swaps = |left, right, kind, mode| {
            let (left_schema, right_schema) =
                (batch(["l", "a"], 1, 0).schema(), batch(["r", "b"], 1, 0).schema());
            let planned =
                join(shuffle(left_schema, left), shuffle(right_schema, right), kind, mode, None);
            let run = Tables::default().joined("job", 1, planned).unwrap();
            run.is::<RunJoin>()
        };
        let segments = |schema: Arc<Schema>, rows: &[u64]| -> Plan {
            let segment = |rows: &u64| {
                let segment_at = Some(7);
                BlockLocation { rows: *rows, segment_at, ..BlockLocation::default() }
            };
            let blocks = vec![rows.iter().map(segment).collect()];
            Arc::new(BlockReaderExec::new(1, schema, blocks))
        };
        let swaps_segments = |left, right| {
            let schemas = (batch(["l", "a"], 1, 0).schema(), batch(["r", "b"], 1, 0).schema());
            let (left, right) = (segments(schemas.0, left), segments(schemas.1, right));
            let planned = join(left, right, JoinType::Inner, PartitionMode::Partitioned, None);
            Tables::default().joined("job", 1, planned).unwrap().is::<RunJoin>()
        };
        assert!(swaps_segments(&[5, 4], &[1, 3]));
        assert!(swaps_segments(&[5, 4], &[]));
        assert!(!swaps_segments(&[5, 4], &[2, 3]));
        assert!(!swaps_segments(&[], &[2, 3]));
        let by_hash = PartitionMode::Partitioned;
        assert!(swaps(Some(10), Some(4), JoinType::Inner, by_hash));
        assert!(swaps(Some(10), Some(0), JoinType::RightAnti, by_hash));
        assert!(!swaps(Some(10), Some(5), JoinType::Inner, by_hash));
        assert!(!swaps(Some(5), Some(10), JoinType::Inner, by_hash));
        assert!(!swaps(Some(10), None, JoinType::Inner, by_hash));
        assert!(!swaps(Some(10), Some(1), JoinType::Inner, PartitionMode::CollectLeft));
    }
}
