//! What is made of the rows of all parts, once they are there.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, Statistics, plan_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    ArrowSource, FileGroup, FileScanConfigBuilder, FileSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use forebay_engine::WriteExec;
use forebay_engine::arrow_files::checked;
use forebay_engine::write::resume::Input;
use forebay_engine::write::{RestPlan, StagedFile, Target};
use object_store::ObjectMeta;

use super::columns::Columns;
use super::pinned::Pinned;
use super::refusals::refused;
use super::staged::StagedExec;
use super::{Elsewhere, Plan, at, replaced};

/// Bytes of a staged file that are read apart from its others, so that all cores have something.
const APART_MIN: usize = 1 << 20;

/// What is made of the rows of all parts.
#[derive(Debug)]
pub struct Rest {
    /// Its plan.
    pub plan: Arc<dyn RestPlan>,
    /// Other files that it reads.
    pub inputs: Vec<Input>,
    /// How they are read.
    pub reads: String,
    /// What is staged, in words that differ if that does.
    pub staged: String,
    /// Whether it does nothing but put rows together.
    pub is_same_rows: bool,
}

/// The plans of what is staged in parts, one for each place where it is, and what is made of it; nothing if parts are
/// what is written.
///
/// # Errors
/// Why it cannot be staged, and what to do.
pub(super) fn split(
    whole: &Plan,
    target: &Arc<Target>,
    elsewhere: Elsewhere<'_>,
) -> Result<Option<(Vec<Plan>, Rest)>> {
    let paths = paths_to_staged(whole);
    match paths.is_empty() {
        false => above_staged(whole, paths, target, elsewhere).map(Some),
        true if target.is_file() => into_one_file(whole, target, elsewhere).map(Some),
        true => Ok(None),
    }
}

/// The ways to the rows that are staged.
fn paths_to_staged(plan: &Plan) -> Vec<Vec<usize>> {
    if plan.is::<StagedExec>() {
        return vec![vec![]];
    }
    let children = plan.children().into_iter().enumerate();
    let below = |(at, child): (usize, &Plan)| {
        let paths = paths_to_staged(child).into_iter();
        paths.map(move |path| [vec![at], path].concat())
    };
    children.flat_map(below).collect()
}

fn above_staged(
    whole: &Plan,
    paths: Vec<Vec<usize>>,
    target: &Arc<Target>,
    elsewhere: Elsewhere<'_>,
) -> Result<(Vec<Plan>, Rest)> {
    let (mut of_parts, mut scans) = (vec![], vec![]);
    for path in paths {
        let (plan, scan) = staged_at(whole, &path, target, elsewhere)?;
        of_parts.push(plan);
        scans.push((path, scan));
    }
    let mut others = Pinned::default();
    others.add_once(whole)?;
    let staged = scans.iter().map(|(_, scan)| scan.columns.identity());
    let rest = Rest {
        inputs: others.files.into_iter().collect(),
        reads: others.reads.into_iter().collect::<Vec<_>>().join("; and "),
        staged: staged.collect::<Vec<_>>().join("; and "),
        plan: Arc::new(Above { whole: Arc::clone(whole), scans }),
        is_same_rows: false,
    };
    Ok((of_parts, rest))
}

/// The plan of what is staged at a place, and the scan that is there for the rest.
fn staged_at(
    whole: &Plan,
    path: &[usize],
    target: &Arc<Target>,
    elsewhere: Elsewhere<'_>,
) -> Result<(Plan, StagedScan)> {
    let staged = at(whole, path).and_then(|plan| plan.downcast_ref::<StagedExec>());
    let Some(staged) = staged else { return plan_err!("nothing of it is staged") };
    let partitions = staged.properties().output_partitioning().partition_count();
    let mut above = (0..path.len()).filter_map(|end| at(whole, &path[..end]));
    let runs = above.find(|plan| (elsewhere.is_of)(plan.as_ref()));
    if runs.is_some() && !elsewhere.has_files {
        return Err(refused(
            "workers read again what is staged, and forebay.write_on_workers = false says that they see no files of \
             the session's",
            "SET forebay.write_on_workers = true",
        ));
    }
    let columns = Columns::of(staged.schema())?;
    let of_parts = written(runs, staged.input(), &columns, target)?;
    let (is_elsewhere, store) = (runs.is_some(), target.store().clone());
    Ok((of_parts, StagedScan { columns, partitions, is_elsewhere, store }))
}

