//! From a write down to the scans whose files are cut into pieces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::common::{JoinType, Result};
use datafusion::datasource::physical_plan::FileGroup;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use forebay_engine::{InferenceExec, ReadFilesExec};
use forebay_udf::model::{Determinism, ModelDeclaration};

use super::pinned::Pinned;
use super::refusals::Purpose;
use super::{Plan, file_scan};

/// The scans that drive a plan: each row of its result comes from one row of one of them.
#[derive(Default)]
pub(super) struct Driving {
    pub(super) branches: Vec<Branch>,
    pub(super) pinned: Pinned,
}

/// One of them.
pub(super) struct Branch {
    /// Which child, from the plan to the scan, the first one last while it is looked for.
    pub(super) path: Vec<usize>,
    pub(super) scan: Plan,
}

impl Driving {
    fn of(scan: &Plan) -> Self {
        let branch = Branch { path: vec![], scan: Arc::clone(scan) };
        Self { branches: vec![branch], pinned: Pinned::default() }
    }

    /// The same from the plan that has it as this child.
    fn below(mut self, at: usize) -> Self {
        self.branches.iter_mut().for_each(|branch| branch.path.push(at));
        self
    }

    fn bytes(&self) -> u64 {
        self.branches.iter().map(|branch| bytes(&branch.scan)).sum()
    }
}

fn bytes(scan: &Plan) -> u64 {
    if let Some(files) = scan.downcast_ref::<ReadFilesExec>() {
        return files.files().map(|file| file.size).sum();
    }
    let groups = file_scan(scan.as_ref()).into_iter().flat_map(|files| &files.file_groups);
    groups.flat_map(FileGroup::iter).map(|file| file.object_meta.size).sum()
}

/// Looks for them.
pub(super) struct Walk<'a> {
    purpose: Purpose,
    passes: &'a dyn Fn(&dyn ExecutionPlan) -> bool,
    models: BTreeMap<String, BTreeSet<String>>,
}

/// Of each row they make rows that depend on nothing else.
const OF_ONE_ROW: [&str; 12] = [
    "BoundedProjectionExec",
    "CoalesceBatchesExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "FilterExec",
    "InferenceExec",
    "ProjectionExec",
    "RepartitionExec",
    "RestoreOrderExec",
    "StreamingExchangeExec",
    "TransformExec",
    "UnnestExec",
];

impl<'a> Walk<'a> {
    pub(super) fn new(purpose: Purpose, passes: &'a dyn Fn(&dyn ExecutionPlan) -> bool) -> Self {
        Self { purpose, passes, models: BTreeMap::new() }
    }

    /// What the models are that were found, by their names.
    pub(super) fn models(self) -> BTreeMap<String, String> {
        let said = |all: BTreeSet<String>| all.into_iter().collect::<Vec<_>>().join("; and ");
        self.models.into_iter().map(|(name, all)| (name, said(all))).collect()
    }

    /// The scans that drive a plan.
    ///
    /// # Errors
    /// If there is none, or what is between depends on more than a row of it.
    pub(super) fn driving(&mut self, plan: &Plan) -> Result<Driving> {
        let mut driving = self.found(plan)?;
        if driving.branches.is_empty() && self.purpose == Purpose::Resume {
            return Err(self.purpose.of_operator(&EmptyExec::new(plan.schema())));
        }
        driving.branches.iter_mut().for_each(|branch| branch.path.reverse());
        Ok(driving)
    }

