//! From a write down to the scan whose files are cut into pieces.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::common::{JoinType, Result};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use forebay_engine::InferenceExec;
use forebay_udf::model::{Determinism, ModelDeclaration};

use super::pinned::Pinned;
use super::refusals::{of_all_rows, of_operator, refused};
use super::{Plan, file_scan};

/// The scan that drives a plan.
pub(super) struct Driving {
    /// Which child, from the plan to the scan, the first one last while it is looked for.
    pub(super) path: Vec<usize>,
    pub(super) scan: FileScanConfig,
    pub(super) pinned: Pinned,
}

impl Driving {
    fn bytes(&self) -> u64 {
        let files = self.scan.file_groups.iter().flat_map(|group| group.iter());
        files.map(|file| file.object_meta.size).sum()
    }
}

/// Looks for it.
pub(super) struct Walk<'a> {
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
    pub(super) fn new(passes: &'a dyn Fn(&dyn ExecutionPlan) -> bool) -> Self {
        Self { passes, models: BTreeMap::new() }
    }

    /// What the models are that were found, by their names.
    pub(super) fn models(self) -> BTreeMap<String, String> {
        let said = |all: BTreeSet<String>| all.into_iter().collect::<Vec<_>>().join("; and ");
        self.models.into_iter().map(|(name, all)| (name, said(all))).collect()
    }

    /// The scan that drives a plan.
    ///
    /// # Errors
    /// If there is none, or what is between depends on more than a row of it.
    pub(super) fn driving(&mut self, plan: &Plan) -> Result<Driving> {
        let mut driving = self.found(plan)?;
        driving.path.reverse();
        Ok(driving)
    }

    fn found(&mut self, plan: &Plan) -> Result<Driving> {
        if plan.fetch().is_some() {
            return Err(of_all_rows("LIMIT"));
        }
        if let Some(scan) = file_scan(plan.as_ref()) {
            return Ok(Driving { path: vec![], scan: scan.clone(), pinned: Pinned::default() });
        }
        let children = plan.children();
        if let Some((join, [left, right])) = join(plan.as_ref()) {
            return self.of_join(join, left, right);
        }
        let passes = OF_ONE_ROW.contains(&plan.name())
            || plan.name() == "WriteExec"
            || (self.passes)(plan.as_ref());
        let [child] = children.as_slice() else {
            return Err(of_operator(plan.as_ref()));
        };
        if !passes {
            return Err(of_operator(plan.as_ref()));
        }
        if let Some(inference) = plan.downcast_ref::<InferenceExec>() {
            let model = inference.model();
            // Calls of one name may be of several models: another one may have taken its place meanwhile.
            self.models.entry(model.name.clone()).or_default().insert(pinned_model(model)?);
        }
        let mut driving = self.found(child)?;
        driving.path.push(0);
        Ok(driving)
    }

    /// The larger side drives, of those that may: each of its rows meets all rows of the other one.
    fn of_join(&mut self, join: JoinType, left: &Plan, right: &Plan) -> Result<Driving> {
        let (left_may, right_may) = may_drive(join);
        let mut found: Vec<(u64, Result<Driving>)> = vec![];
        for (at, may, drives, other) in [(0, left_may, left, right), (1, right_may, right, left)] {
            if !may {
                continue;
            }
            // Of what keeps both from it, the side that could is nearer to it.
            found.push(match self.found(drives) {
                Err(error) => (0, Err(error)),
                Ok(mut driving) => match driving.pinned.add(other) {
                    Err(error) => (1, Err(error)),
                    Ok(()) => {
                        driving.path.push(at);
                        (driving.bytes().saturating_add(2), Ok(driving))
                    }
                },
            });
        }
        let best = found.into_iter().max_by_key(|(rank, _)| *rank);
        best.map(|(_, found)| found).unwrap_or_else(|| {
            Err(refused(
                "of a FULL JOIN the rows without a partner depend on all rows of both sides",
                "write the two sides of it one after the other",
            ))
        })
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
fn may_drive(join: JoinType) -> (bool, bool) {
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
fn pinned_model(model: &ModelDeclaration) -> Result<String> {
    if model.counts_its_failures() {
        return Err(refused(
            &format!(
                "of model '{}' it is counted how many of all rows fail (max_error_ratio)",
                model.name
            ),
            &format!("ALTER MODEL {} RESET ('max_error_ratio')", model.name),
        ));
    }
    if model.determinism == Determinism::Volatile {
        return Err(refused(
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
