//! The exchange as a plan node.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytesize::ByteSize;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err, plan_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, Partitioning,
    PhysicalExpr,
};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, EmissionType, EvaluationType, SchedulingType,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, StatisticsArgs,
};
use forebay_udf::model::BatchLimits;
use parking_lot::Mutex;

use super::budget::Budget;
use super::metrics::{ProducerMetrics, ReplicaMetrics};
use super::order::OrderProgress;
use super::queue::Queue;
use super::stream::{Execution, Producers, Replica};
use crate::{SEQUENCE_COLUMN, TOKENS_COLUMN, carry};

/// How an exchange hands rows over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeOptions {
    /// Output partitions: one per replica of the model above.
    pub replicas: usize,
    /// The most bytes that may wait in the exchange; one larger block passes alone.
    pub byte_budget: usize,
    /// The batches that the model above wants.
    pub batch: BatchLimits,
    /// Whether each row carries its position in the input, so that [`RestoreOrderExec`] can put
    /// the input's order back. Needs an input of one partition.
    ///
    /// [`RestoreOrderExec`]: super::RestoreOrderExec
    pub ordered: bool,
}

/// M partitions → N replicas, bounded by bytes, in batches as a model wants them.
///
/// See the [module](super) for the drawing and for what holds of rows, order, memory, cancel and
/// errors.
#[derive(Debug)]
pub struct StreamingExchangeExec {
    input: Arc<dyn ExecutionPlan>,
    options: ExchangeOptions,
    /// The order that the input had when the exchange was planned, and must keep.
    ordering: Option<LexOrdering>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    current: Mutex<Current>,
}

/// The execution whose partitions are being handed out. It is kept here until the last of them is:
/// a partition may be asked for after another one has read everything, and must find the same
/// execution, at its end.
#[derive(Debug, Default)]
struct Current {
    execution: Option<Arc<Execution>>,
    /// Partitions of it that nobody has asked for yet.
    left: Vec<usize>,
    /// For the next execution; a restorer above takes hold of it first.
    progress: Arc<OrderProgress>,
}

impl StreamingExchangeExec {
    /// An exchange above `input`.
    ///
    /// # Errors
    /// If there would be no replica, or if `ordered` and the input has several partitions.
    pub fn try_new(input: Arc<dyn ExecutionPlan>, options: ExchangeOptions) -> Result<Self> {
        if options.replicas == 0 {
            return internal_err!("StreamingExchangeExec needs at least one replica");
        }
        let ordering = input.output_ordering().filter(|_| options.ordered).cloned();
        let partitions = input.output_partitioning().partition_count();
        if options.ordered && partitions != 1 {
            return internal_err!(
                "an ordered StreamingExchangeExec needs an input of one partition, found \
                 {partitions}; put a CoalescePartitionsExec or SortPreservingMergeExec below it"
            );
        }
        if options.ordered && input.schema().column_with_name(SEQUENCE_COLUMN).is_some() {
            return plan_err!("the input of an ordered exchange has a column {SEQUENCE_COLUMN}");
        }
        let properties = Arc::new(Self::compute_properties(&input, &options));
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Self { input, options, ordering, properties, metrics, current: Mutex::default() })
    }

    /// What the exchange reads.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How it hands rows over.
    pub fn options(&self) -> &ExchangeOptions {
        &self.options
    }

    /// The progress that the next execution will watch. That one is new, even if the one before
    /// was never handed out as a whole.
    pub(super) fn next_progress(&self) -> Arc<OrderProgress> {
        let mut current = self.current.lock();
        current.execution = None;
        Arc::clone(&current.progress)
    }

    fn compute_properties(
        input: &Arc<dyn ExecutionPlan>,
        options: &ExchangeOptions,
    ) -> PlanProperties {
        PlanProperties::new(
            EquivalenceProperties::new(output_schema(&input.schema(), options.ordered)),
            Partitioning::UnknownPartitioning(options.replicas),
            EmissionType::Incremental,
            input.boundedness(),
        )
        .with_evaluation_type(EvaluationType::Eager)
        .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn begin(&self, context: &Arc<TaskContext>, progress: Arc<OrderProgress>) -> Result<Execution> {
        let producers = self.input.output_partitioning().partition_count();
        let ExchangeOptions { replicas, byte_budget, batch, ordered } = self.options.clone();
        let reservation =
            MemoryConsumer::new("StreamingExchangeExec").register(context.memory_pool());
        let budget = Arc::new(Budget::new(byte_budget, reservation));
        let queue = Queue::new(producers, replicas, batch, Arc::clone(&budget), progress);
        let input = |partition| {
            let stream = self.input.execute(partition, Arc::clone(context))?;
            Ok((stream, ProducerMetrics::new(&self.metrics, partition)))
        };
        let inputs = (0..producers).map(input).collect::<Result<Vec<_>>>()?;
        Ok(Execution {
            queue: Arc::new(queue),
            budget,
            schema: self.schema(),
            ordered,
            producers: Mutex::new(Producers::Waiting(inputs)),
        })
    }

    /// The execution that has not handed out this partition yet, or a new one.
    fn execution_of(&self, partition: usize, context: &Arc<TaskContext>) -> Result<Arc<Execution>> {
        let mut current = self.current.lock();
        let at = current.left.iter().position(|left| *left == partition);
        let execution = match (current.execution.take(), at) {
            (Some(execution), Some(at)) => {
                current.left.swap_remove(at);
                execution
            }
            _ => {
                let progress = std::mem::take(&mut current.progress);
                let replicas = 0..self.options.replicas;
                current.left = replicas.filter(|left| *left != partition).collect();
                Arc::new(self.begin(context, progress)?)
            }
        };
        if !current.left.is_empty() {
            current.execution = Some(Arc::clone(&execution));
        }
        Ok(execution)
    }
}

