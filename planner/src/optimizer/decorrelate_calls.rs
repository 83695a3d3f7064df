//! Subqueries that name columns of the query around them become joins while `ml_predict` is still a
//! function in them.
//!
//! ```text
//! Filter: EXISTS (                             LeftSemi Join: t.id = u.id
//!   Filter: u.id = t.id AND ml_predict(u.c)  →   Scan: t
//!     Scan: u)                                   Filter: ml_predict(u.c)
//!   Scan: t                                        Scan: u
//! ```
//! DataFusion's own rules do it, as for any function. But they run after the analyzer, and by then the
//! call is an inference, above which they cannot pull a condition. What they leave a subquery is
//! refused here: further on, nothing could run it.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, not_impl_err};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Distinct, Expr, Join, LogicalPlan, LogicalPlanBuilder, Subquery};
use datafusion::optimizer::decorrelate_lateral_join::DecorrelateLateralJoin;
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::replace_distinct_aggregate::ReplaceDistinctWithAggregate;
use datafusion::optimizer::rewrite_set_comparison::RewriteSetComparison;
use datafusion::optimizer::scalar_subquery_to_join::ScalarSubqueryToJoin;
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerContext, OptimizerRule};
use forebay_udf::model::Catalog;

use super::calls_model;
use crate::logical::Inference;
use crate::sql::scalar;

/// See the [module](self).
#[derive(Debug)]
pub struct DecorrelateCalls {
    catalog: Arc<Catalog>,
}

impl DecorrelateCalls {
    /// For calls of the models of `catalog`.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog }
    }

    /// An inference over correlated rows, as a projection that calls its model.
    fn as_calls(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        let Some(inference) = Inference::of(&plan) else { return Ok(Transformed::no(plan)) };
        let input = inference.input();
        if input.all_out_ref_exprs().is_empty() {
            return Ok(Transformed::no(plan));
        }
        let call = scalar::call(&self.catalog, inference.model(), inference.args().to_vec());
        let outputs = scalar::outputs_of(&call, inference.model()).into_iter();
        let outputs = outputs.zip(inference.output_names());
        let outputs = outputs.map(|(output, name)| output.unalias().alias(name));
        let columns = input.schema().columns().into_iter().map(Expr::Column).chain(outputs);
        Ok(Transformed::yes(LogicalPlanBuilder::from(input.clone()).project(columns)?.build()?))
    }
}

impl AnalyzerRule for DecorrelateCalls {
    fn name(&self) -> &str {
        "decorrelate_calls"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut is_needed = false;
        visit(&plan, |_, (_, subquery)| {
            is_needed |= is_correlated(subquery);
            Ok(())
        })?;
        let plan = if is_needed {
            decorrelated(
                plan.transform_up_with_subqueries(|node| self.as_calls(node))?.data,
                config,
            )?
        } else {
            plan
        };
        visit(&plan, |node, (form, subquery)| match is_correlated(subquery) {
            true => refuse_correlated(subquery),
            false if form == Form::Condition && !matches!(node, LogicalPlan::Filter(_)) => {
                not_impl_err!(
                    "EXISTS and IN with ml_predict in their subquery are supported as conditions of \
                     WHERE and HAVING only; join with the subquery, or count its rows: (SELECT \
                     count(*) …) > 0"
                )
            }
            false => Ok(()),
        })?;
        Ok(plan)
    }
}

/// As what a subquery stands in its operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Condition,
    Value,
    Lateral,
}

/// Calls `f` for every subquery that calls a model, with the operator in which it stands.
fn visit(
    plan: &LogicalPlan,
    mut f: impl FnMut(&LogicalPlan, (Form, &Subquery)) -> Result<()>,
) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Subquery(subquery) = node
            && calls_model(&subquery.subquery)
        {
            f(node, (Form::Lateral, subquery))?;
        }
        for expr in node.expressions() {
            expr.apply(|expr| {
                if let Some((form, subquery)) = subquery_of(expr)
                    && calls_model(&subquery.subquery)
                {
                    f(node, (form, subquery))?;
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn subquery_of(expr: &Expr) -> Option<(Form, &Subquery)> {
    match expr {
        Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. }) => Some((Form::Condition, subquery)),
        Expr::ScalarSubquery(subquery) => Some((Form::Value, subquery)),
        _ => None,
    }
}

fn is_correlated(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
}

/// DataFusion's rules for subqueries, in their order.
fn decorrelated(mut plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    let context = OptimizerContext::new_with_config_options(Arc::new(config.clone()));
    context.alias_generator().update_min_id(LATER_ALIASES);
    let rules: [&dyn OptimizerRule; 5] = [
        &RewriteSetComparison::new(),
        &ReplaceDistinctWithAggregate::new(),
        &DecorrelatePredicateSubquery::new(),
        &ScalarSubqueryToJoin::new(),
        &DecorrelateLateralJoin::new(),
    ];
    for rule in rules {
        plan = match rule.apply_order() {
            Some(_) => plan.transform_down_with_subqueries(|node| match node {
                // It becomes an aggregate with a function that only the session knows: later, there.
                LogicalPlan::Distinct(Distinct::On(_)) => Ok(Transformed::no(node)),
                node => rule.rewrite(node, &context),
            }),
            None => rule.rewrite(plan, &context),
        }
        .data()?;
    }
    plan.transform_up_with_subqueries(|node| match &node {
        LogicalPlan::Join(join) => refuse_not_in(join).map(|()| Transformed::no(node)),
        _ => Ok(Transformed::no(node)),
    })
    .data()
}

/// The optimizer numbers its aliases from 1, and must not meet those that are made here.
const LATER_ALIASES: usize = 1000;

fn refuse_correlated(subquery: &Subquery) -> Result<()> {
    let columns = subquery.outer_ref_columns.iter().map(|column| match column {
        Expr::OuterReferenceColumn(_, column) => column.flat_name(),
        other => other.to_string(),
    });
    not_impl_err!(
        "ml_predict in a subquery that names columns of the query around it ({}): this subquery \
         cannot be turned into a join. Write EXISTS and IN as conditions of WHERE or HAVING, and a \
         subquery for a value with an aggregate such as max(…) and without LIMIT; or write FROM t CROSS \
         JOIN LATERAL ml_predict(MODEL m, t.column)",
        columns.collect::<Vec<_>>().join(", ")
    )
}

/// `NOT IN` with a second condition over both queries: DataFusion plans it, and finds no join for it.
fn refuse_not_in(join: &Join) -> Result<()> {
    let conditions = join.filter.as_ref().map_or(0, |filter| split_conjunction(filter).len());
    if join.null_aware && conditions + join.on.len() > 1 {
        return not_impl_err!(
            "NOT IN with a subquery that names columns of the query around it is not supported; write \
             NOT EXISTS (SELECT … WHERE … AND a = b)"
        );
    }
    Ok(())
}
