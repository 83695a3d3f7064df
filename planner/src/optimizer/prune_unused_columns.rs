//! Drops what nobody above an inference needs: columns that only the model reads, outputs, and the
//! whole inference if none of its outputs is left.
//!
//! ```text
//! Projection: id, p.label            Projection: id, p.label
//!   Inference: [id, text, label,  →    Inference: [id, label]
//!               score]                   Scan: id, text
//!     Scan: id, text
//! ```
//! A model that may fail for a share of the rows only runs though nobody reads its outputs: whoever
//! has set `max_error_ratio` wants to hear when it is exceeded.
//!
//! DataFusion prunes what a node reads; what our node passes on, only this rule can narrow. The
//! texts and images that a model has read then wait in no exchange.

use std::collections::HashSet;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, JoinType, LogicalPlan};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::{contains_inference, is_subquery, option};
use crate::logical::Inference;

/// See the [module](self).
#[derive(Debug)]
pub struct PruneUnusedColumns;

impl OptimizerRule for PruneUnusedColumns {
    fn name(&self) -> &str {
        "prune_unused_columns"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if !option(config, |config| config.prune_unused_columns) || !contains_inference(&plan)? {
            return Ok(Transformed::no(plan));
        }
        prune(plan, &Needed::All)
    }
}

/// Which of a plan's columns are needed above it.
#[derive(Clone, Debug)]
enum Needed {
    All,
    Only(HashSet<Column>),
}

impl Needed {
    fn only<'a>(columns: impl IntoIterator<Item = &'a Column>) -> Self {
        Self::Only(columns.into_iter().cloned().collect())
    }

    fn and<'a>(&self, columns: impl IntoIterator<Item = &'a Column>) -> Self {
        match self {
            Self::All => Self::All,
            Self::Only(needed) => {
                let mut needed = needed.clone();
                needed.extend(columns.into_iter().cloned());
                Self::Only(needed)
            }
        }
    }

    fn has(&self, column: &Column) -> bool {
        match self {
            Self::All => true,
            Self::Only(needed) => needed.contains(column),
        }
    }
}

fn prune(plan: LogicalPlan, needed: &Needed) -> Result<Transformed<LogicalPlan>> {
    if let Some(inference) = Inference::of(&plan) {
        return prune_inference(inference, needed);
    }
    let below = needed_below(&plan, needed);
    let mut changed = false;
    let inputs = plan.inputs().into_iter().zip(below).map(|(input, needed)| {
        let input = prune(input.clone(), &needed)?;
        changed |= input.transformed;
        Ok(input.data)
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    if !changed {
        return Ok(Transformed::no(plan));
    }
    let plan = plan.with_new_exprs(plan.expressions(), inputs)?;
    Ok(Transformed::yes(plan))
}

fn prune_inference(inference: &Inference, needed: &Needed) -> Result<Transformed<LogicalPlan>> {
    let is_needed = inference.model().counts_its_failures()
        || inference.output_columns().any(|output| needed.has(&output));
    if !is_needed {
        let input = prune(inference.input().clone(), needed)?;
        return Ok(Transformed::yes(input.data));
    }
    let of_args = inference.args().iter().flat_map(|arg| arg.column_refs());
    let input = prune(inference.input().clone(), &needed.and(of_args))?;
    let columns = inference.input().schema().columns().into_iter();
    let columns = columns.chain(inference.output_columns());
    let unused: HashSet<Column> = columns
        .filter(|column| !needed.has(column) || inference.dropped().contains(column))
        .collect();
    let narrows = unused.iter().any(|column| !inference.dropped().contains(column));
    let pruned = inference.with_input(input.data)?.with_dropped(unused)?.into_plan();
    Ok(Transformed::new_transformed(pruned, input.transformed || narrows))
}

/// What is needed of each input of an operator that is no inference.
fn needed_below(plan: &LogicalPlan, needed: &Needed) -> Vec<Needed> {
    let exprs = plan.expressions();
    let has_subquery = |expr: &Expr| expr.exists(|expr| Ok(is_subquery(expr))).unwrap_or(true);
    let all = vec![Needed::All; plan.inputs().len()];
    // What a subquery inside an expression needs of this plan, it does not say.
    if exprs.iter().any(has_subquery) {
        return all;
    }
    let used = exprs.iter().flat_map(|expr| expr.column_refs());
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) => vec![Needed::only(used)],
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Window(_) => vec![needed.and(used)],
        LogicalPlan::SubqueryAlias(alias) => {
            let below = alias.input.schema().columns();
            let renamed = alias.schema.columns().into_iter().zip(&below);
            match needed {
                Needed::All => all,
                Needed::Only(_) => {
                    let renamed = renamed.filter(|(column, _)| needed.has(column));
                    vec![Needed::only(renamed.map(|(_, below)| below))]
                }
            }
        }
        LogicalPlan::Join(join) => {
            let used: Vec<&Column> = used.collect();
            let only = || Needed::only(used.iter().copied());
            let both = || needed.and(used.iter().copied());
            match join.join_type {
                JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                    vec![both(), only()]
                }
                JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                    vec![only(), both()]
                }
                _ => vec![both(), both()],
            }
        }
        _ => all,
    }
}