fn output_schema(input: &SchemaRef, ordered: bool) -> SchemaRef {
    if !ordered {
        return Arc::clone(input);
    }
    let sequence = Arc::new(Field::new(SEQUENCE_COLUMN, DataType::UInt64, false));
    let fields = input.fields().iter().cloned().chain([sequence]).collect::<Vec<_>>();
    Arc::new(Schema::new_with_metadata(fields, input.metadata().clone()))
}

impl DisplayAs for StreamingExchangeExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExchangeOptions { replicas, byte_budget, batch, ordered } = &self.options;
        let from = self.input.output_partitioning().partition_count();
        let byte_budget = ByteSize(*byte_budget as u64);
        let has_tokens = self.input.schema().column_with_name(TOKENS_COLUMN).is_some();
        let batching = if has_tokens { "tokens" } else { "rows" };
        let window_rows = batch.window_rows;
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(
                f,
                "StreamingExchangeExec: partitions={from} -> {replicas}, \
                 byte_budget={byte_budget}, window_rows={window_rows}, batching={batching}, \
                 ordered={ordered}"
            ),
            DisplayFormatType::TreeRender => {
                writeln!(f, "partitions={from} -> {replicas}")?;
                writeln!(f, "byte_budget={byte_budget}")?;
                writeln!(f, "window_rows={window_rows}")?;
                writeln!(f, "batching={batching}")?;
                writeln!(f, "ordered={ordered}")
            }
        }
    }
}

impl ExecutionPlan for StreamingExchangeExec {
    fn name(&self) -> &'static str {
        "StreamingExchangeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![match self.options.ordered {
            true => Distribution::SinglePartition,
            false => Distribution::UnspecifiedDistribution,
        }]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.ordering.clone().map(OrderingRequirements::from)]
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
        let (options, ordering) = (self.options.clone(), self.ordering.clone());
        let properties = Arc::new(Self::compute_properties(&input, &options));
        let metrics = ExecutionPlanMetricsSet::new();
        let current = Mutex::default();
        Ok(Arc::new(Self { input, options, ordering, properties, metrics, current }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition >= self.options.replicas {
            return internal_err!("StreamingExchangeExec has no partition {partition}");
        }
        let execution = self.execution_of(partition, &context)?;
        let metrics = ReplicaMetrics::new(&self.metrics, partition);
        let stream = Replica { execution, partition, metrics }.into_stream();
        let stream = Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream));
        Ok(make_cooperative(stream))
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
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        // Which rows a replica takes is decided at run time.
        let known = args.partition().is_none() || self.options.replicas == 1;
        Ok(Arc::new(if known {
            carry::row_statistics(&input[0], &self.schema())
        } else {
            Statistics::new_unknown(&self.schema())
        }))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
