//! `Inference` → operators. Passes, in order, and what holds after each:
//!
//! 1. `lower_inference` (while DataFusion plans): `InferenceExec` over `TransformExec`, with a
//!    device for every replica. The plan runs, one replica per input partition.
//! 2. `insert_exchanges` (before DataFusion's physical rules): a `StreamingExchangeExec` below
//!    every `InferenceExec`, and a `RestoreOrderExec` above it where somebody relies on the
//!    input's order. Partitions are now replicas; DataFusion's rules for distribution and sorting
//!    run afterwards and see the declared properties.
//!
//! `field_expr` runs before `insert_exchanges`: what a function says of its field beyond the type
//! survives the way to another process. `bound_projections` runs late: a `BoundedProjectionExec`
//! takes the place of every projection whose functions may make rows large. After it, `stage_writes` puts a
//! `CommitExec` over a `WriteExec` in the place of what writes files, and `short_memory` what
//! does with a limit of memory in the place of joins and sorts. `keep_offsets` keeps a rule
//! of DataFusion's from moving sorts past offsets, `meet_requirements` another from refusing plans that lack
//! one. Whoever runs DataFusion's rules once more asks for
//! `disguised` plans.
//!
//! `resumable` cuts a write into parts, each of which is kept when the others fail.
//!
//! `describe` answers `DESCRIBE` for tensors, `precision` whether devices have a model's, and `verdict` puts the last line under
//! `EXPLAIN ANALYZE`.

pub(crate) mod bound_projections;
mod describe;
mod disguise;
mod field_expr;
mod insert_exchanges;
pub(crate) mod keep_offsets;
mod lower_inference;
pub(crate) mod meet_requirements;
mod noted;
mod ordered_joins;
mod precision;
pub mod resumable;
pub(crate) mod short_memory;
pub(crate) mod stage_writes;
mod verdict;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{TransformedResult, TreeNode};
use datafusion::physical_plan::ExecutionPlan;

pub(crate) use field_expr::FieldExpr;
pub use field_expr::KeepFields;
pub use insert_exchanges::InsertExchanges;
pub use lower_inference::{ForebayQueryPlanner, plan};
pub use noted::{NotedExec, Notes, is_for_people};
pub use ordered_joins::OrderedJoins;
pub(crate) use precision::{check_precision, programs};
pub use verdict::with_verdict;

/// A plan of optimized operators as DataFusion's rules for distribution and order may see it once more.
///
/// # Errors
/// None that building the plan did not find already.
pub fn disguised(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(bound_projections::unbounded)
        .data()?
        .transform_up(keep_offsets::hidden_with_limits)
        .data()
}

/// A [`disguised`] plan, or a part of one, with the operators that run.
///
/// # Errors
/// None that building the plan did not find already.
pub fn undisguised(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(keep_offsets::shown).data()?.transform_up(bound_projections::bounded).data()
}
