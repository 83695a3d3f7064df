//! What DataFusion's join takes its inputs from.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use super::parts::Parting;
use super::run::{Run, TooLarge};
use super::shape::Side;

/// An input of a join. The build side is gathered before the join sees a row of it, and is an error if it does
/// not fit; the probe side can be had if the join has come to nothing. Without a [`Run`] both are their inputs.
#[derive(Debug)]
pub(super) struct SideExec {
    side: Side,
    input: Arc<dyn ExecutionPlan>,
}

impl SideExec {
    pub(super) fn over(side: Side, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { side, input })
    }
}

impl DisplayAs for SideExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SideExec: {:?}", self.side)
    }
}

impl ExecutionPlan for SideExec {
    fn name(&self) -> &'static str {
        "SideExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Self::over(self.side, input)),
            Err(all) => internal_err!("SideExec takes one input, found {}", all.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let Some(run) = Run::of(&context) else {
            return self.input.execute(partition, context);
        };
        let rows = self.input.execute(partition, Arc::clone(&run.outside))?;
        Ok(match self.side {
            Side::Build => gathered(run, rows),
            Side::Probe => later(run, rows),
        })
    }
}

/// The probe side, which is the run's until the first row is asked for.
fn later(run: Arc<Run>, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = rows.schema();
    run.put_probe(rows);
    let taken = async move {
        let rows = run.take_probe();
        rows.ok_or_else(|| internal_datafusion_err!("the probe side of a join was read twice"))
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(taken).try_flatten()))
}

/// The build side, which is there as a whole, or the error that says where it is.
fn gathered(run: Arc<Run>, rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let gathered = async move {
        let batches = gather(&run, rows).await;
        batches.map(|batches| stream::iter(batches.into_iter().map(Ok)))
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(gathered).try_flatten()))
}

async fn gather(run: &Run, mut rows: SendableRecordBatchStream) -> Result<Vec<RecordBatch>> {
    let mut held = Held::default();
    while let Some(batch) = rows.next().await.transpose()? {
        held.add(batch);
        if run.memory.hold(held.rows, held.bytes)? {
            continue;
        }
        let Some(level) = run.level else {
            run.memory.release();
            return Err(TooLarge::new(None).into_error());
        };
        let mut parting =
            Parting::new(&run.shape, Side::Build, level, run.partition, &run.outside)?;
        for batch in held.batches {
            parting.write(&batch)?;
            tokio::task::coop::consume_budget().await;
        }
        run.memory.release();
        parting.write_all(rows).await?;
        return Err(TooLarge::new(Some(parting.finish()?)).into_error());
    }
    Ok(held.batches)
}

/// Batches in memory. Those that share a buffer hold it once.
#[derive(Default)]
pub(super) struct Held {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) rows: usize,
    pub(super) bytes: usize,
    counter: RecordBatchMemoryCounter,
}

impl Held {
    pub(super) fn add(&mut self, batch: RecordBatch) {
        self.rows += batch.num_rows();
        self.bytes += self.counter.count_batch(&batch);
        self.batches.push(batch);
    }
}

/// Rows that are there, as the input of a join, which asks for them once.
pub(super) struct GivenExec {
    properties: Arc<PlanProperties>,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl GivenExec {
    /// Rows of one partition, whatever its number is.
    pub(super) fn of_rows(rows: SendableRecordBatchStream) -> Arc<dyn ExecutionPlan> {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(rows.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Arc::new(Self { properties: Arc::new(properties), rows: Mutex::new(Some(rows)) })
    }

    pub(super) fn of_batches(
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
    ) -> Arc<dyn ExecutionPlan> {
        let rows = stream::iter(batches.into_iter().map(Ok));
        Self::of_rows(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

impl fmt::Debug for GivenExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GivenExec")
    }
}

impl DisplayAs for GivenExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GivenExec")
    }
}

impl ExecutionPlan for GivenExec {
    fn name(&self) -> &'static str {
        "GivenExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.rows.lock().take();
        rows.ok_or_else(|| internal_datafusion_err!("the rows of a part of a join were read twice"))
    }
}
