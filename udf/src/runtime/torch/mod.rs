//! libtorch through `tch`. The only folder that may name `tch`.
//!
//! Every way in calls [`library::ensure_loaded`] before anything of `tch`: until then its
//! functions are trampolines into nothing (see `build.rs`).

#![allow(unsafe_code, reason = "calls into libtorch; each block says why it is sound")]

mod choices;
mod failure;
mod library;
mod linear;
mod memory;
mod output;
mod replica;
mod shim;
mod tensor;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use choices::remember_kernels_in;
pub(super) use library::driver_devices;
pub use library::{CudaDevice, LIBTORCH_VERSION, LibtorchInfo, ensure_loaded as info};
pub use memory::keep_freed_memory;

use self::linear::LinearKernels;
use super::{Device, Replica};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Resources};

/// libtorch's settings of one thread.
#[derive(Debug)]
pub(super) struct ThreadGuard {
    // In this order: what was entered last is left first.
    _stream: Option<shim::StreamGuard>,
    _inference_mode: shim::InferenceMode,
}

/// Inference mode, as many intra-op threads as the model leases cores, and on an accelerator a
/// stream of the thread's own.
pub(super) fn enter_thread(
    resources: &Resources,
    device: Device,
) -> Result<ThreadGuard, RuntimeError> {
    library::usable(device)?;
    let inference_mode = shim::InferenceMode::enter();
    let stream = match device {
        Device::Cuda(ordinal) => Some(
            shim::StreamGuard::enter(ordinal).map_err(|e| library::device_problem(device, e))?,
        ),
        _ => None,
    };
    let threads = if device == Device::Cpu { resources.cpus.ceil().max(1) } else { 1 };
    shim::set_threads(threads).map_err(|e| library::device_problem(device, e))?;
    Ok(ThreadGuard { _stream: stream, _inference_mode: inference_mode })
}

/// Loads a TorchScript model on a device.
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
