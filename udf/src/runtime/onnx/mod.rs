//! ONNX Runtime through `ort`. The only folder that may name `ort`.
//!
//! Every way in calls [`library::ensure_loaded`] before anything of `ort`, which would otherwise look
//! for the library itself, and panic where there is none.

#![allow(unsafe_code, reason = "one call of ONNX Runtime's; it says why it is sound")]

mod dense;
mod head;
mod input;
mod library;
mod output;
mod program;
mod replica;
mod session;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;

pub use library::{ONNXRUNTIME_VERSION, OnnxRuntimeInfo, ensure_loaded as info, is_missing};

use super::{Device, Replica};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Resources};

thread_local! {
    /// The cores that the calling thread's model leases.
    static THREADS: Cell<usize> = const { Cell::new(1) };
}

/// Resets the calling thread's number of cores.
#[derive(Debug)]
pub(super) struct ThreadGuard {
    before: usize,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        THREADS.set(self.before);
    }
}

/// As many threads as the model leases cores.
pub(super) fn enter_thread(
    resources: &Resources,
    device: Device,
) -> Result<ThreadGuard, RuntimeError> {
    library::ensure_loaded()?;
    Ok(ThreadGuard { before: THREADS.replace(threads(resources, device)) })
}

fn threads(resources: &Resources, device: Device) -> usize {
    match device {
        Device::Cpu => resources.cpus.ceil().max(1) as usize,
        Device::Cuda(_) | Device::Emulated(_) => 1,
    }
}

/// Loads an ONNX program on a device.
pub(super) fn load(
    model: &ModelDeclaration,
    package: &Package,
    device: Device,
) -> Result<Arc<dyn Replica>, RuntimeError> {
    Ok(Arc::new(replica::OnnxReplica::load(model, package, device)?))
}
