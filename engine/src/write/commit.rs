//! The operator that makes a write visible.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{Distribution, EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, EvaluationType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Handle;

use super::attempt::Written;
use super::delta_commit;
use super::exec::{WriteExec, files};
use super::publish::{Move, Publication, PublishError, publish};
use super::staging::{Staging, abandon};
use super::target::Target;
use crate::delta::Transaction;

/// Makes visible what the [`WriteExec`]s below have written, when all of them have ended well.
///
/// - rows: one, with the number of rows that were written
/// - memory: a name for each file
/// - cancel, errors: nothing has become visible, and what was written is removed; a commit that has begun
///   is not canceled, and an error after it has been decided says so
#[derive(Clone, Debug)]
pub struct CommitExec {
    input: Arc<dyn ExecutionPlan>,
    target: Arc<Target>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl CommitExec {
    /// Commits what `input` writes.
    pub fn new(input: Arc<dyn ExecutionPlan>, target: Arc<Target>) -> Self {
        let count = Field::new("count", DataType::UInt64, false);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::new(Schema::new(vec![count]))),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        let properties = Arc::new(properties.with_evaluation_type(EvaluationType::Eager));
        Self { input, target, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What gives a row per file.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// What is written.
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }
}

impl DisplayAs for CommitExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delta = self.target.delta.as_ref().map(|write| write.overwrites);
        let what = match (self.target.is_file(), self.target.is_new, delta) {
            (_, _, Some(true)) => "Delta table, overwritten",
            (_, _, Some(false)) => "Delta table",
            (true, _, None) => "file",
            (false, true, None) => "new folder",
            (false, false, None) => "folder",
        };
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "CommitExec: {what}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "{what}"),
        }
    }
}

