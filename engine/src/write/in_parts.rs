//! The operator that writes in parts, each of which is kept if the others fail.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use super::attempt::Written;
use super::begun::Write;
use super::commit::{counted, one_count};
use super::exec::written_by;
use super::resume::record::{self, Found, Part, Wanted};
use super::resume::{Input, Inputs, Piece, Remains, changes};
use super::target::Target;

/// While one part ends, with less and less to do, the next one begins.
const PARTS_AT_ONCE: usize = 2;

/// Makes the plan of a part.
pub trait PartPlans: fmt::Debug + Send + Sync {
    /// Plans of writes, each in one partition, of the rows that these pieces give. Rows of several kinds are staged
    /// apart: with each plan comes the number of its kind.
    ///
    /// # Errors
    /// None that a user could cause.
    fn plans(&self, pieces: &[Piece]) -> Result<Vec<(usize, Arc<dyn ExecutionPlan>)>>;
}

/// Makes the plan of what is made of all parts together.
pub trait RestPlan: fmt::Debug + Send + Sync {
    /// A plan of writes, in one partition, of what these files give.
    ///
    /// # Errors
    /// None that a user could cause.
    fn plan(&self, staged: &[StagedFile]) -> Result<Arc<dyn ExecutionPlan>>;
}

/// A file with rows of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedFile {
    /// Where it is in the store of the target.
    pub path: Path,
    /// Its size.
    pub bytes: u64,
    /// Of which kind its rows are.
    pub kind: usize,
}

impl StagedFile {
    /// A staged file lies nowhere by the values of columns: its folder is the number of its kind, if it is not the first.
    fn of(file: &Written) -> Self {
        let kind = file.folder.as_ref().parse().unwrap_or(0);
        Self { path: file.path.clone(), bytes: file.bytes, kind }
    }

    fn noted(file: Written, kind: usize) -> Written {
        match kind {
            0 => file,
            kind => Written { folder: Path::from(kind.to_string()), ..file },
        }
    }
}

/// What is made of the rows of all parts together, once they are there: they are staged, and what is written is
/// this.
#[derive(Clone, Debug)]
pub struct Rest {
    /// Its plan.
    pub plan: Arc<dyn RestPlan>,
    /// Other files that it reads.
    pub inputs: Vec<Input>,
    /// Of all that makes of the same staged rows what it is.
    pub fingerprint: String,
}

/// What is written in parts.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What is written.
    pub target: Arc<Target>,
    /// What is cut into pieces.
    pub inputs: Inputs,
    /// Other files that all parts read.
    pub pinned: Vec<Input>,
    /// Plans of parts.
    pub plans: Arc<dyn PartPlans>,
    /// Of all that makes the rows of a piece what they are.
    pub fingerprint: String,
    /// Bytes of the inputs of a part.
    pub part_bytes: u64,
    /// Where what is complete is kept.
    pub remains: Remains,
    /// If what parts give is not what is written, but what that is made of.
    pub rest: Option<Rest>,
}

impl Parts {
    fn wanted(&self) -> Wanted<'_> {
        let rest = self.rest.as_ref().map(|rest| rest.fingerprint.as_str());
        Wanted { fingerprint: &self.fingerprint, rest, inputs: &self.inputs }
    }

    /// What is made of all parts counts as one part more.
    fn rest_bytes(&self) -> u64 {
        self.rest.as_ref().map_or(0, |_| self.part_bytes.min(self.inputs.bytes()))
    }
}

/// Writes what is missing of its parts, two at a time, and makes all of them visible at the end; or what is made of
/// all of them, if something is.
///
/// - rows: one, with the number of rows that were written, in this and in earlier executions
/// - memory: that of two parts, and a name for each file
/// - cancel, errors: nothing has become visible. Parts that are complete stay, until the staging folder is
///   removed by whoever has its name
#[derive(Debug)]
pub struct InPartsExec {
    /// All parts as one, for people: it never runs.
    whole: Arc<dyn ExecutionPlan>,
    parts: Arc<Parts>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    all: AtomicU64,
}

impl InPartsExec {
    /// Writes these parts, of which `whole` is the sum.
    pub fn new(whole: Arc<dyn ExecutionPlan>, parts: Parts) -> Self {
        let (metrics, progress) = (ExecutionPlanMetricsSet::new(), Arc::default());
        Self { whole, parts: Arc::new(parts), properties: one_count(), metrics, progress }
    }

    /// How many bytes of the inputs are done, and of how many, once that is known. With what is made of all parts, if
    /// something is.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let all = self.progress.all.load(Ordering::Acquire);
        (all > 0).then(|| (self.progress.done.load(Ordering::Relaxed), all))
    }
}

impl DisplayAs for InPartsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.parts.target.kind();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "InPartsExec: {what}, part_bytes={}", self.parts.part_bytes)?;
                if self.parts.rest.is_some() { f.write_str(", staged=true") } else { Ok(()) }
            }
            DisplayFormatType::TreeRender => writeln!(f, "{what}"),
        }
    }
}

