//! A model in a plan: its transform and its forward pass, as two operators.
//!
//! ```text
//!  input batch ──▶ TransformExec ──▶ + prepared columns      (CPU, any number of partitions)
//!                        │
//!                   [exchange]
//!                        ▼
//!                  InferenceExec ──▶ − prepared columns + outputs   (one partition per replica)
//!
//!  async side      prepare k+1 ─┐
//!  slot's thread   lease, forward k ──▶ outputs of k
//! ```
//!
//! - Rows: all kept. A row with a NULL input never reaches the model; its outputs are NULL.
//! - Order and partitions: the input's.
//! - Memory: two batches per partition.
//! - Cancel: a batch that computes is finished and thrown away; its lease returns then.
//! - Errors: name model, device and number of rows. A batch that does not fit into the device's
//!   memory is halved, down to a single row. Unless the model's `on_error` is `fail`, a batch that
//!   fails because of its data is halved until the row at fault is alone; that row's outputs are
//!   NULL, and with `route` a column `_error` says why.

mod batch;
mod bisect;
mod exec;
mod in_flight;
mod metrics;
mod on_error;
mod setup;
mod stream;
mod tally;
mod transform;
mod watches;
pub mod wire;

#[cfg(test)]
mod tests;

pub use exec::{InferenceExec, output_schema};
pub(crate) use metrics::{OPERATIONS, PINNED_PEAK, RESERVED_PEAK};
pub use transform::TransformExec;