impl ExecutionPlan for CommitExec {
    fn name(&self) -> &'static str {
        "CommitExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        InputDistributionRequirements::new(vec![Distribution::SinglePartition])
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
                let metrics = self.metrics.clone();
                Ok(Arc::new(Self { metrics, ..Self::new(input, Arc::clone(&self.target)) }))
            }
            Err(children) => internal_err!("CommitExec takes one input, found {}", children.len()),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("CommitExec has one partition, asked for {partition}");
        }
        let (commit, schema) = (self.clone(), self.schema());
        let rows = stream::once(async move {
            let rows = commit.run(context).await?;
            let count: ArrayRef = Arc::new(UInt64Array::from(vec![rows]));
            Ok(RecordBatch::try_new(commit.schema(), vec![count])?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

impl CommitExec {
    async fn run(&self, context: Arc<TaskContext>) -> Result<u64> {
        let write = Write::begin(Arc::clone(&self.target), &context).await?;
        let written = self.written(&write, context).await;
        let written = match written {
            Ok(written) => written,
            Err(error) => return Err(write.given_up(error).await),
        };
        let sum = |of: fn(&Written) -> u64| written.iter().map(of).sum::<u64>();
        let (rows, bytes, files) = (sum(|file| file.rows), sum(|file| file.bytes), written.len());
        // It comes to its end even if nobody waits for that any more: a part of it would be seen.
        let commit = Handle::current().spawn(write.commit(written));
        commit.await.map_err(|error| DataFusionError::External(Box::new(error)))??;
        let count = |name| MetricBuilder::new(&self.metrics).counter(name, 0);
        count("rows_written").add(rows as usize);
        count("bytes_written").add(bytes as usize);
        count("files").add(files);
        Ok(rows)
    }

    /// All files that count.
    async fn written(&self, write: &Write, context: Arc<TaskContext>) -> Result<Vec<Written>> {
        let mut rows = placed(Arc::clone(&self.input), &write.staging)?.execute(0, context)?;
        let mut written = vec![];
        while let Some(batch) = rows.next().await {
            written.extend(files(&batch?)?);
        }
        // What is written anew has its columns even if it has no row.
        if written.is_empty() && self.target.is_new && self.target.partitions()?.is_none() {
            written.push(write.empty.clone());
        }
        Ok(written)
    }
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

/// A write that has begun. Dropped before its commit, it removes what it has written.
struct Write {
    target: Arc<Target>,
    store: Arc<dyn ObjectStore>,
    staging: Staging,
    publication: Publication,
    /// Of a Delta table, whose log makes files visible.
    transaction: Option<Transaction>,
    empty: Written,
    _lease: SpawnedTask<()>,
    is_over: bool,
}

impl Write {
    /// Opens a staging folder, and finds out whether files can be written there.
    ///
    /// # Errors
    /// Whatever would keep the write from succeeding, as far as it can be known.
    async fn begin(target: Arc<Target>, context: &Arc<TaskContext>) -> Result<Self> {
        let cannot = format!("'{}' cannot be written", target.name());
        let begun = Self::try_begin(target, context).await;
        begun.map_err(|error| error.context(cannot))
    }

    async fn try_begin(target: Arc<Target>, context: &Arc<TaskContext>) -> Result<Self> {
        target.partitions()?;
        let store = context.runtime_env().object_store(target.store())?;
        let publication = publication(&target, store.as_ref()).await?;
        let is_local = target.is_local();
        let staging = match &publication {
            Publication::File(name) | Publication::Folder(name) => {
                Staging::new_in(&name.parent().unwrap_or_default(), is_local)
            }
            Publication::Into(folder) => Staging::new_in(folder, is_local),
        };
        let transaction = delta_commit::begin(&target, &staging, context).await?;
        let path = staging.empty();
        let empty = Written { folder: Path::default(), path, rows: 0, bytes: 0, stats: None };
        let _lease = staging.keep(Arc::clone(&store));
        let is_over = false;
        let mut write =
            Self { target, store, staging, publication, transaction, empty, _lease, is_over };
        write.staging.renew(write.store.as_ref()).await?;
        // As it will be done with the rows: where, in this format, with these columns.
        let nothing = EmptyExec::new(write.target.file_schema()).execute(0, Arc::clone(context))?;
        write.target.sink_to(&write.empty.path)?.write_all(nothing, context).await?;
        write.empty.bytes = write.store.head(&write.empty.path).await?.size;
        Ok(write)
    }

    async fn commit(mut self, written: Vec<Written>) -> Result<()> {
        // What is in the staging folder may be needed to complete it, whatever becomes of this process.
        self.is_over = true;
        match self.published(written).await {
            Ok(()) => {
                // The commit stands, whatever is left behind; `forebay gc` finds it.
                self.staging.remove(&self.store).await.ok();
                Ok(())
            }
            Err(PublishError::Undone(error)) => Err(self.given_up(error).await),
            Err(PublishError::Unknown(error)) => {
                // Whatever may count lies outside of it.
                self.staging.remove(&self.store).await.ok();
                Err(error)
            }
            Err(PublishError::Halfway(error)) => {
                let (name, folder) = (self.target.name().to_owned(), self.staging.parent());
                Err(error.context(format!(
                    "the write to '{name}' had been decided when the store refused to go on, and a part of \
                     its files may be in '{folder}', which has no _SUCCESS; `forebay gc` completes it"
                )))
            }
        }
    }

    async fn published(&self, written: Vec<Written>) -> Result<(), PublishError> {
        if !self.staging.is_leased(self.store.as_ref()).await? {
            let folder = self.staging.folder();
            return Err(exec_datafusion_err!(
                "the staging folder '{folder}' was removed before the commit, by `forebay gc` with too low an \
                 age or by hand; run the statement again"
            )
            .into());
        }
        let moves = self.moves(&written);
        if let Some(transaction) = &self.transaction {
            let (store, folder) = (self.store.as_ref(), self.staging.parent());
            return delta_commit::commit(store, &folder, transaction, &written, &moves).await;
        }
        publish(self.store.as_ref(), &self.staging, &self.publication, &moves).await
    }

    /// Files are numbered in the order in which they came: that of their rows, if they have one.
    fn moves(&self, written: &[Written]) -> Vec<Move> {
        let (id, extension) = (self.staging.id(), self.target.extension());
        let name = |(number, file): (usize, &Written)| Move {
            from: file.path.clone(),
            name: file.folder.clone().join(format!("part-{number:05}-{id}.{extension}")),
        };
        written.iter().enumerate().map(name).collect()
    }

    /// Removes what was written, and gives back why.
    async fn given_up(mut self, error: DataFusionError) -> DataFusionError {
        self.is_over = self.staging.remove(&self.store).await.is_ok();
        error
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if !self.is_over {
            let folder = self.staging.folder().clone();
            abandon(Arc::clone(&self.store), folder, self.staging.is_local());
        }
    }
}

/// How a target becomes visible.
///
/// # Errors
/// If it is to be new, and there are files.
async fn publication(target: &Target, store: &dyn ObjectStore) -> Result<Publication> {
    let place = target.place().clone();
    let on_disk = std::path::Path::new("/").join(place.as_ref());
    if target.is_file() {
        if target.is_local() && on_disk.is_dir() {
            return exec_err!("it is a folder; end its name with '/' to write files into it");
        }
        return Ok(Publication::File(place));
    }
    if !target.is_new {
        return Ok(Publication::Into(place));
    }
    let mut found = store.list(Some(&place));
    while let Some(file) = found.next().await.transpose()? {
        let name = file.location.as_ref()[place.as_ref().len()..].trim_start_matches('/');
        if !name.starts_with(['_', '.']) {
            return exec_err!(
                "there are files in it, such as '{name}', and COPY does not mix its own with others; remove \
                 them, name another folder, or add to them with CREATE EXTERNAL TABLE and INSERT INTO"
            );
        }
    }
    Ok(match target.is_local() && !on_disk.exists() {
        true => Publication::Folder(place),
        false => Publication::Into(place),
    })
}
