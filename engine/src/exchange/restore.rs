//! Puts the input's order back above an ordered exchange.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::{SchemaRef, UInt64Type};
use bytesize::ByteSize;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{
    DataFusionError, Result, Statistics, internal_datafusion_err, internal_err,
};
use datafusion::config::ConfigOptions;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, EmissionType, EvaluationType, SchedulingType,
};
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, MetricsSet,
    RecordOutput,
};
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, StatisticsArgs,
};
use futures::stream::Fuse;
use futures::{FutureExt, StreamExt};

use super::exec::StreamingExchangeExec;
use super::order::{OrderProgress, Reorder};
use crate::carry::{self, Sources};
use crate::checker::Ledger;
use crate::claimed_order::in_claimed_order;
use crate::inference::InferenceExec;
use crate::unreserved::UNRESERVED_BYTES_MAX;
use crate::{SEQUENCE_COLUMN, TransformExec, weight};

/// N partitions whose rows carry their position → one partition in that order.
///
/// ```text
///  partition 0 ─┐   ┌──────────────────────┐
///  partition 1 ─┼──▶│ rows before their turn│──▶ 0 1 2 3 …
///  partition 2 ─┘   └──────────┬───────────┘
///                              └─ how far it has come ──▶ the exchange below
/// ```
///
/// - Rows: all kept; the position is removed. Order: that of the exchange's input.
/// - Memory: the exchange starts no window further than two windows ahead of the first row
///   missing here, so about three windows of rows wait at most, reserved in the memory pool. When
///   the pool refuses, the exchange starts none ahead at all until it gives again. What is on its
///   way by then is taken in all the same, because the missing row may be among it; if that comes to
///   more than 64 MiB, the query ends with the pool's error.
/// - Cancel and errors: as the streams below.
#[derive(Debug)]
pub struct RestoreOrderExec {
    input: Arc<dyn ExecutionPlan>,
    /// Where the position is in the input.
    sequence: usize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RestoreOrderExec {
    /// Restores the order of an input that comes from an ordered exchange.
    ///
    /// # Errors
    /// If the input has no positions.
    pub fn try_new(input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let schema = input.schema();
        let Some((sequence, _)) = schema.column_with_name(SEQUENCE_COLUMN) else {
            return internal_err!(
                "RestoreOrderExec needs a column {SEQUENCE_COLUMN}: an ordered \
                 StreamingExchangeExec below it"
            );
        };
        let kept: Vec<usize> = (0..schema.fields().len()).filter(|at| *at != sequence).collect();
        let properties = Arc::new(Self::compute_properties(&input, &kept)?);
        Ok(Self { input, sequence, properties, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// The operator below, whose rows carry their positions. The exchange may lie deeper.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    fn compute_properties(
        input: &Arc<dyn ExecutionPlan>,
        kept: &[usize],
    ) -> Result<PlanProperties> {
        let schema = Arc::new(input.schema().project(kept)?);
        let sources: Sources = kept.iter().copied().map(Some).collect();
        let equivalences = match find_exchange(input, sources) {
            Some((exchange, sources)) => {
                let below = exchange.input().equivalence_properties();
                carry::equivalences(below, &sources, &schema)
            }
            None => EquivalenceProperties::new(schema),
        };
        Ok(PlanProperties::new(
            equivalences,
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            input.boundedness(),
        )
        .with_evaluation_type(EvaluationType::Eager)
        .with_scheduling_type(SchedulingType::Cooperative))
    }
}

/// The ordered exchange below `plan`, and which of its input's columns the columns given by
/// `sources` (in terms of `plan`'s output) are.
fn find_exchange(
    plan: &Arc<dyn ExecutionPlan>,
    sources: Sources,
) -> Option<(&StreamingExchangeExec, Sources)> {
    if let Some(exchange) = plan.downcast_ref::<StreamingExchangeExec>() {
        let known = exchange.input().schema().fields().len();
        let sources = sources.into_iter().map(|source| source.filter(|at| *at < known)).collect();
        return exchange.options().ordered.then_some((exchange, sources));
    }
    let children = plan.children();
    let [child] = children.as_slice() else { return None };
    let columns: Sources = if let Some(inference) = plan.downcast_ref::<InferenceExec>() {
        inference.sources().clone()
    } else if plan.is::<TransformExec>() || plan.schema() == child.schema() {
        carry::identity(&child.schema())
    } else {
        return None;
    };
    let through = |source: Option<usize>| columns.get(source?).copied().flatten();
    find_exchange(child, sources.into_iter().map(through).collect())
}

impl DisplayAs for RestoreOrderExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partitions = self.input.output_partitioning().partition_count();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "RestoreOrderExec: partitions={partitions} -> 1")
            }
            DisplayFormatType::TreeRender => writeln!(f, "partitions={partitions} -> 1"),
        }
    }
}