/// All rows are staged, and then written once more.
fn into_one_file(
    whole: &Plan,
    target: &Arc<Target>,
    elsewhere: Elsewhere<'_>,
) -> Result<(Vec<Plan>, Rest)> {
    let Some(write) = whole.downcast_ref::<WriteExec>() else {
        return plan_err!("a file is written by {}, and not by WriteExec", whole.name());
    };
    let rows = write.input();
    let runs = Some(rows).filter(|rows| elsewhere.has_files && (elsewhere.is_of)(rows.as_ref()));
    let below = runs.and_then(|runs| at(runs, &[0]));
    let columns = Columns::of(rows.schema())?;
    let of_parts = written(runs, below.unwrap_or(rows), &columns, target)?;
    let scan =
        StagedScan { columns, partitions: 1, is_elsewhere: false, store: target.store().clone() };
    let rest = Rest {
        inputs: vec![],
        reads: String::new(),
        staged: scan.columns.identity(),
        plan: Arc::new(Above { whole: Arc::clone(whole), scans: vec![(vec![0], scan)] }),
        is_same_rows: true,
    };
    Ok((vec![of_parts], rest))
}

/// A write of rows to what they are staged in, below what runs it if something does.
fn written(
    runs: Option<&Plan>,
    rows: &Plan,
    columns: &Columns,
    target: &Arc<Target>,
) -> Result<Plan> {
    let rows = columns.to_files(Arc::clone(rows))?;
    let target = Arc::new(target.staged(Arc::clone(columns.files())));
    let write = |rows| -> Plan { Arc::new(WriteExec::new(rows, target)) };
    match runs {
        Some(runs) => replace_children_if_necessary(Arc::clone(runs), vec![write(rows)]),
        None if rows.output_partitioning().partition_count() == 1 => Ok(write(rows)),
        None => Ok(write(Arc::new(CoalescePartitionsExec::new(rows)))),
    }
}

/// A plan, with what is staged at places in it: of each kind at its own.
#[derive(Debug)]
struct Above {
    whole: Plan,
    scans: Vec<(Vec<usize>, StagedScan)>,
}

impl RestPlan for Above {
    fn plan(&self, staged: &[StagedFile]) -> Result<Plan> {
        let mut plan = reset_plan_states(Arc::clone(&self.whole))?;
        for (kind, (path, scan)) in self.scans.iter().enumerate() {
            let own = staged.iter().filter(|file| file.kind == kind).cloned();
            // What is below the place is not of it, and never runs.
            plan = replaced(plan, path, scan.of(&own.collect::<Vec<_>>())?)?;
        }
        Ok(plan)
    }
}

/// Reads staged rows.
#[derive(Debug)]
struct StagedScan {
    columns: Columns,
    partitions: usize,
    /// Such a scan travels as DataFusion's, and is checked where it runs.
    is_elsewhere: bool,
    store: ObjectStoreUrl,
}

impl StagedScan {
    fn of(&self, staged: &[StagedFile]) -> Result<Plan> {
        let file = |file: &StagedFile| {
            PartitionedFile::from(ObjectMeta {
                location: file.path.clone(),
                last_modified: Default::default(),
                size: file.bytes,
                e_tag: None,
                version: None,
            })
        };
        let files = FileGroup::new(staged.iter().map(file).collect());
        let schema: &SchemaRef = self.columns.files();
        let source: Arc<dyn FileSource> =
            Arc::new(ArrowSource::new_file_source(TableSchema::from(schema)));
        let config = FileScanConfigBuilder::new(self.store.clone(), source)
            .with_file_groups(vec![files])
            .with_statistics(Statistics::new_unknown(schema))
            .build();
        let source = Arc::clone(&config.file_source);
        let config = match source.repartitioned(self.partitions, APART_MIN, None, &config)? {
            Some(cut) if self.partitions > 1 => cut,
            _ => config,
        };
        let mut groups = config.file_groups.clone();
        // As many as were planned for, even if some have no files.
        groups.resize(self.partitions, FileGroup::new(vec![]));
        let config = FileScanConfigBuilder::from(config).with_file_groups(groups).build();
        let scan: Plan = DataSourceExec::from_data_source(config);
        let scan = if self.is_elsewhere { scan } else { checked(scan).data };
        self.columns.to_rows(scan)
    }
}
