//! A model's forward pass as a plan node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, EmissionType, SchedulingType};
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties, StatisticsArgs,
};
use forebay_udf::model::{
    BatchAdvice, BatchLimits, HIDDEN_PREFIX, ModelDeclaration, OnError, SearchRange,
};
use forebay_udf::runtime::length_multiple;
use forebay_udf::transform::output_fields;

use super::metrics::InferenceMetrics;
use super::setup::{Execution, Setup};
use super::stream::Inference;
use crate::carry::{self, Sources};
use crate::checker::Ledger;
use crate::claimed_order::in_claimed_order;
use crate::device::{Batching, Devices, Placement, batch_range};
use crate::exchange::{LiveLimits, StreamingExchangeExec};
use crate::per_execution::PerExecution;
use crate::{ROW_ERROR_COLUMN, SEQUENCE_COLUMN, SHARE_COLUMN};

/// Runs a model over its prepared columns; see the [module](super).
#[derive(Debug)]
pub struct InferenceExec {
    input: Arc<dyn ExecutionPlan>,
    model: Arc<ModelDeclaration>,
    /// Names of the columns that it adds; `None` for outputs that nobody needs.
    output_names: Vec<Option<String>>,
    /// Partition `i` runs on device `i` modulo their number.
    placement: Placement,
    /// Where the prepared columns are in the input.
    prepared: Vec<usize>,
    no_progress_limit: Option<Duration>,
    /// Which input column each output column is.
    sources: Sources,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    executions: PerExecution<Execution>,
}

/// The columns of an [`InferenceExec`] over `input`: the input's without the prepared ones, then
/// the model's output columns that have a name, then the sequence number if the input has one.
///
/// # Errors
/// If the names are not as many as the model's output columns.
pub fn output_schema(
    input: &Schema,
    model: &ModelDeclaration,
    output_names: &[Option<String>],
) -> Result<SchemaRef> {
    columns(input, model, output_names).map(|(schema, _)| schema)
}

fn columns(
    input: &Schema,
    model: &ModelDeclaration,
    output_names: &[Option<String>],
) -> Result<(SchemaRef, Sources)> {
    let outputs = model.output_columns();
    if output_names.len() != outputs.len() {
        return plan_err!(
            "model '{}' has {} output columns, found {} names for them",
            model.name,
            outputs.len(),
            output_names.len()
        );
    }
    let mut columns: Vec<(FieldRef, Option<usize>)> = Vec::new();
    let mut sequence = None;
    for (at, field) in input.fields().iter().enumerate() {
        if field.name() == SEQUENCE_COLUMN {
            sequence = Some((Arc::clone(field), Some(at)));
        } else if !field.name().starts_with(HIDDEN_PREFIX) {
            columns.push((Arc::clone(field), Some(at)));
        }
    }
    let output = |(name, field): (&Option<String>, &FieldRef)| {
        Some((Arc::new(Field::new(name.as_ref()?, field.data_type().clone(), true)), None))
    };
    columns.extend(output_names.iter().zip(&outputs).filter_map(output));
    columns.extend(sequence);
    let (fields, sources): (Vec<FieldRef>, Sources) = columns.into_iter().unzip();
    Ok((Arc::new(Schema::new_with_metadata(fields, input.metadata().clone())), sources))
}

