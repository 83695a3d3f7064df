//! Devices: what this process has, who holds which share, and which models are loaded on it.
//!
//! In: a model's declaration. Out: where its replicas go ([`Placement`]), a loaded model
//! ([`LoadedModel`]), a share of the device while a batch computes ([`Lease`]). Knows no plan.
//!
//! [`Devices`] is one per process, shared by all its queries through the session's configuration:
//!
//! ```
//! # use std::sync::Arc;
//! use datafusion::prelude::SessionConfig;
//! use forebay_engine::{Devices, Inventory};
//!
//! let devices = Arc::new(Devices::new(Inventory::detect()));
//! let config = SessionConfig::new().with_extension(devices);
//! ```

mod batching;
mod busy;
mod devices;
mod inventory;
mod lease;
mod lost;
mod models;
mod nvml;
mod once;
mod placement;
mod room;
mod sampler;
mod slot;
mod threads;

pub(crate) use batching::{Batching, batch_range};
pub use devices::Devices;
pub use inventory::{Accelerator, Inventory, Owner};
pub use lease::Lease;
pub use models::LoadedModel;
pub use nvml::{Driver, Gpu};
pub use placement::Placement;
pub use sampler::Utilization;
#[cfg(test)]
pub(crate) use sampler::{Meter, Samplers};
pub(crate) use sampler::{Reading, Watch};
pub(crate) use slot::{BatchError, Outcome, Slot, Submitted, in_flight_max};
#[cfg(test)]
pub(crate) use threads::ahead::Ahead;
