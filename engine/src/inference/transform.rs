//! A model's transform as an operator: appends the prepared columns.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::{collect_columns, conjunction};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterPushdownResult, ChildPushdownResult, FilterDescription, FilterPushdownPhase,
    FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricsSet,
    RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildStats, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, StatisticsArgs,
};
use forebay_udf::ErrorClass;
use forebay_udf::model::{ModelDeclaration, OnError, RowError, TransformKind, error_field};
use forebay_udf::transform::{Transform, Transformed, output_fields};
use futures::StreamExt;

use super::batch::{join, null_outputs, slice};
use super::bisect::Bisection;
use crate::ROW_ERROR_COLUMN;
use crate::carry;
use crate::checker::Ledger;
use crate::claimed_order::in_claimed_order;
use crate::device::Devices;
use crate::error::EngineError;

/// Rows that are transformed between two points where other tasks may run.
const SLICE_ROWS: usize = 1024;
/// The same for images, which take longer and more: 16 of 224 pixels are 2 MiB.
const IMAGE_SLICE_ROWS: usize = 16;

/// Appends a model's prepared columns (token ids and the like) to its input. It drops none, though
/// nobody may need the texts any more: DataFusion takes an operator's columns for its input's by
/// position where the operator keeps their order, so that is for a projection above.
///
/// - Rows, order, partitions: the input's; batches are cut to at most 1,024 rows, of images
///   to 16.
/// - Memory: one batch.
/// - Errors: end the query, unless the model's `on_error` says otherwise. Then the row at fault is
///   found, its prepared columns are NULL, and [`ROW_ERROR_COLUMN`] says why.
/// - Loads the model's transform when the first row is asked for, never its weights.
#[derive(Clone, Debug)]
pub struct TransformExec {
    input: Arc<dyn ExecutionPlan>,
    model: Arc<ModelDeclaration>,
    /// The model's inputs, in the order of its signature.
    args: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl TransformExec {
    /// The transform of `model`, applied to `args` over `input`.
    ///
    /// # Errors
    /// If the arguments are not as many as the model's inputs, or not over columns of `input`.
    pub fn try_new(
        input: Arc<dyn ExecutionPlan>,
        model: Arc<ModelDeclaration>,
        args: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Self> {
        let wanted = model.signature.inputs.len();
        if args.len() != wanted {
            return plan_err!(
                "model '{}' wants {wanted} input columns, found {}",
                model.name,
                args.len()
            );
        }
        args.iter().try_for_each(|arg| arg.data_type(&input.schema()).map(drop))?;
        let properties = Arc::new(Self::compute_properties(&input, &model));
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Self { input, model, args, properties, metrics })
    }

    /// The operator below, whose columns the arguments are over.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Whose transform it is.
    pub fn model(&self) -> &Arc<ModelDeclaration> {
        &self.model
    }

    /// The model's inputs in the order of its signature, each over columns of the operator below.
    pub fn args(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.args
    }

    /// Where texts that are cut are counted; other inputs are never cut.
    fn counts_truncated(&self, partition: usize) -> Option<Count> {
        let is_text = matches!(self.model.transform, TransformKind::Tokenize { .. });
        let rows = MetricBuilder::new(&self.metrics).with_category(MetricCategory::Rows);
        is_text.then(|| rows.counter("truncated", partition))
    }

    fn compute_properties(
        input: &Arc<dyn ExecutionPlan>,
        model: &ModelDeclaration,
    ) -> PlanProperties {
        let below = input.schema();
        let fields = below.fields().iter().cloned().chain(output_fields(model));
        let fields: Vec<_> = fields.chain(row_error_field(model)).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, below.metadata().clone()));
        let sources = carry::identity(&below);
        PlanProperties::clone(input.properties())
            .with_eq_properties(carry::equivalences(
                input.properties().equivalence_properties(),
                &sources,
                &schema,
            ))
            .with_partitioning(carry::partitioning(input, &sources, &schema))
    }
}

impl DisplayAs for TransformExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = format!("model={}@{}", self.model.name, self.model.version);
        let args: Vec<String> = self.args.iter().map(ToString::to_string).collect();
        let pairs = [model, format!("args=[{}]", args.join(", "))];
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "TransformExec: {}", pairs.join(", "))
            }
            DisplayFormatType::TreeRender => {
                pairs.iter().try_for_each(|pair| writeln!(f, "{pair}"))
            }
        }
    }
}

