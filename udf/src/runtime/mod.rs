//! What executes a model: loads its program on a device and runs batches.
//!
//! [`Replica::prepare`] is apart from [`Replica::forward`], so that batch k+1 becomes device input
//! while batch k computes. The engine sees Arrow arrays and these two calls, never a tensor.

mod cpu;
mod device_failure;
mod emulated;
mod labels;
pub mod onnx;
mod outputs;
mod places;
mod replica;
pub mod torch;
mod work;

pub use cpu::check_precision;
pub use replica::{Device, Held, Lane, Prepared, Replica, Usage};

use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, RuntimeKind};

/// The CUDA devices by the account of NVIDIA's driver, whatever library would use them.
///
/// # Errors
/// Why there are none.
pub fn driver_devices() -> Result<Vec<torch::CudaDevice>, String> {
    torch::driver_devices()
}

/// What [`enter_thread`] has set for the calling thread, undone on drop.
#[derive(Debug)]
pub struct ThreadGuard {
    _torch: Option<torch::ThreadGuard>,
    _onnx: Option<onnx::ThreadGuard>,
    // The settings belong to one thread, so the guard must stay on it.
    _not_send: PhantomData<*const ()>,
}

/// Readies the calling thread for this model on this device: called once, and kept for as long as
/// the thread calls [`Replica::prepare`] or [`Replica::forward`].
///
/// # Errors
/// [`RuntimeError::Library`] or [`RuntimeError::Device`].
pub fn enter_thread(model: &ModelDeclaration, device: Device) -> Result<ThreadGuard, RuntimeError> {
    let (mut torch, mut onnx) = (None, None);
    match &model.runtime {
        RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } => {
            torch = Some(torch::enter_thread(&model.resources, device)?);
        }
        RuntimeKind::Onnx { .. } => onnx = Some(onnx::enter_thread(&model.resources, device)?),
        RuntimeKind::Emulated { .. } => {}
    }
    Ok(ThreadGuard { _torch: torch, _onnx: onnx, _not_send: PhantomData })
}

/// Accelerators multiply matrices in tiles, so lengths of texts are rounded up there.
const TILE: u32 = 8;

/// To a multiple of what a device rounds the lengths of a model's rows up.
pub fn length_multiple(model: &ModelDeclaration, device: Device) -> u32 {
    match (&model.runtime, device) {
        (RuntimeKind::Torch { .. }, Device::Cuda(_)) => TILE,
        (RuntimeKind::Emulated { curve: Some(_), .. }, Device::Emulated(_)) => TILE,
        _ => 1,
    }
}

/// Loads a model on a device. Blocks; takes as long as reading the weights.
///
/// # Errors
/// [`RuntimeError`] of every kind but those of a batch.
pub fn load(
    model: &ModelDeclaration,
    package: &Package,
    device: Device,
) -> Result<Arc<dyn Replica>, RuntimeError> {
    match &model.runtime {
        RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } => torch::load(model, package, device),
        RuntimeKind::Onnx { .. } => onnx::load(model, package, device),
        RuntimeKind::Emulated { .. } => emulated::load(model, device),
    }
}
