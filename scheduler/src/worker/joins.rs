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
    replace_children_if_necessary,
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
const TIMES_FEWER: u64 = 2;

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
fn rows(plan: &Plan) -> Option<u64> {
    let [blocks] = plan.downcast_ref::<BlockReaderExec>()?.partitions() else { return None };
    Some(blocks.iter().fold(0, |rows, block| rows.saturating_add(block.rows)))
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
mod tests;
