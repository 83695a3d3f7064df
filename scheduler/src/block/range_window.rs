//! Window functions that were computed over one range of an order, made into those over all rows.
//!
//! ```text
//!  RangeWindowExec          number in the range + rows before it; of rank and number, what follows from all rows
//!    └ BoundedWindowAgg     row_number(), rank(), count(*) as if there were no other rows
//!        └ SortPreservingMerge
//!            └ BlockReader  the range; counts what it leaves out before it
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Float64Type, Int64Type, Schema, SchemaRef, UInt64Type};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{TryStreamExt, future};

use super::reader::BlockReaderExec;

/// What a column of a range becomes over all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverAll {
    /// A number that counts rows from the first one on goes on where the ranges before have ended.
    Counted,
    /// `percent_rank()`, of `rank()`.
    PercentRank,
    /// `cume_dist()`, of `count(*)` up to the row and those equal to it.
    CumeDist,
    /// `ntile()` of so many, of `row_number()`.
    Ntile(u64),
}

/// How many rows there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsOfRuns {
    /// Before the range, in blocks that are not read.
    pub before: u64,
    /// In all ranges.
    pub all: u64,
}

/// Makes of window functions' values in a range those over all rows.
///
/// Rows, order and columns: the input's; these columns are others. What is before the range is what was
/// told, and what the reader below has left out: all of it has been counted when the merge gives a first row, as it has
/// seen one of each run by then. Memory: a column of a batch. Errors: if there is no reader below.
#[derive(Clone, Debug)]
pub struct RangeWindowExec {
    input: Arc<dyn ExecutionPlan>,
    /// The stage that wrote the runs.
    stage: u32,
    columns: Vec<(usize, OverAll)>,
    /// Known when a task is bound.
    rows: RowsOfRuns,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RangeWindowExec {
    /// Over ranges of what `stage` wrote.
    ///
    /// # Errors
    /// If there are no such columns of numbers.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        stage: u32,
        columns: Vec<(usize, OverAll)>,
    ) -> Result<Self> {
        let schema = schema(&input.schema(), &columns)?;
        // Each of these values grows with the one that it is made of.
        let order = input.output_ordering().cloned();
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new_with_orderings(schema, order),
            input.output_partitioning().clone(),
            input.pipeline_behavior(),
            input.boundedness(),
        ));
        let (rows, metrics) = (RowsOfRuns::default(), ExecutionPlanMetricsSet::new());
        Ok(Self { input, stage, columns, rows, properties, metrics })
    }

    /// Where there are so many rows.
    #[must_use]
    pub fn with_rows(mut self, rows: RowsOfRuns) -> Self {
        self.rows = rows;
        self
    }

    /// How many rows there are.
    pub fn rows(&self) -> RowsOfRuns {
        self.rows
    }

    /// The stage that wrote the runs.
    pub fn stage(&self) -> u32 {
        self.stage
    }

    /// The columns that become others.
    pub fn columns(&self) -> &[(usize, OverAll)] {
        &self.columns
    }

    /// With so many rows before the range beside those that were told.
    fn over_all(&self, rows: &RecordBatch, left_out: u64) -> Result<RecordBatch> {
        let before = self.rows.before.saturating_add(left_out);
        let mut columns = rows.columns().to_vec();
        for (at, how) in &self.columns {
            columns[*at] = how.of(&columns[*at], before, self.rows.all)?;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        Ok(RecordBatch::try_new_with_options(self.schema(), columns, &options)?)
    }
}

/// The input's columns, of which some become others.
fn schema(input: &SchemaRef, columns: &[(usize, OverAll)]) -> Result<SchemaRef> {
    let mut fields: Vec<_> = input.fields().iter().cloned().collect();
    for (at, how) in columns {
        let field = fields.get_mut(*at).filter(|field| how.can_be_of(field.data_type()));
        let Some(field) = field else {
            return internal_err!("RangeWindowExec: {how:?} of column {at} of {input}");
        };
        let of = how.data_type(field.data_type());
        *field = Arc::new(field.as_ref().clone().with_data_type(of));
    }
    Ok(Arc::new(Schema::new_with_metadata(fields, input.metadata().clone())))
}

impl OverAll {
    fn can_be_of(self, of: &DataType) -> bool {
        match self {
            Self::Counted => matches!(of, DataType::UInt64 | DataType::Int64),
            Self::PercentRank | Self::Ntile(_) => *of == DataType::UInt64,
            Self::CumeDist => *of == DataType::Int64,
        }
    }

