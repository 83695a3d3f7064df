//! What all parts join with: it must be the same for each of them.

use std::collections::BTreeSet;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::physical_plan::FileGroup;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use forebay_engine::write::resume::Input;
use forebay_engine::{InferenceExec, ReadFilesExec};

use super::refusals::Purpose;
use super::staged::StagedExec;
use super::{Plan, file_scan, scan};

/// Made of the same rows they give the same rows, in whichever order.
const REPEATABLE: [&str; 19] = [
    "AggregateExec",
    "BoundedProjectionExec",
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "CrossJoinExec",
    "EmptyExec",
    "FilterExec",
    "HashJoinExec",
    "NestedLoopJoinExec",
    "PlaceholderRowExec",
    "ProjectionExec",
    "ReadFilesExec",
    "RepartitionExec",
    "SortExec",
    "SortMergeJoinExec",
    "SortPreservingMergeExec",
    "UnionExec",
    "UnnestExec",
];

/// Aggregates that give the same of rows in whichever order, but for the last digits of what is not whole.
const OF_ANY_ORDER: [&str; 14] = [
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "count",
    "max",
    "median",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
];

/// What is read beside the scans that are cut.
#[derive(Default)]
pub(super) struct Pinned {
    pub(super) files: BTreeSet<Input>,
    /// How, in words that differ if that does.
    pub(super) reads: BTreeSet<String>,
}

impl Pinned {
    /// The files that a plan reads, too.
    ///
    /// # Errors
    /// If it reads more than files, or gives other rows each time.
    pub(super) fn add(&mut self, plan: &Plan, purpose: Purpose) -> Result<()> {
        check(plan.as_ref(), purpose)?;
        self.note(plan);
        plan.children().into_iter().try_for_each(|child| self.add(child, purpose))
    }

    /// The files that a plan reads beside what is staged, once, however its rows come.
    ///
    /// # Errors
    /// If it reads more than files, or has a model: what that gives is not kept.
    pub(super) fn add_once(&mut self, plan: &Plan) -> Result<()> {
        if plan.is::<StagedExec>() {
            return Ok(());
        }
        let children = plan.children();
        if plan.is::<InferenceExec>() || (children.is_empty() && !is_repeatable(plan.as_ref())) {
            return Err(Purpose::Resume.of_operator(plan.as_ref()));
        }
        self.note(plan);
        children.into_iter().try_for_each(|child| self.add_once(child))
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.files.extend(other.files);
        self.reads.extend(other.reads);
    }

    fn note(&mut self, plan: &Plan) {
        if let Some(config) = file_scan(plan.as_ref()) {
            let files = config.file_groups.iter().flat_map(FileGroup::iter);
            let store = &config.object_store_url;
            self.files.extend(files.map(|file| Input::of(store, &file.object_meta)));
            self.reads.insert(scan::reads(config));
        } else if let Some(files) = plan.downcast_ref::<ReadFilesExec>() {
            self.files.extend(files.files().map(Input::of_row));
            self.reads.insert(scan::reads_rows(files));
        }
    }
}

fn is_repeatable(plan: &dyn ExecutionPlan) -> bool {
    REPEATABLE.contains(&plan.name()) || file_scan(plan).is_some()
}

fn check(plan: &dyn ExecutionPlan, purpose: Purpose) -> Result<()> {
    if plan.fetch().is_some() {
        return Err(joins_with("LIMIT", purpose));
    }
    if let Some(inference) = plan.downcast_ref::<InferenceExec>() {
        return Err(of_model(&inference.model().name, purpose));
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let mut all = aggregate.aggr_expr().iter();
        let depends = all.find(|one| !OF_ANY_ORDER.contains(&one.fun().name()));
        if let Some(depends) = depends {
            return Err(joins_with(depends.fun().name(), purpose));
        }
    }
    // Of what is resumed the statement was looked at.
    if purpose == Purpose::Windows
        && let Some(volatile) = volatile(plan)?
    {
        return Err(joins_with(&volatile, purpose));
    }
    match is_repeatable(plan) {
        true => Ok(()),
        false => Err(purpose.of_operator(plan)),
    }
}

/// An expression of an operator that gives something else each time.
fn volatile(plan: &dyn ExecutionPlan) -> Result<Option<String>> {
    let mut found = None;
    plan.apply_expressions(&mut |expr| {
        if is_volatile(expr) {
            found = Some(expr.to_string());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

fn of_model(name: &str, purpose: Purpose) -> DataFusionError {
    let (each, remedy) = match purpose {
        Purpose::Resume => (
            "each of its parts",
            "SET forebay.stage_models = true, which stages what it gives before the join, or write that side of it to \
             a table first",
        ),
        Purpose::Windows => ("each window", "write that side of the join to a table first"),
    };
    purpose
        .refused(&format!("{each} would compute model '{name}' for all that it joins with"), remedy)
}

fn joins_with(what: &str, purpose: Purpose) -> DataFusionError {
    purpose.refused(
        &format!("it joins with what {what} makes, which may differ from part to part"),
        "write that side of the join to a table first",
    )
}
