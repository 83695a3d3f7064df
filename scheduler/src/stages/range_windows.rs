//! Window functions without PARTITION BY, above what merges rows range by range.
//!
//! ```text
//!  before   Projection < BoundedWindowAgg(rank, percent_rank) < SortPreservingMerge < BlockReader
//!
//!  after    Projection < RangeWindow(counted, percent_rank) < BoundedWindowAgg(rank, rank) < SortPreservingMerge < …
//! ```
//! A task sees one range. What it computes there, as if there were no other rows, becomes the value over all rows if
//! that follows from how many rows there are before the range, and in all:
//!
//! | function | in a range | over all rows |
//! |---|---|---|
//! | `row_number()` | itself | + rows before |
//! | `rank()` | itself | + rows before |
//! | `count(*)` up to the row | itself | + rows before |
//! | `percent_rank()` | `rank()` | from that and all rows |
//! | `cume_dist()` | `count(*)` up to the row and those equal to it | from that and all rows |
//! | `ntile(n)` | `row_number()` | from that and all rows |
//!
//! Rows with equal keys are in one range. So what depends on which rows are equal is right if the window's keys are
//! all that ranges are made by; `row_number()`, `ntile()` and ROWS ask for no more than the order. Other
//! functions need values of rows in other ranges: where there is one, one task has all rows, as without ranges.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::count::{Count, count_udaf};
use datafusion::functions_window::cume_dist::CumeDist;
use datafusion::functions_window::ntile::Ntile;
use datafusion::functions_window::rank::{Rank, rank_udwf};
use datafusion::functions_window::row_number::{RowNumber, row_number_udwf};
use datafusion::logical_expr::{
    WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition,
};
use datafusion::physical_expr::expressions::{Literal, lit};
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr, create_window_expr};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode, replace_children_if_necessary};
use forebay_engine::BoundedProjectionExec;

use crate::block::RangeWindowExec;
use crate::block::range_window::OverAll;
use crate::block::run_order::projected;
use crate::graph::StageId;
use crate::stages::window_functions::{computed_by, has_filter};

/// A plan above a merge of runs of a stage, as it is right for each range of them. None if its windows cannot be.
pub(super) fn in_ranges(
    plan: &Arc<dyn ExecutionPlan>,
    from: StageId,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    Ok(above(plan, from)?.map(|above| above.plan))
}

/// What a part of a plan above the merge becomes.
struct Above {
    plan: Arc<dyn ExecutionPlan>,
    /// The order by which ranges are made, if the part has all of its keys.
    order: Option<LexOrdering>,
    /// Rows of the merge are left out.
    is_filtered: bool,
}

fn above(plan: &Arc<dyn ExecutionPlan>, from: StageId) -> Result<Option<Above>> {
    if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        let order = Some(merge.expr().clone());
        return Ok(Some(Above { plan: Arc::clone(plan), order, is_filtered: false }));
    }
    let [input] = plan.children()[..] else { return Ok(None) };
    let Some(below) = above(input, from)? else { return Ok(None) };
    if let Some(functions) = computed_by(plan) {
        return completed(functions, below, from);
    }
    let order = match projection(plan) {
        Some(projection) => below.order.and_then(|order| shown(projection, order)),
        None => below.order,
    };
    let is_filtered = below.is_filtered || plan.is::<FilterExec>();
    let plan = replace_children_if_necessary(Arc::clone(plan), vec![below.plan])?;
    Ok(Some(Above { plan, order, is_filtered }))
}

fn projection(plan: &Arc<dyn ExecutionPlan>) -> Option<&ProjectionExec> {
    let bounded = plan.downcast_ref::<BoundedProjectionExec>();
    plan.downcast_ref().or_else(|| bounded.map(|bounded| bounded.projection().as_ref()))
}

/// An order in the columns of a projection that has all of its keys.
fn shown(projection: &ProjectionExec, order: LexOrdering) -> Option<LexOrdering> {
    let keys = order.len();
    projected(projection, order).filter(|shown| shown.len() == keys)
}

/// Window functions over ranges, completed. None if one of them cannot be.
fn completed(
    functions: &[Arc<dyn WindowExpr>],
    below: Above,
    from: StageId,
) -> Result<Option<Above>> {
    // How many of the rows before a range are left, nobody knows.
    if below.is_filtered {
        return Ok(None);
    }
    let schema = below.plan.schema();
    let (mut within, mut columns) = (vec![], vec![]);
    for (at, function) in (schema.fields().len()..).zip(functions) {
        let Some((function, over_all)) = completable(function, below.order.as_ref(), &schema)?
        else {
            return Ok(None);
        };
        within.push(function);
        columns.push((at, over_all));
    }
    let window = BoundedWindowAggExec::try_new(within, below.plan, InputOrderMode::Sorted, false)?;
    let plan = Arc::new(RangeWindowExec::try_new(Arc::new(window), from.0, columns)?);
    Ok(Some(Above { plan, ..below }))
}

