//! `Inference` → operators. Passes, in order, and what holds after each:
//!
//! 1. `lower_inference` (while DataFusion plans): `InferenceExec` over `TransformExec`, with a
//!    device for every replica. The plan runs, one replica per input partition.
//! 2. `insert_exchanges` (before DataFusion's physical rules): a `StreamingExchangeExec` below
//!    every `InferenceExec`, and a `RestoreOrderExec` above it where somebody relies on the
//!    input's order. Partitions are now replicas; DataFusion's rules for distribution and sorting
//!    run afterwards and see the declared properties.
//!
//! `verdict` puts the last line under `EXPLAIN ANALYZE`.

mod insert_exchanges;
mod lower_inference;
mod verdict;

pub use insert_exchanges::InsertExchanges;
pub use lower_inference::{ForebayQueryPlanner, plan, with_verdict};
pub(crate) use verdict::VerdictExec;