impl ExecutionPlan for TransformExec {
    fn name(&self) -> &'static str {
        "TransformExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut recursion = TreeNodeRecursion::Continue;
        for arg in &self.args {
            recursion = f(arg)?;
            if recursion == TreeNodeRecursion::Stop {
                break;
            }
        }
        Ok(recursion)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = carry::only_child(children)?;
        let (model, args) = (Arc::clone(&self.model), self.args.clone());
        Ok(Arc::new(Self::try_new(input, model, args)?))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let devices = Devices::from_context(&context)?;
        let ledger = Ledger::new(Self::static_name(), 1);
        let transformer = Transformer {
            input: ledger.input(self.input.execute(partition, Arc::clone(&context))?),
            current: None,
            transform: None,
            model: Arc::clone(&self.model),
            args: self.args.clone(),
            schema: self.schema(),
            devices,
            context,
            baseline: BaselineMetrics::new(&self.metrics, partition),
            truncated: self.counts_truncated(partition),
        };
        let stream = futures::stream::try_unfold(transformer, |mut transformer| async move {
            Ok(transformer.next().await?.map(|batch| (batch, transformer)))
        });
        let stream = Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream));
        Ok(in_claimed_order(self, ledger.output(stream)))
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
        Ok(Arc::new(carry::row_statistics(&input[0], &self.schema())))
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        carry::dynamic_filters(phase, &filters, &carry::identity(&self.input.schema()), &self.input)
    }

    /// A dynamic filter that no operator below applies row by row is applied here: a row that a join
    /// above will drop need not be transformed, let alone inferred.
    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let columns = self.input.schema().fields().len();
        let is_left = |result: &&ChildFilterPushdownResult| {
            phase == FilterPushdownPhase::Post
                && matches!(result.any(), PushedDown::No)
                && collect_columns(&result.filter).iter().all(|c| c.index() < columns)
        };
        let left = result.parent_filters.iter().filter(is_left);
        let left: Vec<_> = left.map(|result| Arc::clone(&result.filter)).collect();
        let answered = FilterPushdownPropagation::if_all(result);
        if left.is_empty() {
            return Ok(answered);
        }
        let filter = FilterExec::try_new(conjunction(left), Arc::clone(&self.input))?;
        let (model, args) = (Arc::clone(&self.model), self.args.clone());
        let filtered = Self::try_new(Arc::new(filter), model, args)?;
        Ok(answered.with_updated_node(Arc::new(filtered)))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}

/// The column of errors, if rows may fail.
fn row_error_field(model: &ModelDeclaration) -> Option<FieldRef> {
    let field = error_field().as_ref().clone().with_name(ROW_ERROR_COLUMN);
    (model.on_error != OnError::Fail).then(|| Arc::new(field))
}

struct Transformer {
    input: SendableRecordBatchStream,
    /// What is left of the current batch, and the model's inputs for it.
    current: Option<(RecordBatch, Vec<ArrayRef>)>,
    transform: Option<Arc<dyn Transform>>,
    model: Arc<ModelDeclaration>,
    args: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
    devices: Arc<Devices>,
    context: Arc<TaskContext>,
    baseline: BaselineMetrics,
    /// Texts that were longer than the model takes.
    truncated: Option<Count>,
}

impl Transformer {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let transform = match &self.transform {
            Some(transform) => Arc::clone(transform),
            None => {
                let env = self.context.runtime_env();
                let transform = self.devices.transform(&self.model, &env).await?;
                Arc::clone(self.transform.insert(transform))
            }
        };
        loop {
            if let Some((batch, inputs)) = self.current.take() {
                tokio::task::coop::consume_budget().await;
                return self.apply(&*transform, batch, inputs).map(Some);
            }
            let Some(batch) = self.input.next().await.transpose()? else { return Ok(None) };
            if batch.num_rows() > 0 {
                let inputs = self.evaluate(&batch)?;
                self.current = Some((batch, inputs));
            }
        }
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let _timer = self.baseline.elapsed_compute().timer();
        let rows = batch.num_rows();
        self.args.iter().map(|arg| arg.evaluate(batch)?.into_array(rows)).collect()
    }

    /// Transforms the next slice, and keeps the rest.
    fn apply(
        &mut self,
        transform: &dyn Transform,
        batch: RecordBatch,
        inputs: Vec<ArrayRef>,
    ) -> Result<RecordBatch> {
        let _timer = self.baseline.elapsed_compute().timer();
        let rows = batch.num_rows().min(slice_rows(&self.model));
        let rest = batch.num_rows() - rows;
        let cut = |start, rows| -> Vec<ArrayRef> {
            inputs.iter().map(|input| input.slice(start, rows)).collect()
        };
        let prepared = match self.model.on_error {
            OnError::Fail => transform.apply(&cut(0, rows)).map_err(EngineError::from)?,
            OnError::Null | OnError::Route => apply_rows(transform, &cut(0, rows), rows)?,
        };
        if let Some(counter) = &self.truncated {
            counter.add(prepared.truncated);
        }
        if rest > 0 {
            self.current = Some((batch.slice(rows, rest), cut(rows, rest)));
        }
        let columns =
            batch.slice(0, rows).columns().iter().cloned().chain(prepared.columns).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        Ok(batch.record_output(&self.baseline))
    }
}

/// How many rows are transformed at once.
fn slice_rows(model: &ModelDeclaration) -> usize {
    match model.transform {
        TransformKind::Image { .. } => IMAGE_SLICE_ROWS,
        TransformKind::Tokenize { .. } | TransformKind::Tensor => SLICE_ROWS,
    }
}

/// The prepared columns and the column of errors. Rows that cannot be transformed are found by
/// halving.
fn apply_rows(
    transform: &dyn Transform,
    inputs: &[ArrayRef],
    rows: usize,
) -> Result<Transformed, EngineError> {
    let (mut parts, mut errors, mut truncated) = (Vec::new(), vec![None; rows], 0);
    let mut bisection = Bisection::of(rows);
    while let Some((start, count)) = bisection.next() {
        match transform.apply(&slice(inputs, start, count)) {
            Ok(prepared) => {
                parts.push(prepared.columns);
                truncated += prepared.truncated;
            }
            Err(error) if error.class() != ErrorClass::Data => return Err(error.into()),
            Err(_) if bisection.halve((start, count)) => {}
            Err(error) => {
                errors[start] = Some(RowError::new(&error, 1));
                parts.push(null_outputs(&transform.output_fields(), count));
            }
        }
    }
    let mut columns = join(parts)?;
    columns.push(RowError::column(&errors));
    Ok(Transformed { columns, truncated })
}
