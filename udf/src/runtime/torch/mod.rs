//! libtorch through `tch`. The only folder that may name `tch`.
//!
//! Every way in calls [`library::ensure_loaded`] before anything of `tch`: until then its
//! functions are trampolines into nothing (see `build.rs`).

#![allow(unsafe_code, reason = "calls into libtorch; each block says why it is sound")]

mod allocator;
mod arguments;
mod calls;
mod choices;
mod failure;
mod lane;
mod library;
mod linear;
mod made_up;
mod memory;
mod output;
mod pipeline;
mod programs;
mod replica;
mod rounding;
mod shim;
mod streams;
mod tensor;
#[cfg(test)]
mod tests;
mod thread;
mod usage;

use std::sync::Arc;

pub use choices::remember_kernels_in;
pub(super) use library::driver_devices;
pub use library::{CudaDevice, LIBTORCH_VERSION, LibtorchInfo, ensure_loaded as info};
pub use memory::keep_freed_memory;
pub use programs::{Kind as ProgramKind, Taken as TakenProgram};
pub(super) use thread::{ThreadGuard, enter_thread};

use self::linear::LinearKernels;
use super::replica::{Device, Replica};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package};

/// Loads a model on a device.
pub(super) fn load(
    model: &ModelDeclaration,
    package: &Package,
    device: Device,
) -> Result<Arc<dyn Replica>, RuntimeError> {
    library::usable(device)?;
    Ok(Arc::new(replica::TorchReplica::load(model, package, device, LinearKernels::wanted())?))
}

/// Free and total memory of a CUDA device, in bytes.
///
/// # Errors
/// [`RuntimeError::Library`] or [`RuntimeError::Device`].
pub fn cuda_memory(ordinal: u16) -> Result<(u64, u64), RuntimeError> {
    let device = Device::Cuda(ordinal);
    library::usable(device)?;
    shim::device_memory(ordinal).map_err(|e| library::device_problem(device, e))
}
