//! What libtorch is told of a thread that runs a model.

use super::super::replica::Device;
use super::{library, shim};
use crate::error::RuntimeError;
use crate::model::Resources;

/// libtorch's settings of one thread.
#[derive(Debug)]
pub(in crate::runtime) struct ThreadGuard {
    // In this order: what was entered last is left first.
    _stream: Option<shim::StreamGuard>,
    _inference_mode: shim::InferenceMode,
}

/// Inference mode, as many intra-op threads as the model leases cores, and on an accelerator a
/// stream of the thread's own.
pub(in crate::runtime) fn enter_thread(
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