impl ExecutionPlan for InPartsExec {
    fn name(&self) -> &'static str {
        "InPartsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.whole]
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
            // Its parts were cut from the plan that it has.
            Ok([whole]) if Arc::ptr_eq(&whole, &self.whole) => Ok(self),
            _ => internal_err!("InPartsExec is planned, and then changed no more"),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("InPartsExec has one partition, asked for {partition}");
        }
        let work = Work {
            parts: Arc::clone(&self.parts),
            progress: Arc::clone(&self.progress),
            metrics: self.metrics.clone(),
            context,
        };
        let schema = self.schema();
        let rows = stream::once(async move { counted(&schema, work.run().await?) });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// One execution.
struct Work {
    parts: Arc<Parts>,
    progress: Arc<Progress>,
    metrics: ExecutionPlanMetricsSet,
    context: Arc<TaskContext>,
}

impl Work {
    async fn run(&self) -> Result<u64> {
        let Parts { target, remains, rest, .. } = self.parts.as_ref();
        let staging = remains.staging_of(target)?;
        let write = Write::go_on(Arc::clone(target), &self.context, &staging).await?;
        let Some(write) = write else {
            let store = self.context.runtime_env().object_store(target.store())?;
            return Ok(record::sum(store.as_ref(), &staging, rest.is_some()).await?.rows);
        };
        let mut all = self.all_parts(&write).await?;
        if let Some(rest) = rest.as_ref().filter(|_| all.rest.is_none()) {
            // Looked at once, before they are read, however long ago they were written.
            record::check(write.store().as_ref(), &staging).await?;
            all.rest = Some(self.rest(&write, rest, &all.kept).await?);
            self.progress.done.fetch_add(self.parts.rest_bytes(), Ordering::Relaxed);
        }
        let written: Vec<Written> = match all.rest {
            Some(rest) => rest.files,
            None => all.kept.into_iter().flat_map(|part| part.files).collect(),
        };
        let written = write.with_columns(written)?;
        write.commit_counted(written, &self.metrics).await
    }

    /// All parts, of which those are computed that are missing, in the order of the inputs; and what was made of them,
    /// if that is there already.
    async fn all_parts(&self, write: &Write) -> Result<Found> {
        let Parts { inputs, part_bytes, .. } = self.parts.as_ref();
        let mut found = record::read(write.store(), write.staging(), self.parts.wanted()).await?;
        record::keep_only(write.store(), write.staging(), &found).await?;
        let missing = found.missing(inputs);
        let left: u64 = missing.iter().map(Piece::bytes).sum();
        let rest_bytes = self.parts.rest_bytes();
        let made = found.rest.as_ref().map_or(0, |_| rest_bytes);
        let done = inputs.bytes().saturating_sub(left) + made;
        self.progress.done.store(done, Ordering::Relaxed);
        self.progress.all.store(inputs.bytes() + rest_bytes, Ordering::Release);
        let missing = inputs.parts(missing, *part_bytes);
        let done = stream::iter(missing).map(|pieces| self.part(write, pieces));
        let done: Vec<Part> = done.buffer_unordered(PARTS_AT_ONCE).try_collect().await?;
        found.kept.extend(done);
        // Whichever was complete first.
        found.kept.sort_by(|one, other| one.pieces.first().cmp(&other.pieces.first()));
        Ok(found)
    }

    /// Writes a part, and notes that it is complete.
    async fn part(&self, write: &Write, pieces: Vec<Piece>) -> Result<Part> {
        let Parts { inputs, pinned, plans, .. } = self.parts.as_ref();
        let mut files = vec![];
        for (kind, plan) in plans.plans(&pieces)? {
            let written = written_by(plan, write.staging(), Arc::clone(&self.context)).await?;
            files.extend(written.into_iter().map(|file| StagedFile::noted(file, kind)));
        }
        let read = pieces.iter().map(|piece| &inputs.files[piece.file].input).chain(pinned);
        self.check_inputs(read).await?;
        let bytes = pieces.iter().map(Piece::bytes).sum();
        let part = Part { pieces, files };
        let part = part.note(write.store(), write.staging(), self.parts.wanted()).await?;
        self.progress.done.fetch_add(bytes, Ordering::Relaxed);
        Ok(part)
    }

    /// Writes what is made of all parts, and notes that it is complete.
    async fn rest(&self, write: &Write, rest: &Rest, parts: &[Part]) -> Result<Part> {
        let staged = parts.iter().flat_map(|part| &part.files).map(StagedFile::of);
        let plan = rest.plan.plan(&staged.collect::<Vec<_>>())?;
        let files = written_by(plan, write.staging(), Arc::clone(&self.context)).await?;
        self.check_inputs(rest.inputs.iter()).await?;
        let pieces = parts.iter().flat_map(|part| part.pieces.iter().copied()).collect();
        let made = Part { pieces, files };
        let of = (rest.fingerprint.as_str(), &self.parts.inputs);
        made.note_rest(write.store(), write.staging(), of).await?;
        Ok(made)
    }

    /// Looks whether what was read is what was planned for.
    async fn check_inputs<'a>(&self, read: impl Iterator<Item = &'a Input>) -> Result<()> {
        let read: BTreeSet<&Input> = read.collect();
        let read = read.into_iter().cloned().collect();
        match changes(read, &self.context).await?.first() {
            None => Ok(()),
            Some(change) => exec_err!(
                "{change}: it was changed while the job read it; RESUME JOB … ANEW takes the job's files as they \
                 are, and keeps what was made of those that have not changed"
            ),
        }
    }
}
