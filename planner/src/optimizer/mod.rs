//! Rules on logical plans, in the order in which they run.
//!
//! Analyzer rules, before every optimizer rule, because `ml_predict` in an expression is a marker
//! that nothing may evaluate, duplicate or fold:
//!
//! 1. [`flatten_lateral_inference`]: a correlated call becomes a projection over the left side
//! 2. [`decorrelate_calls`]: other correlated subqueries with calls become joins
//! 3. [`extract_scalar_inference`]: a call in an expression becomes an [`Inference`] node below the
//!    operator; conditions of a WHERE run in order of their cost
//! 4. [`compute_inputs_below_inference`]: a model's input that needs a subquery's result
//!    or calls an asynchronous function
//! 5. [`allow_pushdown`]: what DataFusion's own rules may move below an inference
//!
//! Before them [`resolve_text_chunk`] looks up the models whose tokenizers cut texts.
//!
//! Optimizer rules, after DataFusion's in each of its passes:
//!
//! 6. [`drop_empty_inferences`]: what has no rows needs no model
//! 7. [`merge_equal_inferences`]: the same model over the same columns runs once
//! 8. [`push_semi_joins_below_inference`], 9. [`push_topk_below_inference`]: what only removes rows
//!    runs first
//! 10. [`prune_unused_columns`]: what nobody needs is dropped, the whole inference included
//!
//! Some rules are for queries without a model too, where DataFusion itself fails:
//! [`computed_sort_keys`], [`nullable_recursions`], [`refuse_subqueries_in_changes`], [`remove_repeated_keys`], [`scalar_subqueries`],
//! [`three_valued_in`], [`unordered_grouping_sets`], [`unordered_windows`] and [`values_as_projections`].
//!
//! DataFusion's own rules move filters, limits and projections past inference by what the node
//! tells them. Each rewrite has an option that switches it off. None of ours moves rows past a model that
//! is volatile or that counts its failing rows; DataFusion's moves conditions that name no column at
//! all, such as `random() < 0.5`, past everything ([`needs_its_rows`](forebay_udf::model::ModelDeclaration::needs_its_rows)).

pub mod allow_pushdown;
pub mod compute_inputs_below_inference;
pub mod computed_sort_keys;
pub mod decorrelate_calls;
pub mod drop_empty_inferences;
pub mod extract_scalar_inference;
pub mod flatten_lateral_inference;
mod lift;
pub mod merge_equal_inferences;
pub mod nullable_recursions;
pub mod prune_unused_columns;
pub mod push_semi_joins_below_inference;
pub mod push_topk_below_inference;
pub mod refuse_subqueries_in_changes;
pub mod remove_repeated_keys;
pub mod resolve_text_chunk;
pub mod scalar_subqueries;
pub mod three_valued_in;
mod through;
pub mod unordered_grouping_sets;
pub mod unordered_windows;
pub mod values_as_projections;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};
use forebay_udf::model::Catalog;

use crate::config::ForebayConfig;
use crate::logical::Inference;

/// All analyzer rules, in order, for the models of `catalog`.
pub fn analyzer_rules(catalog: &Arc<Catalog>) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    vec![
        Arc::new(refuse_subqueries_in_changes::RefuseSubqueriesInChanges),
        Arc::new(remove_repeated_keys::RemoveRepeatedKeys),
        Arc::new(unordered_grouping_sets::UnorderedGroupingSets),
        Arc::new(unordered_windows::UnorderedWindows),
        Arc::new(values_as_projections::ValuesAsProjections),
        Arc::new(flatten_lateral_inference::FlattenLateralInference),
        Arc::new(computed_sort_keys::ComputedSortKeys),
        Arc::new(nullable_recursions::NullableRecursions),
        Arc::new(three_valued_in::ThreeValuedIn),
        Arc::new(scalar_subqueries::ScalarSubqueries),
        Arc::new(decorrelate_calls::DecorrelateCalls::new(Arc::clone(catalog))),
        Arc::new(extract_scalar_inference::ExtractScalarInference),
        Arc::new(compute_inputs_below_inference::ComputeInputsBelowInference),
        Arc::new(allow_pushdown::AllowPushdown),
    ]
}

/// All optimizer rules, in order.
pub fn optimizer_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    vec![
        Arc::new(drop_empty_inferences::DropEmptyInferences),
        Arc::new(merge_equal_inferences::MergeEqualInferences),
        Arc::new(push_semi_joins_below_inference::PushSemiJoinsBelowInference),
        Arc::new(push_topk_below_inference::PushTopkBelowInference),
        Arc::new(prune_unused_columns::PruneUnusedColumns),
        Arc::new(remove_repeated_keys::RemoveRepeatedKeys),
    ]
}

fn option(config: &dyn OptimizerConfig, get: impl Fn(&ForebayConfig) -> bool) -> bool {
    let options = config.options();
    match options.extensions.get::<ForebayConfig>() {
        Some(config) => get(config),
        None => get(&ForebayConfig::default()),
    }
}

/// Whether there is anything for a rule to do.
fn contains_inference(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|plan| {
        found |= Inference::of(plan).is_some();
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Whether a plan has an inference, or a call that will become one.
pub(crate) fn calls_model(plan: &LogicalPlan) -> bool {
    let mut found = false;
    let visited = plan.apply_with_subqueries(|node| {
        found |= Inference::of(node).is_some()
            || node.expressions().iter().any(extract_scalar_inference::contains_call);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found || visited.is_err()
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_)
    )
}
