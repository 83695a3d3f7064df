//! How many cores a thread gives to the model that it runs.

use std::cell::Cell;

use super::super::replica::Device;
use super::library::ensure_loaded;
use crate::error::RuntimeError;
use crate::model::Resources;

thread_local! {
    /// The cores that the calling thread's model leases.
    pub(super) static THREADS: Cell<usize> = const { Cell::new(1) };
}

/// Resets the calling thread's number of cores.
#[derive(Debug)]
pub(in crate::runtime) struct ThreadGuard {
    before: usize,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        THREADS.set(self.before);
    }
}

/// As many threads as the model leases cores.
pub(in crate::runtime) fn enter_thread(
    resources: &Resources,
    device: Device,
) -> Result<ThreadGuard, RuntimeError> {
    ensure_loaded()?;
    Ok(ThreadGuard { before: THREADS.replace(threads(resources, device)) })
}

pub(super) fn threads(resources: &Resources, device: Device) -> usize {
    match device {
        Device::Cpu => resources.cpus.ceil().max(1) as usize,
        Device::Cuda(_) | Device::Emulated(_) => 1,
    }
}
