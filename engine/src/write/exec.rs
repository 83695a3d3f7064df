//! The operator that writes.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, OrderingRequirements, Partitioning, PhysicalExpr,
};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, execute_input_stream,
};
use futures::{StreamExt, stream};
use object_store::path::Path;

use super::attempt::{Attempt, Written};
use super::staging::Staging;
use super::target::Target;

/// A row per file.
static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("folder", DataType::Utf8, false),
        Field::new("path", DataType::Utf8, false),
        Field::new("rows", DataType::UInt64, false),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("stats", DataType::Utf8, true),
    ]))
});

/// Writes its input's rows to files in a staging folder, of which nobody else knows.
///
/// - rows: one per file, when all of a partition's files are complete; files of a partition are in the
///   order of its rows
/// - partitions: the input's; one if an order is to be kept
/// - memory: what DataFusion's sinks hold, which reserve it, of up to 64 open files (one, but for
///   partition columns), and a batch in front of each
/// - cancel, errors: the partition's files are removed
#[derive(Clone, Debug)]
pub struct WriteExec {
    input: Arc<dyn ExecutionPlan>,
    target: Arc<Target>,
    /// Known when the write begins.
    staging: Option<Staging>,
    is_direct: bool,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl WriteExec {
    /// Writes the rows of `input`.
    pub fn new(input: Arc<dyn ExecutionPlan>, target: Arc<Target>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&SCHEMA)),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        let metrics = ExecutionPlanMetricsSet::new();
        let properties = Arc::new(properties);
        Self { input, target, staging: None, is_direct: false, properties, metrics }
    }

    /// The same, in this staging folder.
    pub(super) fn with_staging(self, staging: Option<Staging>) -> Self {
        Self { staging, ..self }
    }

    /// The same where other cores have other parts of the same rows: a file is not written by several of them then, and row
    /// groups of Parquet files are small, as each writer has one in memory.
    #[must_use]
    pub fn beside_others(&self) -> Self {
        Self { target: Arc::new(self.target.beside_others()), ..self.clone() }
    }

    /// The same, which on a cluster is part of the tasks that make its rows, or is not: then its tasks have rows
    /// for a file each, from blocks.
    #[must_use]
    pub fn with_direct(self, is_direct: bool) -> Self {
        Self { is_direct, ..self }
    }

    /// Whether it is.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The rows.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What is written.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub(super) fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }
}

impl DisplayAs for WriteExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "WriteExec: format={}", self.target.format.name())?;
                let columns = &self.target.config.table_partition_cols;
                if !columns.is_empty() {
                    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
                    write!(f, ", partitioned_by=[{}]", names.join(", "))?;
                }
                if self.is_direct {
                    f.write_str(", direct=true")?;
                }
                Ok(())
            }
            DisplayFormatType::TreeRender => writeln!(f, "{}", self.target.format.name()),
        }
    }
}

impl ExecutionPlan for WriteExec {
    fn name(&self) -> &'static str {
        "WriteExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        let is_one = self.target.order.is_some() || self.target.is_file();
        InputDistributionRequirements::new(vec![match is_one {
            true => Distribution::SinglePartition,
            false => Distribution::UnspecifiedDistribution,
        }])
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.target.order.clone().map(OrderingRequirements::from)]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
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
            Ok([input]) => {
                let staging = self.staging.clone();
                let metrics = self.metrics.clone();
                let write = Self::new(input, Arc::clone(&self.target)).with_staging(staging);
                Ok(Arc::new(Self { metrics, is_direct: self.is_direct, ..write }))
            }
            Err(children) => internal_err!("WriteExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let staging = self.staging.clone().ok_or_else(|| {
            internal_datafusion_err!("WriteExec runs below a CommitExec, which says where")
        })?;
        // As DataFusion's sinks have them: without NULL where the table has none.
        let schema = Arc::clone(self.target.schema());
        let input = Arc::clone(&self.input);
        let input = execute_input_stream(input, schema, partition, Arc::clone(&context))?;
        let target = match self.input.output_partitioning().partition_count() {
            1 => Arc::clone(&self.target),
            _ => self.beside_others().target,
        };
        let metrics = self.metrics.clone();
        let written = stream::once(async move {
            let written = write(input, target, staging, context).await?;
            let sum = |of: fn(&Written) -> u64| written.iter().map(of).sum::<u64>() as usize;
            let count = |name| MetricBuilder::new(&metrics).counter(name, partition);
            count("rows_written").add(sum(|file| file.rows));
            count("bytes_written").add(sum(|file| file.bytes));
            count("files").add(written.len());
            batch(&written)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&SCHEMA), written)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

