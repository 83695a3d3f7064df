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
//! survives the way to another process. `bound_projections` runs last: a `BoundedProjectionExec`
//! takes the place of every projection whose functions may make rows large.
//!
//! `describe` answers `DESCRIBE` for tensors, and `verdict` puts the last line under
//! `EXPLAIN ANALYZE`.

pub(crate) mod bound_projections;
mod describe;
mod field_expr;
mod insert_exchanges;
mod lower_inference;
mod verdict;

pub(crate) use field_expr::FieldExpr;
pub use field_expr::KeepFields;
pub use insert_exchanges::InsertExchanges;
pub use lower_inference::{ForebayQueryPlanner, plan, with_verdict};
pub(crate) use verdict::VerdictExec;
