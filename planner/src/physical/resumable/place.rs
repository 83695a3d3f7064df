//! Where a statement is cut of which not all is made in parts: above what gives the outputs of its models.
//!
//! ```text
//!  COPY                      the rest: one write, of all staged rows
//!    Sort, Aggregate, …
//!      Staged
//!        Filter, Inference,  made in parts, each of which stays
//!        Join, TableScan …
//! ```

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, JoinType, Result};
use datafusion::logical_expr::LogicalPlan;

use super::driving::may_drive;
use super::refusals::{Purpose, refused};
use crate::logical::{Inference, Staged};

/// The statement with the places in it where its rows are staged, if there have to be some: the topmost below which
/// rows pass one by one, of each branch that has models.
///
/// # Errors
/// If there is no such place: of what a model gives, something would not be kept.
pub fn stage_models(plan: LogicalPlan) -> Result<LogicalPlan> {
    if !matches!(plan, LogicalPlan::Copy(_) | LogicalPlan::Dml(_)) {
        return Ok(plan);
    }
    let place = |rows: LogicalPlan| match has_model(&rows)? && !passes(&rows)? {
        true => staged(rows).map(Transformed::yes),
        false => Ok(Transformed::no(rows)),
    };
    Ok(plan.map_children(place)?.data)
}

/// The plan, which has a model, with its rows staged where they pass one by one up to there.
fn staged(plan: LogicalPlan) -> Result<LogicalPlan> {
    if passes(&plan)? {
        return Ok(Staged::plan(plan));
    }
    check(&plan)?;
    let below = |child: LogicalPlan| match has_model(&child)? {
        true => staged(child).map(Transformed::yes),
        false => Ok(Transformed::no(child)),
    };
    Ok(plan.map_children(below)?.data)
}

/// Whether of an operator, through which rows do not pass one by one, all can be made of staged rows.
fn check(plan: &LogicalPlan) -> Result<()> {
    if let Some(inference) = Inference::of(plan) {
        return Err(of_model_above(&inference.model().name));
    }
    if matches!(plan, LogicalPlan::RecursiveQuery(_)) {
        return Err(refused(
            "a model in WITH RECURSIVE is computed for what it gave before",
            "write each step to files",
        ));
    }
    if let LogicalPlan::Limit(limit) = plan
        && !is_sorted(&limit.input)
    {
        return Err(Purpose::Resume.of_limit());
    }
    Ok(())
}

fn of_model_above(model: &str) -> DataFusionError {
    refused(
        &format!(
            "model '{model}' is computed for what GROUP BY, ORDER BY or LIMIT makes of other rows, or for joined rows \
             of models, so nothing that it gives would be kept"
        ),
        "write those rows to files first",
    )
}

/// Whether rows come in an order that was asked for.
fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(projection) => is_sorted(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_sorted(&alias.input),
        LogicalPlan::Limit(limit) => is_sorted(&limit.input),
        _ => false,
    }
}

fn has_model(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= Inference::of(node).is_some();
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Whether each row of the result comes from one row of a scan. The plan that runs is looked at more closely.
fn passes(plan: &LogicalPlan) -> Result<bool> {
    match plan {
        LogicalPlan::TableScan(scan) => Ok(scan.fetch.is_none()),
        LogicalPlan::EmptyRelation(_) => Ok(true),
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Unnest(_)
        | LogicalPlan::Union(_) => all_pass(plan),
        LogicalPlan::Extension(_) if Inference::of(plan).is_some() => all_pass(plan),
        LogicalPlan::Join(join) => join_passes(join.join_type, &join.left, &join.right),
        _ => Ok(false),
    }
}

fn all_pass(plan: &LogicalPlan) -> Result<bool> {
    for input in plan.inputs() {
        if !passes(input)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The side that has models drives, if it may: the other one is read by all parts.
fn join_passes(kind: JoinType, left: &LogicalPlan, right: &LogicalPlan) -> Result<bool> {
    let (left_may, right_may) = may_drive(kind);
    Ok((left_may && passes(left)? && !has_model(right)?)
        || (right_may && passes(right)? && !has_model(left)?))
}
