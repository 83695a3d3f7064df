//! M producer partitions → N replicas, bounded by bytes, cut into the batches that a model wants.
//!
//! ```text
//!  producers (M tasks)          one state, shared               replicas (N streams)
//!
//!  partition 0 ──┐   ┌ budget ───────────────────────────┐   ┌──▶ replica 0
//!  partition 1 ──┼──▶│  open window ──seal──▶ batch batch│───┤
//!  partition 2 ──┘   │  (rows arrive)       (longest 1st)│   └──▶ replica 1
//!       ▲            └───────────────────────────────────┘    whoever asks first
//!       └─ waits while the budget or the window is full
//! ```
//!
//! - Rows: all kept, each in exactly one batch; the schema stays, plus a sequence number if
//!   `ordered`, plus the numbers of equal inputs if they are shared: such rows are neighbors in one
//!   batch, and only the first counts towards its limits.
//! - Order: none, unless a [`RestoreOrderExec`] above puts it back.
//! - Memory: the rows that wait are at most `byte_budget` and are reserved in the memory pool; one
//!   block that is larger passes alone. What the pool refuses, a producer waits for.
//! - Cancel: dropping the streams ends the producers' tasks at their next await.
//! - Errors and panics of a producer end every replica's stream, each with that error once.
//!
//! `queue`, `seal`, `batcher`, `share`, `budget` and `order` know no plan and no runtime.

mod batcher;
pub(crate) mod budget;
mod exec;
mod limits;
mod metrics;
mod order;
mod queue;
mod restore;
mod rows;
mod seal;
mod share;
mod stall;
mod stream;
mod window;
pub mod wire;

#[cfg(test)]
mod tests;

pub use exec::{ExchangeOptions, StreamingExchangeExec};
pub(crate) use limits::LiveLimits;
pub use restore::RestoreOrderExec;
pub use window::Sharing;