impl InferenceExec {
    /// Runs `model` over an input that has its prepared columns.
    ///
    /// # Errors
    /// If a prepared column is missing, or names and outputs differ in number.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        model: Arc<ModelDeclaration>,
        output_names: Vec<Option<String>>,
        placement: Placement,
    ) -> Result<Self> {
        if placement.devices.is_empty() {
            return internal_err!("InferenceExec needs at least one device");
        }
        let below = input.schema();
        let find = |field: FieldRef| match below.column_with_name(field.name()) {
            Some((at, found)) if found.data_type() == field.data_type() => Ok(at),
            _ => internal_err!(
                "InferenceExec of model '{}' needs column {} of type {}; put a TransformExec \
                 below it",
                model.name,
                field.name(),
                field.data_type()
            ),
        };
        let prepared = output_fields(&model).into_iter().map(find).collect::<Result<_>>()?;
        let (schema, sources) = columns(&below, &model, &output_names)?;
        let properties = Arc::new(Self::compute_properties(&input, &schema, &sources));
        Ok(Self {
            input,
            model,
            output_names,
            placement,
            prepared,
            no_progress_limit: None,
            sources,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
            executions: PerExecution::default(),
        })
    }

    /// Fails when a batch takes longer than this.
    #[must_use]
    pub fn with_no_progress_limit(mut self, limit: Option<Duration>) -> Self {
        self.no_progress_limit = limit;
        self
    }

    /// The same on these devices: a plan that travels is placed where it arrives.
    ///
    /// # Errors
    /// None that the constructor did not find already.
    pub fn try_placed(&self, placement: Placement) -> Result<Self> {
        let (input, model) = (Arc::clone(&self.input), Arc::clone(&self.model));
        let inference = Self::try_new(input, model, self.output_names.clone(), placement)?;
        Ok(inference.with_no_progress_limit(self.no_progress_limit))
    }

    /// The operator below, which has the prepared columns: an exchange, or the transform itself.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The model that it runs, with the options of this call.
    pub fn model(&self) -> &Arc<ModelDeclaration> {
        &self.model
    }

    /// Names of the columns that it adds; `None` for outputs that nobody needs.
    pub fn output_names(&self) -> &[Option<String>] {
        &self.output_names
    }

    /// The device of each replica; partition `i` runs on device `i` modulo their number.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether the size of its batches is looked for while they are computed.
    pub fn learns_batches(&self) -> bool {
        self.batch_range().is_some()
    }

    fn batch_range(&self) -> Option<SearchRange> {
        batch_range(&self.model, *self.placement.devices.first()?)
    }

    /// The limits of the first batches, as far as a plan knows them.
    pub fn planned_limits(&self) -> BatchLimits {
        match self.batch_range() {
            Some(range) => self.model.searched_limits(range, BatchAdvice::default()),
            None => self.model.batch.clone(),
        }
    }

    /// For how long one batch may take.
    pub fn no_progress_limit(&self) -> Option<Duration> {
        self.no_progress_limit
    }

    /// For each output column the input column that it is.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    fn compute_properties(
        input: &Arc<dyn ExecutionPlan>,
        schema: &SchemaRef,
        sources: &Sources,
    ) -> PlanProperties {
        PlanProperties::new(
            carry::equivalences(input.equivalence_properties(), sources, schema),
            carry::partitioning(input, sources, schema),
            EmissionType::Incremental,
            input.boundedness(),
        )
        .with_evaluation_type(input.properties().evaluation_type)
        .with_scheduling_type(SchedulingType::Cooperative)
    }

    /// An execution, whose batches the exchange below forms as large as they should be there and then.
    fn begin(&self, partitions: usize, batching: &Batching) -> Execution {
        let multiple = length_multiple(&self.model, batching.device());
        let limits = Arc::new(LiveLimits::new(batching.limits(), multiple));
        if let Some(exchange) = self.input.downcast_ref::<StreamingExchangeExec>() {
            exchange.limit_next(Arc::clone(&limits));
        }
        Execution::new(partitions, limits)
    }

    /// Key and value of what `EXPLAIN` shows.
    fn explain(&self) -> Vec<(&'static str, String)> {
        let model = &self.model;
        let resources = &model.resources;
        let mut pairs = vec![
            ("model", format!("{}@{}", model.name, model.version)),
            ("device", self.placement.to_string()),
            ("replicas", self.placement.replicas().to_string()),
            ("cpus", resources.cpus.to_string()),
            ("gpus", resources.gpus.to_string()),
        ];
        let is_learned = self.learns_batches();
        let (batch, caps) = (&model.batch, &model.batch_caps);
        let (rows, tokens, bytes) = match is_learned {
            true => (caps.rows, caps.tokens, caps.bytes),
            false => (Some(batch.max_rows), batch.max_tokens, batch.max_bytes),
        };
        pairs.extend(is_learned.then(|| ("batch", "learned".to_owned())));
        pairs.extend(rows.map(|max| ("max_batch_rows", max.to_string())));
        pairs.extend(tokens.map(|max| ("max_batch_tokens", max.to_string())));
        pairs.extend(bytes.map(|max| ("max_batch_bytes", max.to_string())));
        if model.on_error != OnError::Fail {
            pairs.push(("on_error", model.on_error.to_string()));
        }
        let outputs: Vec<&str> = self.output_names.iter().flatten().map(String::as_str).collect();
        pairs.push(("outputs", format!("[{}]", outputs.join(", "))));
        pairs
    }
}

impl DisplayAs for InferenceExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.explain().into_iter().map(|(key, value)| format!("{key}={value}"));
        let pairs: Vec<String> = pairs.collect();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "InferenceExec: {}", pairs.join(", "))
            }
            DisplayFormatType::TreeRender => {
                pairs.iter().try_for_each(|pair| writeln!(f, "{pair}"))
            }
        }
    }
}

impl ExecutionPlan for InferenceExec {
    fn name(&self) -> &'static str {
        "InferenceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    /// `false` although it does, partition by partition: DataFusion would otherwise push sorts
    /// below, and take columns for the input's by position, where the prepared ones were.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false]
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
        let (model, placement) = (Arc::clone(&self.model), self.placement.clone());
        let inference = Self::try_new(input, model, self.output_names.clone(), placement)?;
        Ok(Arc::new(inference.with_no_progress_limit(self.no_progress_limit)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let partitions = self.properties.partitioning.partition_count();
        let devices = Devices::from_context(&context)?;
        let device = self.placement.devices[partition % self.placement.devices.len()];
        let batching = devices.batching(&self.model, device);
        let begin = || Ok(self.begin(partitions, &batching));
        let execution = self.executions.get(partition, partitions, &context, begin)?;
        let column = |name: &str| self.input.schema().column_with_name(name).map(|(at, _)| at);
        let setup = Setup {
            devices,
            env: context.runtime_env(),
            model: Arc::clone(&self.model),
            device,
            batching,
            partition,
            no_progress_limit: self.no_progress_limit,
            prepared: self.prepared.clone(),
            groups: column(SHARE_COLUMN),
            row_errors: column(ROW_ERROR_COLUMN),
            execution,
            metrics: self.metrics.clone(),
            sources: self.sources.clone(),
            is_output_kept: self.output_names.iter().map(Option::is_some).collect(),
            schema: self.schema(),
        };
        let ledger = Ledger::new(Self::static_name(), 1);
        let input = ledger.input(self.input.execute(partition, context)?);
        let metrics = InferenceMetrics::new(&self.metrics, partition);
        let stream = Inference::new(setup, input, metrics).into_stream();
        let stream = Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream));
        Ok(make_cooperative(in_claimed_order(self, ledger.output(stream))))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(
        &self,
        input: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let rows = carry::row_statistics(&input[0], &self.schema());
        // A query that knows their number beforehand would not run the model.
        Ok(Arc::new(if self.model.counts_its_failures() { rows.to_inexact() } else { rows }))
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        if self.model.needs_its_rows() {
            let none = ChildFilterDescription::all_unsupported(&filters);
            return Ok(FilterDescription::new().with_child(none));
        }
        carry::dynamic_filters(phase, &filters, &self.sources, &self.input)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