    fn data_type(self, of: &DataType) -> DataType {
        match self {
            Self::Counted | Self::Ntile(_) => of.clone(),
            Self::PercentRank | Self::CumeDist => DataType::Float64,
        }
    }

    /// The same divisions as DataFusion's, which has all rows.
    fn of(self, values: &ArrayRef, before: u64, all: u64) -> Result<ArrayRef> {
        let values: ArrayRef = match (self, values.data_type()) {
            (Self::Counted, DataType::Int64) => {
                let before = i64::try_from(before).unwrap_or(i64::MAX);
                let counted = |count: i64| count.saturating_add(before);
                Arc::new(counts::<Int64Type>(values)?.unary::<_, Int64Type>(counted))
            }
            (Self::Counted, _) => {
                let counted = |number: u64| number.saturating_add(before);
                Arc::new(counts::<UInt64Type>(values)?.unary::<_, UInt64Type>(counted))
            }
            (Self::PercentRank, _) => {
                let others = (all as f64 - 1.0).max(1.0);
                let of = |rank: u64| rank.saturating_add(before).saturating_sub(1) as f64 / others;
                Arc::new(counts::<UInt64Type>(values)?.unary::<_, Float64Type>(of))
            }
            (Self::CumeDist, _) => {
                let of = |count: i64| (count as u64).saturating_add(before) as f64 / all as f64;
                Arc::new(counts::<Int64Type>(values)?.unary::<_, Float64Type>(of))
            }
            (Self::Ntile(tiles), _) => {
                let of = |number: u64| tile(number.saturating_add(before), tiles, all);
                Arc::new(counts::<UInt64Type>(values)?.unary::<_, UInt64Type>(of))
            }
        };
        Ok(values)
    }
}

/// In which of so many tiles a row is, by its number from 1; the first ones have a row more than the last.
fn tile(number: u64, tiles: u64, all: u64) -> u64 {
    let tiles = tiles.max(1);
    let (size, larger) = (all / tiles, all % tiles);
    let at = number.saturating_sub(1);
    let large = size.saturating_add(1);
    let in_larger = larger.saturating_mul(large);
    match at < in_larger {
        true => at / large + 1,
        false => larger + (at - in_larger) / size.max(1) + 1,
    }
}

fn counts<T: arrow::datatypes::ArrowPrimitiveType>(
    values: &ArrayRef,
) -> Result<&PrimitiveArray<T>> {
    let of = values.data_type();
    values
        .as_primitive_opt()
        .ok_or_else(|| internal_datafusion_err!("RangeWindowExec: {of} instead of a number"))
}

/// What reads the range below.
fn reader_below(plan: &Arc<dyn ExecutionPlan>) -> Option<&BlockReaderExec> {
    plan.downcast_ref().or_else(|| plan.children().into_iter().find_map(reader_below))
}

impl DisplayAs for RangeWindowExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeWindowExec: stage={}, columns=[", self.stage)?;
        for (place, (at, how)) in self.columns.iter().enumerate() {
            let between = if place == 0 { "" } else { ", " };
            match how {
                OverAll::Counted => write!(f, "{between}counted@{at}")?,
                OverAll::PercentRank => write!(f, "{between}percent_rank@{at}")?,
                OverAll::CumeDist => write!(f, "{between}cume_dist@{at}")?,
                OverAll::Ntile(tiles) => write!(f, "{between}ntile({tiles})@{at}")?,
            }
        }
        f.write_str("]")
    }
}

impl ExecutionPlan for RangeWindowExec {
    fn name(&self) -> &'static str {
        "RangeWindowExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => {
                let Self { stage, columns, rows, .. } = self.as_ref();
                Ok(Arc::new(Self::try_new(input, *stage, columns.clone())?.with_rows(*rows)))
            }
            Err(all) => internal_err!("RangeWindowExec takes one input, found {}", all.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(reader) = reader_below(&self.input) else {
            return internal_err!("RangeWindowExec: nothing below it reads a range");
        };
        let left_out = reader.left_out();
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let this = self.clone();
        let rows = self.input.execute(partition, context)?.and_then(move |rows| {
            let rows = this.over_all(&rows, left_out.load(Ordering::Acquire));
            future::ready(rows.inspect(|rows| metrics.record_output(rows.num_rows())))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

#[cfg(test)]
mod tests;
