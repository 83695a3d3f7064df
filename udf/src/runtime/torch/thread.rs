//! What libtorch is told of a thread that runs a model.

use super::super::replica::Device;
use super::{library, shim};
use crate::error::RuntimeError;
use crate::model::Resources;

/// libtorch's settings of one thread.
#[derive(Debug)]
pub(in crate::runtime) struct ThreadGuard {
    _inference_mode: shim::InferenceMode,
}

/// Inference mode, and as many intra-op threads as the model leases cores.
pub(in crate::runtime) fn enter_thread(
    resources: &Resources,
    device: Device,
) -> Result<ThreadGuard, RuntimeError> {
    library::usable(device)?;
    let inference_mode = shim::InferenceMode::enter();
    let threads = if device == Device::Cpu { resources.cpus.ceil().max(1) } else { 1 };
    shim::set_threads(threads).map_err(|e| library::device_problem(device, e))?;
    Ok(ThreadGuard { _inference_mode: inference_mode })
}