impl ExecutionPlan for RestoreOrderExec {
    fn name(&self) -> &'static str {
        "RestoreOrderExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
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
        let [input] = carry::only_child(children)?;
        Ok(Arc::new(Self::try_new(input)?))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("RestoreOrderExec has no partition {partition}");
        }
        // First, so that the execution begun below is the one that watches it.
        let progress = find_exchange(&self.input, Sources::new())
            .map(|(exchange, _)| Watched::new(exchange.next_progress()));
        let partitions = self.input.output_partitioning().partition_count();
        let ledger = Ledger::new(Self::static_name(), 1);
        let inputs = (0..partitions)
            .map(|partition| Ok(ledger.input(self.input.execute(partition, Arc::clone(&context))?)))
            .collect::<Result<Vec<_>>>()?;
        let restorer = Restorer {
            inputs: Inputs::Waiting(inputs),
            schema: self.schema(),
            sequence: self.sequence,
            rows_max: context.session_config().batch_size(),
            reorder: Reorder::default(),
            progress,
            reservation: Arc::new(
                MemoryConsumer::new("RestoreOrderExec").register(context.memory_pool()),
            ),
            held_bytes_peak: MetricBuilder::new(&self.metrics)
                .with_category(MetricCategory::Bytes)
                .gauge("held_bytes_peak", partition),
            baseline: BaselineMetrics::new(&self.metrics, partition),
        };
        let stream = futures::stream::try_unfold(restorer, |mut restorer| async move {
            Ok(restorer.next().await?.map(|batch| (batch, restorer)))
        });
        let stream = Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream));
        Ok(make_cooperative(in_claimed_order(self, ledger.output(stream))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::new(carry::row_statistics(&input[0], &self.schema())))
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let columns = 0..self.input.schema().fields().len();
        let kept: Sources = columns.filter(|at| *at != self.sequence).map(Some).collect();
        carry::dynamic_filters(phase, &filters, &kept, &self.input)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// Batches that are taken in before rows are emitted.
const AT_ONCE_MAX: usize = 64;

/// Progress that the exchange watches for as long as this lives.
struct Watched {
    progress: Arc<OrderProgress>,
    /// As the exchange was told last.
    is_tight: bool,
}

impl Watched {
    fn new(progress: Arc<OrderProgress>) -> Self {
        progress.watch();
        Self { progress, is_tight: false }
    }
}

impl Watched {
    fn tighten(&mut self, is_tight: bool) {
        if std::mem::replace(&mut self.is_tight, is_tight) != is_tight {
            self.progress.tighten(is_tight);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.progress.unwatch();
    }
}

enum Inputs {
    Waiting(Vec<SendableRecordBatchStream>),
    Running(Fuse<SendableRecordBatchStream>),
}

/// A batch of which rows wait for their turn, with its bytes.
struct Held {
    batch: RecordBatch,
    bytes: usize,
    reservation: Arc<MemoryReservation>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reservation.shrink(self.bytes);
    }
}

struct Restorer {
    inputs: Inputs,
    schema: SchemaRef,
    sequence: usize,
    rows_max: usize,
    reorder: Reorder<Held>,
    progress: Option<Watched>,
    reservation: Arc<MemoryReservation>,
    held_bytes_peak: Gauge,
    baseline: BaselineMetrics,
}

impl Restorer {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            // What has come by now, so that rows leave in few large batches.
            for _ in 0..AT_ONCE_MAX {
                let Some(Some(item)) = self.input().next().now_or_never() else { break };
                self.take_in(item?)?;
            }
            if let Some(batch) = self.emit()? {
                return Ok(Some(batch));
            }
            match self.input().next().await.transpose()? {
                Some(batch) => self.take_in(batch)?,
                None if self.reorder.is_empty() => return Ok(None),
                None => {
                    return internal_err!(
                        "RestoreOrderExec: row {} never came",
                        self.reorder.next()
                    );
                }
            }
        }
    }

    /// All partitions in one stream: a task each, one batch of each on its way.
    fn input(&mut self) -> &mut Fuse<SendableRecordBatchStream> {
        if let Inputs::Waiting(inputs) = &mut self.inputs {
            let inputs = std::mem::take(inputs);
            let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), 1);
            for mut input in inputs {
                let sender = builder.tx();
                builder.spawn(async move {
                    while let Some(item) = input.next().await {
                        let failed = item.is_err();
                        if sender.send(item).await.is_err() || failed {
                            break;
                        }
                    }
                    Ok(())
                });
            }
            self.inputs = Inputs::Running(builder.build().fuse());
        }
        match &mut self.inputs {
            Inputs::Running(stream) => stream,
            Inputs::Waiting(_) => unreachable!("just replaced"),
        }
    }

    fn take_in(&mut self, mut batch: RecordBatch) -> Result<()> {
        let numbers = batch.remove_column(self.sequence);
        let numbers = numbers
            .as_primitive_opt::<UInt64Type>()
            .ok_or_else(|| internal_datafusion_err!("{SEQUENCE_COLUMN} is not a UInt64"))?;
        let bytes = weight::bytes(&batch);
        let reservation = Arc::clone(&self.reservation);
        let refused = reservation.try_grow(bytes).err();
        if let Some(progress) = &mut self.progress {
            progress.tighten(refused.is_some());
        }
        if let Some(error) = refused {
            self.check_room(reservation.size() + bytes, error)?;
            reservation.grow(bytes);
        }
        self.held_bytes_peak.set_max(reservation.size());
        let held = Held { batch, bytes, reservation };
        self.reorder.insert(held, numbers.values().iter().copied()).map_err(|position| {
            internal_datafusion_err!("RestoreOrderExec: row {position} came twice")
        })
    }

    /// Whether so many bytes may wait although the pool has refused some of them.
    ///
    /// # Errors
    /// If not: the pool's error.
    fn check_room(&self, held: usize, error: DataFusionError) -> Result<()> {
        if held <= UNRESERVED_BYTES_MAX {
            return Ok(());
        }
        Err(error.context(format!(
            "RestoreOrderExec: {} of rows wait for row {} and may not; raise the memory limit, lower \
             the model's batch_window_rows, or ask for no order",
            ByteSize(held as u64),
            self.reorder.next()
        )))
    }

    /// The rows whose turn it is, if any.
    fn emit(&mut self) -> Result<Option<RecordBatch>> {
        let _timer = self.baseline.elapsed_compute().timer();
        let ready = self.reorder.pop_ready(self.rows_max);
        if ready.is_empty() {
            return Ok(None);
        }
        let mut batches: Vec<&Arc<Held>> = Vec::new();
        let mut places = Vec::with_capacity(ready.len());
        let mut known = std::collections::HashMap::new();
        for (held, row) in &ready {
            let at = *known.entry(Arc::as_ptr(held)).or_insert_with(|| {
                batches.push(held);
                batches.len() - 1
            });
            places.push((at, *row));
        }
        let batches: Vec<&RecordBatch> = batches.into_iter().map(|held| &held.batch).collect();
        let batch = interleave_record_batch(&batches, &places)?;
        let batch = batch.with_schema(Arc::clone(&self.schema))?;
        if let Some(progress) = &self.progress {
            progress.progress.advance(ready.len() as u64);
        }
        Ok(Some(batch.record_output(&self.baseline)))
    }
}
