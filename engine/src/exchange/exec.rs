//! The exchange as a plan node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytesize::ByteSize;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err, plan_err};
use datafusion::config::ConfigOptions;
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
use datafusion::physical_plan::filter_pushdown::{FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, StatisticsArgs,
};
use forebay_udf::model::BatchLimits;
use parking_lot::Mutex;

use super::budget::Budget;
use super::limits::LiveLimits;
use super::metrics::{ProducerMetrics, ReplicaMetrics};
use super::order::OrderProgress;
use super::queue::Queue;
use super::stream::{Execution, Producers, Replica};
use super::window::Sharing;
use crate::checker::Ledger;
use crate::claimed_order::in_claimed_order;
use crate::per_execution::PerExecution;
use crate::{SEQUENCE_COLUMN, SHARE_COLUMN, TOKENS_COLUMN, carry};

/// How an exchange hands rows over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeOptions {
    /// Output partitions: one per replica of the model above.
    pub replicas: usize,
    /// The most bytes that may wait in the exchange; one larger block passes alone.
    pub byte_budget: usize,
    /// That many at most if four batches, as large as they have become, are more than `byte_budget`.
    pub byte_budget_max: usize,
    /// The batches that the model above wants.
    pub batch: BatchLimits,
    /// Whether each row carries its position in the input, so that [`RestoreOrderExec`] can put
    /// the input's order back. Needs an input of one partition.
    ///
    /// [`RestoreOrderExec`]: super::RestoreOrderExec
    pub ordered: bool,
    /// Whether equal model inputs are computed once.
    pub sharing: Sharing,
    /// For how long a replica waits for rows while nothing happens below.
    pub no_progress_limit: Option<Duration>,
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
    executions: PerExecution<Execution>,
    /// For the next execution; a restorer above takes hold of it first.
    progress: Mutex<Arc<OrderProgress>>,
    /// For the next execution, if whoever computes its batches limits them.
    limits: Mutex<Option<Arc<LiveLimits>>>,
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
        Ok(Self::unchecked(input, options, ordering))
    }

    fn unchecked(
        input: Arc<dyn ExecutionPlan>,
        options: ExchangeOptions,
        ordering: Option<LexOrdering>,
    ) -> Self {
        Self {
            properties: Arc::new(Self::compute_properties(&input, &options)),
            input,
            options,
            ordering,
            metrics: ExecutionPlanMetricsSet::new(),
            executions: PerExecution::default(),
            progress: Mutex::default(),
            limits: Mutex::default(),
        }
    }

    /// What the exchange reads.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// How it hands rows over.
    pub fn options(&self) -> &ExchangeOptions {
        &self.options
    }

    /// The order that the input had when the exchange was planned.
    pub(super) fn ordering(&self) -> Option<&LexOrdering> {
        self.ordering.as_ref()
    }

    /// With the order that the exchange was planned with.
    pub(super) fn with_ordering(mut self, ordering: Option<LexOrdering>) -> Self {
        self.ordering = ordering;
        self
    }

    /// The progress that the next execution will watch. That one is new, even if the one before
    /// was never handed out as a whole.
    pub(super) fn next_progress(&self) -> Arc<OrderProgress> {
        self.executions.forget();
        Arc::clone(&self.progress.lock())
    }

    /// The next execution's batches are within these limits, whatever they are at a moment.
    pub(crate) fn limit_next(&self, limits: Arc<LiveLimits>) {
        self.executions.forget();
        *self.limits.lock() = Some(limits);
    }

    fn compute_properties(
        input: &Arc<dyn ExecutionPlan>,
        options: &ExchangeOptions,
    ) -> PlanProperties {
        let schema = output_schema(&block_schema(&input.schema(), options), options);
        PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(options.replicas),
            EmissionType::Incremental,
            input.boundedness(),
        )
        .with_evaluation_type(EvaluationType::Eager)
        .with_scheduling_type(SchedulingType::Cooperative)
    }

    fn begin(&self, context: &Arc<TaskContext>) -> Result<Execution> {
        let producers = self.input.output_partitioning().partition_count();
        let ExchangeOptions { replicas, batch, ordered, sharing, no_progress_limit, .. } =
            self.options.clone();
        let limits = self.limits.lock().take();
        let limits = limits.unwrap_or_else(|| Arc::new(LiveLimits::new(batch, 1)));
        let progress = std::mem::take(&mut *self.progress.lock());
        let reservation =
            MemoryConsumer::new("StreamingExchangeExec").register(context.memory_pool());
        let budget = Budget::new(self.options.byte_budget, reservation);
        let budget = Arc::new(budget.growing_to(self.options.byte_budget_max));
        let held = Arc::clone(&budget);
        let queue = Queue::new(producers, replicas, (limits, ordered), sharing, held, progress);
        let ledger = Ledger::new(Self::static_name(), replicas);
        let input = |partition| {
            let stream = ledger.input(self.input.execute(partition, Arc::clone(context))?);
            Ok((stream, ProducerMetrics::new(&self.metrics, partition)))
        };
        let inputs = (0..producers).map(input).collect::<Result<Vec<_>>>()?;
        Ok(Execution {
            queue: Arc::new(queue),
            budget,
            block_schema: block_schema(&self.input.schema(), &self.options),
            schema: self.schema(),
            ordered,
            sharing,
            input: Arc::clone(&self.input),
            no_progress_limit,
            ledger: Arc::clone(&ledger),
            producers: Mutex::new(Producers::Waiting(inputs)),
        })
    }
}

