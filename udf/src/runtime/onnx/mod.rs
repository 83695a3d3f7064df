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
mod thread;

use std::sync::Arc;

pub use library::{ONNXRUNTIME_VERSION, OnnxRuntimeInfo, ensure_loaded as info, is_missing};
pub(super) use thread::{ThreadGuard, enter_thread};

use super::replica::{Device, Replica};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package};

/// Loads an ONNX program on a device.
pub(super) fn load(
    model: &ModelDeclaration,
    package: &Package,
    device: Device,
) -> Result<Arc<dyn Replica>, RuntimeError> {
    Ok(Arc::new(replica::OnnxReplica::load(model, package, device)?))
}