type Completable = (Arc<dyn WindowExpr>, OverAll);

/// What is computed in a range for the sake of a window function, and how its value over all rows follows from that.
fn completable(
    function: &Arc<dyn WindowExpr>,
    order: Option<&LexOrdering>,
    schema: &SchemaRef,
) -> Result<Option<Completable>> {
    if !function.partition_by().is_empty() {
        return Ok(None);
    }
    let has_all_keys = order.is_some_and(|order| order[..] == *function.order_by());
    let itself = || Some((Arc::clone(function), OverAll::Counted));
    let other = |of: WindowFunctionDefinition, args: &[Arc<dyn PhysicalExpr>]| {
        let (name, keys) = (function.name().to_owned(), function.order_by());
        let frame = Arc::new(WindowFrame::new(Some(false)));
        let schema = Arc::clone(schema);
        create_window_expr(&of, name, args, &[], keys, frame, schema, false, false, None)
    };
    let Some(of) = ranking(function) else {
        let counts = has_all_keys && counts_rows(function, WindowFrameUnits::Range)
            || counts_rows(function, WindowFrameUnits::Rows);
        return Ok(itself().filter(|_| counts));
    };
    Ok(match of {
        Ranking::RowNumber => itself(),
        Ranking::Ntile(tiles) => {
            let number = WindowFunctionDefinition::WindowUDF(row_number_udwf());
            Some((other(number, &[])?, OverAll::Ntile(tiles)))
        }
        _ if !has_all_keys => None,
        Ranking::Rank => itself(),
        Ranking::PercentRank => {
            let rank = WindowFunctionDefinition::WindowUDF(rank_udwf());
            Some((other(rank, &[])?, OverAll::PercentRank))
        }
        Ranking::CumeDist => {
            let count = WindowFunctionDefinition::AggregateUDF(count_udaf());
            Some((other(count, &[lit(1_i64)])?, OverAll::CumeDist))
        }
    })
}

/// DataFusion's functions that say where a row is in an order. They look at no frame.
enum Ranking {
    RowNumber,
    Rank,
    PercentRank,
    CumeDist,
    Ntile(u64),
}

fn ranking(function: &Arc<dyn WindowExpr>) -> Option<Ranking> {
    let standard: &StandardWindowExpr = function.as_any().downcast_ref()?;
    let function: &WindowUDFExpr = standard.get_standard_func_expr().as_any().downcast_ref()?;
    // Not by its name: a program may have registered another one under it.
    let of = function.fun().inner();
    if of.is::<RowNumber>() {
        return Some(Ranking::RowNumber);
    }
    if of.is::<CumeDist>() {
        return Some(Ranking::CumeDist);
    }
    if of.is::<Ntile>() {
        let tiles = function.args().first()?.downcast_ref::<Literal>()?.value();
        let ScalarValue::UInt64(Some(tiles)) = tiles.cast_to(&DataType::UInt64).ok()? else {
            return None;
        };
        return (tiles > 0).then_some(Ranking::Ntile(tiles));
    }
    let rank = of.downcast_ref::<Rank>()?;
    if *rank == Rank::basic() {
        return Some(Ranking::Rank);
    }
    (*rank == Rank::percent_rank()).then_some(Ranking::PercentRank)
}

/// Whether a function counts all rows up to the current one, in a frame of these units.
fn counts_rows(function: &Arc<dyn WindowExpr>, units: WindowFrameUnits) -> bool {
    let Some(aggregate) = function.as_any().downcast_ref::<PlainAggregateWindowExpr>() else {
        return false;
    };
    let frame = function.get_window_frame();
    let is_up_to_row = frame.units == units
        && matches!(&frame.start_bound, WindowFrameBound::Preceding(rows) if rows.is_null())
        && matches!(frame.end_bound, WindowFrameBound::CurrentRow);
    let counted = aggregate.get_aggregate_expr();
    let is_row = |of: &Arc<dyn PhysicalExpr>| {
        of.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null())
    };
    let counts = counted.fun().inner().is::<Count>() && !counted.is_distinct();
    is_up_to_row && !has_filter(function) && counts && counted.expressions().iter().all(is_row)
}
