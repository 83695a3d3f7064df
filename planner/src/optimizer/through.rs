//! Looking through operators: what an expression above one is in terms of its input, and carrying
//! columns of the input up through it.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection};

/// Where to look on below an operator that passes rows and columns through.
#[derive(Debug)]
pub(super) struct Through {
    /// Which of the operator's inputs.
    pub(super) input: usize,
    /// The expressions, over that input's columns.
    pub(super) exprs: Vec<Expr>,
}

impl Through {
    /// `None` if the operator computes the columns of `exprs`, or changes rows in a way that it
    /// is not known for (it may still remove or repeat whole rows).
    pub(super) fn of(plan: &LogicalPlan, exprs: &[Expr]) -> Option<Self> {
        let (input, exprs) = match plan {
            LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) => {
                (0, exprs.to_vec())
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let (above, below) = (alias.schema.columns(), alias.input.schema().columns());
                let meaning = |column: &Column| {
                    let at = above.iter().position(|other| other == column)?;
                    below.get(at).cloned().map(Expr::Column)
                };
                (0, replaced(exprs, meaning)?)
            }
            LogicalPlan::Projection(projection) => (0, below_projection(projection, exprs)?),
            LogicalPlan::Join(join) => {
                let is_of = |side: &LogicalPlan| {
                    let columns = exprs.iter().flat_map(|expr| expr.column_refs());
                    let columns: Vec<&Column> = columns.collect();
                    !columns.is_empty() && columns.iter().all(|c| side.schema().has_column(c))
                };
                let (left, right) = match join.join_type {
                    JoinType::LeftSemi | JoinType::LeftAnti => (true, false),
                    JoinType::RightSemi | JoinType::RightAnti => (false, true),
                    JoinType::LeftMark | JoinType::RightMark => (false, false),
                    _ => (true, true),
                };
                let (input, may_be_null) =
                    match (left && is_of(&join.left), right && is_of(&join.right)) {
                        (true, false) => (0, [JoinType::Right, JoinType::Full]),
                        (false, true) => (1, [JoinType::Left, JoinType::Full]),
                        _ => return None,
                    };
                // In rows that the join makes up, a column is NULL on both ways, and so is what a
                // model gives for it. Other expressions may make something else of NULL.
                let is_column = |expr: &Expr| matches!(expr, Expr::Column(_));
                if may_be_null.contains(&join.join_type) && !exprs.iter().all(is_column) {
                    return None;
                }
                (input, exprs.to_vec())
            }
            _ => return None,
        };
        Some(Self { input, exprs })
    }
}

/// The expressions over a projection's output, over its input.
pub(super) fn below_projection(projection: &Projection, exprs: &[Expr]) -> Option<Vec<Expr>> {
    let columns = projection.schema.columns();
    let meaning = |column: &Column| {
        let at = columns.iter().position(|other| other == column)?;
        let expr = projection.expr.get(at)?.clone().unalias();
        (!expr.is_volatile()).then_some(expr)
    };
    replaced(exprs, meaning)
}

/// The expressions with every column replaced; `None` if one has no meaning below.
pub(super) fn replaced(
    exprs: &[Expr],
    meaning: impl Fn(&Column) -> Option<Expr>,
) -> Option<Vec<Expr>> {
    let replace = |expr: &Expr| {
        let mut known = true;
        let replaced = expr.clone().transform(|expr| {
            let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
            Ok(match meaning(column) {
                // Not to be looked into: its columns are those of the input already.
                Some(found) => Transformed::new(found, true, TreeNodeRecursion::Jump),
                None => {
                    known = false;
                    Transformed::no(expr)
                }
            })
        });
        replaced.data().ok().filter(|_| known)
    };
    exprs.iter().map(replace).collect()
}

/// The operator over a new input that also has the columns `found`, which the operator passes on;
/// and their names above it. `None` if a name would be taken.
pub(super) fn carrying(
    plan: &LogicalPlan,
    input: usize,
    below: LogicalPlan,
    found: Vec<Column>,
) -> Option<(LogicalPlan, Vec<Column>)> {
    let mut exprs = plan.expressions();
    if let LogicalPlan::Projection(projection) = plan {
        let new = found
            .iter()
            .filter(|column| !projection.expr.contains(&Expr::Column((*column).clone())));
        exprs.extend(new.cloned().map(Expr::Column));
    }
    let mut inputs: Vec<LogicalPlan> = plan.inputs().into_iter().cloned().collect();
    *inputs.get_mut(input)? = below;
    let carried = plan.with_new_exprs(exprs, inputs).ok()?;
    let names = match (plan, &carried) {
        (LogicalPlan::SubqueryAlias(_), LogicalPlan::SubqueryAlias(alias)) => {
            let (above, below) = (alias.schema.columns(), alias.input.schema().columns());
            let renamed = |column: &Column| {
                above.get(below.iter().position(|other| other == column)?).cloned()
            };
            found.iter().map(renamed).collect::<Option<_>>()?
        }
        _ => found,
    };
    let has_all = names.iter().all(|column| {
        carried.schema().columns().iter().filter(|other| other.name == column.name).count() == 1
    });
    has_all.then_some((carried, names))
}