    fn found(&mut self, plan: &Plan) -> Result<Driving> {
        if plan.fetch().is_some() {
            let is_sorted = plan.is::<SortExec>() || plan.is::<SortPreservingMergeExec>();
            return Err(match is_sorted {
                true => self.purpose.of_all_rows("ORDER BY with LIMIT", plan.as_ref()),
                false => self.purpose.of_limit(),
            });
        }
        if file_scan(plan.as_ref()).is_some() || plan.is::<ReadFilesExec>() {
            return Ok(Driving::of(plan));
        }
        if let Some((join, [left, right])) = join(plan.as_ref()) {
            return self.of_join(plan, join, [left, right]);
        }
        if plan.is::<UnionExec>() {
            return self.of_union(plan);
        }
        // A table without files, which a stream reads as any other.
        if plan.is::<EmptyExec>() && self.purpose == Purpose::Windows {
            return Ok(Driving::default());
        }
        let children = plan.children();
        let passes = OF_ONE_ROW.contains(&plan.name())
            || plan.name() == "WriteExec"
            || (self.passes)(plan.as_ref());
        let [child] = children.as_slice() else {
            return Err(self.purpose.of_operator(plan.as_ref()));
        };
        if !passes {
            return Err(self.purpose.of_operator(plan.as_ref()));
        }
        if let Some(inference) = plan.downcast_ref::<InferenceExec>() {
            let model = inference.model();
            // Calls of one name may be of several models: another one may have taken its place meanwhile.
            self.models
                .entry(model.name.clone())
                .or_default()
                .insert(pinned_model(model, self.purpose)?);
        }
        Ok(self.found(child)?.below(0))
    }

    /// All of its inputs drive.
    fn of_union(&mut self, plan: &Plan) -> Result<Driving> {
        let mut all = Driving::default();
        for (at, input) in plan.children().into_iter().enumerate() {
            // A table without files.
            if input.is::<EmptyExec>() {
                continue;
            }
            let Driving { branches, pinned } = self.found(input)?.below(at);
            all.branches.extend(branches);
            all.pinned.extend(pinned);
        }
        Ok(all)
    }

    /// The larger side drives, of those that may: each of its rows meets all rows of the other one.
    fn of_join(&mut self, plan: &Plan, join: JoinType, sides: [&Plan; 2]) -> Result<Driving> {
        let [left, right] = sides;
        let (left_may, right_may) = may_drive(join);
        let mut found: Vec<(u64, Result<Driving>)> = vec![];
        for (at, may, drives, other) in [(0, left_may, left, right), (1, right_may, right, left)] {
            if !may {
                continue;
            }
            // Of what keeps both from it, the side that could is nearer to it.
            found.push(match self.found(drives) {
                Err(error) => (0, Err(error)),
                Ok(mut driving) => match driving.pinned.add(other, self.purpose) {
                    Err(error) => (1, Err(error)),
                    Ok(()) => (driving.bytes().saturating_add(2), Ok(driving.below(at))),
                },
            });
        }
        let best = found.into_iter().max_by_key(|(rank, _)| *rank);
        best.map(|(_, found)| found)
            .unwrap_or_else(|| Err(self.purpose.of_full_join(plan.as_ref())))
    }
}

/// A join, and its sides.
fn join(plan: &dyn ExecutionPlan) -> Option<(JoinType, [&Plan; 2])> {
    let kind = if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        *join.join_type()
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        *join.join_type()
    } else if plan.is::<CrossJoinExec>() {
        JoinType::Inner
    } else {
        return None;
    };
    Some((kind, plan.children().try_into().ok()?))
}

/// Whether each row of the result depends on one row of the left side, of the right side, and else on all
/// rows of the other one.
pub(super) fn may_drive(join: JoinType) -> (bool, bool) {
    match join {
        JoinType::Inner => (true, true),
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
            (true, false)
        }
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            (false, true)
        }
        JoinType::Full => (false, false),
    }
}

/// What makes the outputs of a model what they are. Where and how fast it runs does not.
fn pinned_model(model: &ModelDeclaration, purpose: Purpose) -> Result<String> {
    if model.counts_its_failures() {
        return Err(purpose.refused(
            &format!(
                "of model '{}' it is counted how many of all rows fail (max_error_ratio)",
                model.name
            ),
            &format!("ALTER MODEL {} RESET ('max_error_ratio')", model.name),
        ));
    }
    // A window computes its rows once.
    if model.determinism == Determinism::Volatile && purpose == Purpose::Resume {
        return Err(purpose.refused(
            &format!("model '{}' gives something else each time (determinism)", model.name),
            &format!(
                "ALTER MODEL {} SET ('determinism' = 'stable') if its outputs may be of several runs",
                model.name
            ),
        ));
    }
    Ok(format!(
        "package {}, precision {}, prompt {:?}, on_error {:?}",
        model.content_hash, model.precision, model.prompt, model.on_error
    ))
}
