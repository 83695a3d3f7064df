//! Which writes can be resumed, and how they are cut into parts.
//!
//! A part is the write's plan over some pieces of the files of its *driving* scans. So each row that is
//! written must come from one row of one of them, and from what is the same for all parts: the operators between
//! scans and write must be such (`driving`), and what they join with must be made of files that have not changed,
//! and the same each time it is made (`pinned`). What functions of the statement are not is looked at before
//! (`repeatable`).
//!
//! Where only a lower part of a plan is such, its rows are staged in parts, and the *rest* is made of all of them at
//! the end (`rest`): that of a single file, and, if it is asked for, all above what models give. There the plan has
//! a `StagedExec` (`staged`), which is put into the statement before it is planned (`place`): so what is above it is
//! planned for a scan of staged files, whatever the rows below would have been for it.
//!
//! Queries are cut as well, whose rows are then made part by part ([`cut_query`]): streams for training shuffle the
//! parts.

mod columns;
mod driving;
mod pinned;
mod place;
mod refusals;
mod repeatable;
mod rest;
mod scan;
mod staged;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, plan_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};
use forebay_engine::CommitExec;
use forebay_engine::write::resume::{Input, InputFile, Inputs, Piece};
use forebay_engine::write::{PartPlans, Target};

use driving::{Branch, Driving, Walk};
use pinned::Pinned;
use refusals::{Purpose, of_ordered_table, refused};
use rest::split;
use scan::Scan;

pub use place::stage_models;
pub use repeatable::check_repeatable;
pub use rest::Rest;
pub(crate) use staged::StagedExec;

type Plan = Arc<dyn ExecutionPlan>;

/// A write that can be resumed.
#[derive(Debug)]
pub struct Cut {
    /// The whole write, below its commit.
    pub whole: Plan,
    /// What it writes.
    pub target: Arc<Target>,
    /// The files that are cut into pieces.
    pub inputs: Inputs,
    /// Other files that each part reads.
    pub pinned: Vec<Input>,
    /// What the models are that it calls, by their names.
    pub models: BTreeMap<String, String>,
    /// How the files are read.
    pub reads: String,
    /// Makes plans of parts.
    pub plans: Arc<dyn PartPlans>,
    /// What is made of the rows of all parts, if those are staged.
    pub rest: Option<Rest>,
}

/// A query that can be read in parts.
#[derive(Debug)]
pub struct CutQuery {
    /// The files that are cut into pieces.
    pub inputs: Inputs,
    /// Other files that each part reads.
    pub pinned: Vec<Input>,
    plans: Plans,
}

impl CutQuery {
    /// A plan of the rows that these pieces give, in as many partitions as the whole has. None of no pieces.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn part(&self, pieces: &[Piece]) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        Ok(self.plans.plans(pieces)?.pop().map(|(_, plan)| plan))
    }
}

/// Cuts what a query was planned as. A part gives the rows that its pieces give in the whole, in any order.
///
/// # Errors
/// Why that cannot be, and what to do.
pub fn cut_query(
    plan: &Plan,
    is_elsewhere: &dyn Fn(&dyn ExecutionPlan) -> bool,
) -> Result<CutQuery> {
    let purpose = Purpose::Windows;
    let Driving { branches, pinned } = Walk::new(purpose, is_elsewhere).driving(plan)?;
    let mut plans = Plans::default();
    plans.add(Arc::clone(plan), branches, purpose)?;
    let (inputs, pinned) = (plans.inputs(), pinned.files.into_iter().collect());
    Ok(CutQuery { inputs, pinned, plans })
}

/// What of a plan runs elsewhere.
#[derive(Clone, Copy)]
pub struct Elsewhere<'a> {
    /// Whether an operator has its input run elsewhere, and passes its rows on as they are.
    pub is_of: &'a dyn Fn(&dyn ExecutionPlan) -> bool,
    /// Whether files can be written there, and read again.
    pub has_files: bool,
}

impl fmt::Debug for Elsewhere<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elsewhere").field("has_files", &self.has_files).finish_non_exhaustive()
    }
}

/// Cuts what a statement was planned as.
///
/// # Errors
/// Why it cannot be resumed, and what to do.
pub fn cut(plan: &Plan, elsewhere: Elsewhere<'_>) -> Result<Cut> {
    let Some(commit) = plan.downcast_ref::<CommitExec>() else {
        return Err(refused(
            "it writes no files",
            "COPY its rows, or INSERT them into a table of files",
        ));
    };
    let (target, whole) = (Arc::clone(commit.target()), Arc::clone(commit.input()));
    let (of_parts, rest) = match split(&whole, &target, elsewhere)? {
        Some((of_parts, rest)) => (of_parts, Some(rest)),
        None => match target.order().filter(|_| !target.is_new()) {
            Some(order) => return Err(of_ordered_table(&target, order)),
            None => (vec![Arc::clone(&whole)], None),
        },
    };
    let mut walk = Walk::new(Purpose::Resume, elsewhere.is_of);
    let (mut plans, mut pinned) = (Plans::default(), Pinned::default());
    for of_parts in of_parts {
        let driving = walk.driving(&of_parts)?;
        plans.add(of_parts, driving.branches, Purpose::Resume)?;
        pinned.extend(driving.pinned);
    }
    let scans = plans.branches().map(|branch| branch.scan.reads());
    let mut reads = scans.collect::<Vec<_>>().join("; and ");
    for joined in pinned.reads {
        reads = format!("{reads}; joined with {joined}");
    }
    let (inputs, models) = (plans.inputs(), walk.models());
    let pinned = pinned.files.into_iter().collect();
    Ok(Cut { whole, target, inputs, pinned, models, reads, plans: Arc::new(plans), rest })
}

