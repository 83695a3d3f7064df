//! Which writes can be resumed, and how they are cut into parts.
//!
//! A part is the write's plan over some pieces of the files of one scan, the *driving* one. So each row that is
//! written must come from one row of that scan, and from what is the same for all parts: the operators between
//! scan and write must be such (`driving`), and what they join with must be made of files that have not changed,
//! and the same each time it is made (`pinned`). What functions of the statement are not is looked at before
//! (`repeatable`).

mod driving;
mod pinned;
mod refusals;
mod repeatable;
mod scan;

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use forebay_engine::CommitExec;
use forebay_engine::write::resume::{Input, Inputs, Piece};
use forebay_engine::write::{PartPlans, Target};

use driving::Walk;
use refusals::{of_ordered_table, refused};
use scan::Scan;

pub use repeatable::check_repeatable;

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
}

/// Cuts what a statement was planned as. What passes rows on as they are, and is not known here, is known
/// to `passes`.
///
/// # Errors
/// Why it cannot be resumed, and what to do.
pub fn cut(plan: &Plan, passes: &dyn Fn(&dyn ExecutionPlan) -> bool) -> Result<Cut> {
    let Some(commit) = plan.downcast_ref::<CommitExec>() else {
        return Err(refused(
            "it writes no files",
            "COPY its rows, or INSERT them into a table of files",
        ));
    };
    let target = Arc::clone(commit.target());
    if target.is_file() {
        return Err(refused(
            &format!("'{}' is one file, which is written as a whole", target.name()),
            "end its name with '/' to write files into a folder",
        ));
    }
    if let Some(order) = target.order().filter(|_| !target.is_new()) {
        return Err(of_ordered_table(&target, order));
    }
    let mut walk = Walk::new(passes);
    let whole = Arc::clone(commit.input());
    let driving = walk.driving(&whole)?;
    let scan = Scan::try_new(driving.scan)?;
    let all_reads = std::iter::once(scan.reads()).chain(driving.pinned.reads);
    let reads = all_reads.collect::<Vec<_>>().join("; joined with ");
    let inputs = scan.inputs();
    let pinned = driving.pinned.files.into_iter().collect();
    let plans = Plans { whole: Arc::clone(&whole), path: driving.path, scan };
    let models = walk.models();
    Ok(Cut { whole, target, inputs, pinned, models, reads, plans: Arc::new(plans) })
}

#[derive(Debug)]
struct Plans {
    whole: Plan,
    /// Which child, from the whole to the driving scan.
    path: Vec<usize>,
    scan: Scan,
}

impl PartPlans for Plans {
    fn plan(&self, pieces: &[Piece]) -> Result<Plan> {
        let scan = DataSourceExec::from_data_source(self.scan.of(pieces));
        // What operators know of an execution is of that alone.
        replaced(reset_plan_states(Arc::clone(&self.whole))?, &self.path, scan)
    }
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