async fn write(
    mut input: SendableRecordBatchStream,
    target: Arc<Target>,
    staging: Staging,
    context: Arc<TaskContext>,
) -> Result<Vec<Written>> {
    let name = format!("writing '{}'", target.name());
    let mut attempt = Attempt::begin(target, &staging, context).await?;
    while let Some(batch) = input.next().await {
        let written = attempt.write(batch?).await;
        written.map_err(|error| error.context(name.clone()))?;
    }
    attempt.finish().await.map_err(|error| error.context(name))
}

/// Runs a plan of writes, which are the session's in this staging folder; gives back their files.
pub(super) async fn written_by(
    plan: Arc<dyn ExecutionPlan>,
    staging: &Staging,
    context: Arc<TaskContext>,
) -> Result<Vec<Written>> {
    let mut rows = placed(plan, staging)?.execute(0, context)?;
    let mut written = vec![];
    while let Some(batch) = rows.next().await {
        written.extend(files(&batch?)?);
    }
    Ok(written)
}

/// The plan with a staging folder for what it writes.
fn placed(plan: Arc<dyn ExecutionPlan>, staging: &Staging) -> Result<Arc<dyn ExecutionPlan>> {
    let place = |node: Arc<dyn ExecutionPlan>| {
        Ok(match node.downcast_ref::<WriteExec>() {
            Some(write) => {
                let placed = write.clone().with_staging(Some(staging.clone()));
                Transformed::new(Arc::new(placed) as _, true, TreeNodeRecursion::Jump)
            }
            None => Transformed::no(node),
        })
    };
    plan.transform_down(place).data()
}

fn batch(written: &[Written]) -> Result<RecordBatch> {
    let texts = |of: fn(&Written) -> &Path| -> ArrayRef {
        Arc::new(written.iter().map(|file| Some(of(file).as_ref())).collect::<StringArray>())
    };
    let numbers = |of: fn(&Written) -> u64| -> ArrayRef {
        Arc::new(written.iter().map(of).collect::<UInt64Array>())
    };
    let columns = vec![
        texts(|file| &file.folder),
        texts(|file| &file.path),
        numbers(|file| file.rows),
        numbers(|file| file.bytes),
        Arc::new(written.iter().map(|file| file.stats.as_deref()).collect::<StringArray>()),
    ];
    Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
}

/// The files of a batch of rows.
fn files(batch: &RecordBatch) -> Result<Vec<Written>> {
    let unexpected =
        || internal_datafusion_err!("rows of files have other columns than {SCHEMA:?}");
    let columns = <&[ArrayRef; 5]>::try_from(batch.columns()).map_err(|_| unexpected())?;
    let [folders, paths, rows, bytes, stats] = columns;
    let text = |column: &'_ ArrayRef, at: usize| -> Result<Option<String>> {
        let texts = column.as_string_opt::<i32>().ok_or_else(unexpected)?;
        Ok((!texts.is_null(at)).then(|| texts.value(at).to_owned()))
    };
    let path = |column: &'_ ArrayRef, at: usize| -> Result<Path> {
        let path = text(column, at)?.ok_or_else(unexpected)?;
        Path::parse(path).map_err(|error| exec_datafusion_err!("{error}"))
    };
    let number = |column: &'_ ArrayRef, at: usize| -> Result<u64> {
        Ok(column.as_primitive_opt::<UInt64Type>().ok_or_else(unexpected)?.value(at))
    };
    let file = |at| {
        Ok(Written {
            folder: path(folders, at)?,
            path: path(paths, at)?,
            rows: number(rows, at)?,
            bytes: number(bytes, at)?,
            stats: text(stats, at)?,
        })
    };
    (0..batch.num_rows()).map(file).collect()
}