/// What parts write: one plan, or one for each kind of rows that are staged.
#[derive(Debug, Default)]
struct Plans(Vec<OfKind>);

#[derive(Debug)]
struct OfKind {
    whole: Plan,
    branches: Vec<OfScan>,
}

#[derive(Debug)]
struct OfScan {
    /// Which child, from the whole to the scan.
    path: Vec<usize>,
    scan: Scan,
    /// Which of all files is its first one.
    first: usize,
    files: usize,
}

impl Plans {
    fn branches(&self) -> impl Iterator<Item = &OfScan> {
        self.0.iter().flat_map(|of_kind| &of_kind.branches)
    }

    fn add(&mut self, whole: Plan, branches: Vec<Branch>, purpose: Purpose) -> Result<()> {
        let mut first: usize = self.branches().map(|branch| branch.files).sum();
        let of_scan = |Branch { path, scan }| {
            let scan = Scan::try_new(&scan, purpose)?;
            let files = scan.inputs().0.len();
            first += files;
            Ok::<_, DataFusionError>(OfScan { path, scan, first: first - files, files })
        };
        let branches = branches.into_iter().map(of_scan).collect::<Result<_>>()?;
        self.0.push(OfKind { whole, branches });
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        let of_scan = |(scan, branch): (usize, &OfScan)| {
            let (files, reads) = branch.scan.inputs();
            files.into_iter().map(move |input| InputFile { input, scan, reads })
        };
        Inputs { files: self.branches().enumerate().flat_map(of_scan).collect() }
    }
}

impl OfScan {
    /// Those of all pieces that are of its files, which it numbers from the first one.
    fn own(&self, pieces: &[Piece]) -> Vec<Piece> {
        let of_scan = |piece: &Piece| {
            let file = piece.file.checked_sub(self.first).filter(|file| *file < self.files)?;
            Some(Piece { file, ..*piece })
        };
        pieces.iter().filter_map(of_scan).collect()
    }
}

impl PartPlans for Plans {
    fn plans(&self, pieces: &[Piece]) -> Result<Vec<(usize, Plan)>> {
        let all = self.0.iter().enumerate();
        let all = all.map(|(kind, plan)| Ok(plan.of(pieces)?.map(|plan| (kind, plan))));
        all.filter_map(Result::transpose).collect()
    }
}

impl OfKind {
    /// The plan of these pieces, if some are of its files.
    fn of(&self, pieces: &[Piece]) -> Result<Option<Plan>> {
        // What operators know of an execution is of that alone.
        let mut plan = reset_plan_states(Arc::clone(&self.whole))?;
        let own = self.branches.iter().map(|branch| (branch, branch.own(pieces)));
        let (with_rows, without): (Vec<_>, Vec<_>) = own.partition(|(_, own)| !own.is_empty());
        if with_rows.is_empty() {
            return Ok(None);
        }
        for (branch, own) in &with_rows {
            plan = replaced(plan, &branch.path, branch.scan.of(own)?)?;
        }
        for (branch, _) in without {
            let path = apart(&branch.path, with_rows.iter().map(|(other, _)| &other.path[..]));
            let Some(input) = at(&plan, path) else { continue };
            let partitions = input.output_partitioning().partition_count();
            let nothing = EmptyExec::new(input.schema()).with_partitions(partitions);
            plan = replaced(plan, path, Arc::new(nothing))?;
        }
        Ok(Some(plan))
    }
}

/// As far along a path as it has to be followed until it is none of the others': the input of a union.
fn apart<'a, 'b>(path: &'a [usize], others: impl Iterator<Item = &'b [usize]>) -> &'a [usize] {
    let common = |other: &[usize]| path.iter().zip(other).take_while(|(a, b)| a == b).count();
    let shared = others.map(common).max().unwrap_or(0);
    &path[..path.len().min(shared + 1)]
}

/// The plan at a place in another one.
fn at<'a>(plan: &'a Plan, path: &[usize]) -> Option<&'a Plan> {
    path.iter().try_fold(plan, |plan, child| plan.children().get(*child).copied())
}

/// The plan with another one at a place in it.
fn replaced(plan: Plan, path: &[usize], by: Plan) -> Result<Plan> {
    let Some((first, rest)) = path.split_first() else { return Ok(by) };
    let mut children: Vec<Plan> = plan.children().into_iter().cloned().collect();
    let Some(child) = children.get_mut(*first) else {
        return plan_err!("{} has no input {first}", plan.name());
    };
    *child = replaced(Arc::clone(child), rest, by)?;
    replace_children_if_necessary(plan, children)
}

/// The files of a scan, if it is one.
fn file_scan(plan: &dyn ExecutionPlan) -> Option<&FileScanConfig> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    scan.data_source().downcast_ref::<FileScanConfig>()
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn what_has_no_rows_is_left_out_as_far_up_as_nobody_else_needs_it() {
        type Path<'a> = &'a [usize];
        let cases: [(Path<'_>, &[Path<'_>], Path<'_>); 4] = [
            (&[0, 0, 1, 0], &[&[0, 1, 0]], &[0, 0]),
            (&[0, 0, 1, 0], &[&[0, 1, 0], &[0, 0, 0, 0]], &[0, 0, 1]),
            (&[0, 1], &[&[0, 0]], &[0, 1]),
            (&[0, 2, 0, 0], &[&[0, 1, 0, 0], &[0, 0, 0, 0]], &[0, 2]),
        ];
        for (path, others, expected) in cases {
            assert_eq!(apart(path, others.iter().copied()), expected, "{path:?} {others:?}");
        }
    }
}
