//! Which ready work goes to which worker: pure.

mod budget;
mod policy;
mod resources;
mod round;

pub use budget::{Admission, Operator, PaperBudget, seconds_per_partition};
#[cfg(test)]
pub(crate) use policy::place_counted;
pub use policy::{Binding, Job, Policy, place};
pub use resources::{
    AcceleratorNeed, Device, Lease, MissingResource, Need, NotAShare, WHOLE, WorkerState,
    could_ever_fit, waiting_for,
};