/// The input's columns, and the position of each row if it is to be kept.
fn block_schema(input: &SchemaRef, options: &ExchangeOptions) -> SchemaRef {
    if options.ordered {
        with_column(input, SEQUENCE_COLUMN, DataType::UInt64)
    } else {
        Arc::clone(input)
    }
}

fn output_schema(blocks: &SchemaRef, options: &ExchangeOptions) -> SchemaRef {
    match options.sharing {
        Sharing::EqualInputs => with_column(blocks, SHARE_COLUMN, DataType::UInt32),
        Sharing::None => Arc::clone(blocks),
    }
}

fn with_column(schema: &SchemaRef, name: &str, data_type: DataType) -> SchemaRef {
    let column = Arc::new(Field::new(name, data_type, false));
    let fields = schema.fields().iter().cloned().chain([column]).collect::<Vec<_>>();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

impl DisplayAs for StreamingExchangeExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExchangeOptions {
            replicas, byte_budget, byte_budget_max, batch, ordered, sharing, ..
        } = &self.options;
        let shares_equal = *sharing == Sharing::EqualInputs;
        let from = self.input.output_partitioning().partition_count();
        let mut budget = ByteSize(*byte_budget as u64).to_string();
        if byte_budget_max > byte_budget {
            budget += &format!(" to {}", ByteSize(*byte_budget_max as u64));
        }
        let has_tokens = self.input.schema().column_with_name(TOKENS_COLUMN).is_some();
        let batching = if has_tokens { "tokens" } else { "rows" };
        let window_rows = batch.window_rows;
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(
                f,
                "StreamingExchangeExec: partitions={from} -> {replicas}, \
                 byte_budget={budget}, window_rows={window_rows}, batching={batching}, \
                 share_equal_inputs={shares_equal}, ordered={ordered}"
            ),
            DisplayFormatType::TreeRender => {
                writeln!(f, "partitions={from} -> {replicas}")?;
                writeln!(f, "byte_budget={budget}")?;
                writeln!(f, "window_rows={window_rows}")?;
                writeln!(f, "batching={batching}")?;
                writeln!(f, "share_equal_inputs={shares_equal}")?;
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
        vec![if self.options.ordered {
            Distribution::SinglePartition
        } else {
            Distribution::UnspecifiedDistribution
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
        // DataFusion's rules repair distribution and order after they have replaced a child.
        Ok(Arc::new(Self::unchecked(input, self.options.clone(), self.ordering.clone())))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition >= self.options.replicas {
            return internal_err!("StreamingExchangeExec has no partition {partition}");
        }
        let begin = || self.begin(&context);
        let execution = self.executions.get(partition, self.options.replicas, &context, begin)?;
        let metrics = ReplicaMetrics::new(&self.metrics, partition);
        let ledger = Arc::clone(&execution.ledger);
        let stream = Replica::new(execution, partition, metrics).into_stream();
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

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        carry::dynamic_filters(phase, &filters, &carry::identity(&self.input.schema()), &self.input)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
