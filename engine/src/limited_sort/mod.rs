//! Sorts where memory has a limit.
//!
//! Each takes a [share](share) of it, and leaves something to merges.
//!
//! Rows that come from a file have texts as views into the pages that were read, and each batch of them counts these
//! pages as its own, whole, though a page has the texts of many batches. So DataFusion's sort runs out of a memory that
//! is far from full. Under a limit it gets the texts themselves in place of the views, and gives views of what it has
//! sorted. (Sorted views would be into all pages at once.)
//!
//! DataFusion's sort orders batch by batch, and merges them. By one key it is faster to put rows together and to order them
//! at once, up to [so many](SORTED_AT_ONCE_MAX); by several keys, each comparison is of all columns, and the merge has
//! them in one. (Sorting 12 GB by one key of ten bytes takes a sixth less of user CPU.)

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, replace_children_if_necessary};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements,
    PlanProperties, StatisticsArgs,
};
use futures::StreamExt;

mod share;

use share::Share;

use crate::outside::{self, SideExec};
use crate::sorted_rows::{SORTED_AT_ONCE_MAX, can_be_at_once, cast_columns, stored, without_views};

type Plan = Arc<dyn ExecutionPlan>;

/// A sort of all rows. To everybody who looks at a plan it is DataFusion's.
///
/// - Rows, columns, partitions, order, errors, disk: that sort's.
/// - Memory: that sort's. Under a limit its share of that, for texts themselves and eight bytes for each.
#[derive(Debug)]
pub struct LimitedSortExec {
    sort: Plan,
    /// What runs under a limit: the sort of the texts, and what makes views of them again.
    limited: Plan,
    limited_sort: Plan,
    /// Whether that puts rows together first.
    is_at_once: bool,
}

impl LimitedSortExec {
    /// This operator in the place of a sort of all rows; any other plan stays as it is.
    ///
    /// # Errors
    /// None that building the sort did not find already.
    pub fn in_place_of(plan: Plan) -> Result<Transformed<Plan>> {
        // The first rows of an order are few, and copied.
        let sort = plan.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none());
        let Some(sort) = sort else { return Ok(Transformed::no(plan)) };
        let schema = sort.schema();
        let stored = without_views(&schema);
        let rows = SideExec::over(Arc::clone(sort.input()));
        let rows = match &stored {
            Some(stored) => cast(rows, stored)?,
            None => rows,
        };
        let keys = of_texts(sort.expr(), &schema)?.unwrap_or_else(|| sort.expr().clone());
        let is_at_once = keys.len() == 1 && can_be_at_once(&rows.schema());
        let limited_sort = SortExec::new(keys, rows);
        let limited_sort: Plan =
            Arc::new(limited_sort.with_preserve_partitioning(sort.preserve_partitioning()));
        let limited = match stored {
            Some(_) => cast(Arc::clone(&limited_sort), &schema)?,
            None => Arc::clone(&limited_sort),
        };
        Ok(Transformed::yes(Arc::new(Self { sort: plan, limited, limited_sort, is_at_once })))
    }
}

/// The same keys, of texts in place of views. What is computed is computed of views, as it was planned.
fn of_texts(keys: &LexOrdering, schema: &Schema) -> Result<Option<LexOrdering>> {
    let as_view = |expr: Arc<dyn PhysicalExpr>| {
        let column = expr.downcast_ref::<Column>().map(|column| schema.field(column.index()));
        match column.map(Field::data_type).filter(|kind| stored(kind).is_some()) {
            Some(kind) => {
                let cast = CastExpr::new(Arc::clone(&expr), kind.clone(), None);
                Ok(Transformed::yes(Arc::new(cast) as Arc<dyn PhysicalExpr>))
            }
            None => Ok(Transformed::no(expr)),
        }
    };
    let keys = keys.iter().map(|key| {
        let expr = match key.expr.is::<Column>() {
            true => Arc::clone(&key.expr),
            false => Arc::clone(&key.expr).transform_up(as_view).data()?,
        };
        Ok(PhysicalSortExpr::new(expr, key.options))
    });
    Ok(LexOrdering::new(keys.collect::<Result<Vec<_>>>()?))
}

/// A projection to columns of these types.
fn cast(input: Plan, to: &Schema) -> Result<Plan> {
    let columns = cast_columns(&input.schema(), to);
    Ok(Arc::new(ProjectionExec::try_new(columns, input)?))
}

impl DisplayAs for LimitedSortExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sort.fmt_as(format, f)
    }
}

impl ExecutionPlan for LimitedSortExec {
    fn name(&self) -> &str {
        self.sort.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.sort.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.sort.properties()
    }

    fn required_input_distribution(&self) -> Vec<datafusion::physical_plan::Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.sort.input_distribution_requirements()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.sort.benefits_from_input_partitioning()
    }

    fn children(&self) -> Vec<&Plan> {
        self.sort.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.sort.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let sort = replace_children_if_necessary(Arc::clone(&self.sort), children)?;
        Ok(Self::in_place_of(sort)?.data)
    }

    fn reset_state(self: Arc<Self>) -> Result<Plan> {
        Ok(Self::in_place_of(Arc::clone(&self.sort).reset_state()?)?.data)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let MemoryLimit::Finite(limit) = context.memory_pool().memory_limit() else {
            return self.sort.execute(partition, context);
        };
        let runtime = context.runtime_env();
        let share = Arc::new(Share::of(Arc::clone(context.memory_pool()), limit));
        let runtime = RuntimeEnv { memory_pool: share, ..runtime.as_ref().clone() };
        let mut config = context.session_config().clone();
        let at_once = &mut config.options_mut().execution.sort_in_place_threshold_bytes;
        if self.is_at_once {
            *at_once = SORTED_AT_ONCE_MAX.max(*at_once);
        }
        let schema = self.schema();
        let context = outside::context(config, Arc::new(runtime), context);
        let rows = self.limited.execute(partition, context)?;
        // What fields know beside their types was not cast with them.
        let of = Arc::clone(&schema);
        let rows = rows.map(move |rows| Ok(rows?.with_schema(Arc::clone(&of))?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut all = self.sort.metrics()?;
        let limited = self.limited_sort.metrics().unwrap_or_default();
        limited.iter().for_each(|metric| all.push(Arc::clone(metric)));
        Some(all)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.sort.child_stats_requests(partition)
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.sort.statistics_from_inputs(input, args)
    }

    fn fetch(&self) -> Option<usize> {
        self.sort.fetch()
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.sort.cardinality_effect()
    }
}

#[cfg(test)]
mod tests;
