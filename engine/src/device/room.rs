//! How much of a device's memory models may take: what others leave, less what CUDA takes for itself.

use std::collections::BTreeMap;

use forebay_udf::runtime::Device;
use parking_lot::Mutex;

/// What a process takes of a CUDA device before any model is there: CUDA's context and the kernels of
/// libtorch and its libraries.
const CONTEXT_BYTES: u64 = 512 << 20;

/// Bytes of a device that nobody uses, if it tells.
type FreeBytes = fn(Device) -> Option<u64>;

/// What was free on the devices of this process when it had no model there.
#[derive(Debug)]
pub(crate) struct Room {
    measure: FreeBytes,
    free: Mutex<BTreeMap<Device, u64>>,
}

impl Room {
    /// Asks devices by `measure`.
    pub(crate) fn new(measure: FreeBytes) -> Self {
        Self { measure, free: Mutex::default() }
    }

    /// Of a device with `total` bytes. While models of this process are there, it cannot be told what is
    /// theirs and what is others': then what was free before counts. All of a device that does not tell is
    /// taken for free.
    pub(super) fn of_models(&self, device: Device, total: u64, is_used: bool) -> u64 {
        let Device::Cuda(_) = device else { return total };
        let mut known = self.free.lock();
        if !(is_used && known.contains_key(&device)) {
            let free = (self.measure)(device).unwrap_or(total);
            known.insert(device, free.saturating_sub(CONTEXT_BYTES));
        }
        known.get(&device).map_or(total, |free| total.min(*free))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use forebay_udf::model::{DeviceChoice, RuntimeKind, Share};

    use super::*;
    use crate::device::{Accelerator, Devices, Inventory, Owner};
    use crate::testing::emulated_model;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_others_use_and_the_context_are_left_out() {
        static FREE: AtomicU64 = AtomicU64::new(16 * GIB);
        let room = Room::new(|device| match device {
            Device::Cuda(0) => Some(FREE.load(Ordering::SeqCst)),
            _ => None,
        });
        let of = |device, is_used| room.of_models(device, 80 * GIB, is_used);
        assert_eq!(of(Device::Cuda(0), false), 16 * GIB - CONTEXT_BYTES);
        // Others have ended.
        FREE.store(79 * GIB, Ordering::SeqCst);
        assert_eq!(of(Device::Cuda(0), false), 79 * GIB - CONTEXT_BYTES);
        // A model of this process takes its part, which is not lost to it.
        FREE.store(GIB, Ordering::SeqCst);
        assert_eq!(of(Device::Cuda(0), true), 79 * GIB - CONTEXT_BYTES);
        assert_eq!(of(Device::Cuda(0), false), GIB - CONTEXT_BYTES);
        FREE.store(0, Ordering::SeqCst);
        assert_eq!(of(Device::Cuda(0), false), 0);
        // What does not tell, and what has no context.
        assert_eq!(of(Device::Cuda(1), false), 80 * GIB - CONTEXT_BYTES);
        assert_eq!(of(Device::Emulated(0), false), 80 * GIB);
    }

    #[test]
    fn models_are_placed_by_what_is_left() {
        let (device, name, memory) = (Device::Cuda(0), "H200".to_owned(), 140 * GIB);
        let given = Inventory::detect().with_cuda(vec![Accelerator { device, name, memory }]);
        let mut model = emulated_model("m");
        model.runtime = RuntimeKind::Torch { program: "model.pt".to_owned() };
        (model.device, model.resources.gpus) =
            (DeviceChoice::Cuda(None), Share::try_from(0.1).unwrap());
        model.resources.gpu_memory = 5 * GIB;
        let devices = Devices::new(given.clone()).with_room(Room::new(|_| Some(16 * GIB)));
        // Each has a workspace beside the 5 GiB, and the context takes its part.
        assert_eq!(devices.place(&model).unwrap().replicas(), 3);
        model.resources.gpu_memory = 16 * GIB;
        let error = devices.place(&model).unwrap_err().to_string();
        assert!(
            error.contains("gpu_memory=16.0 GiB") && error.contains("15.5 GiB for models"),
            "{error}"
        );
        // A session plans for what workers say.
        let cluster = Devices::new(given.with_owner(Owner::Cluster));
        assert_eq!(cluster.with_room(Room::new(|_| Some(0))).place(&model).unwrap().replicas(), 8);
    }

    /// `--gpu-memory` keeps a worker from taking all.
    #[test]
    fn a_limit_counts_where_it_is_less() {
        let room = Room::new(|_| Some(16 * GIB));
        assert_eq!(room.of_models(Device::Cuda(0), 4 * GIB, false), 4 * GIB);
        assert_eq!(room.of_models(Device::Cuda(0), 80 * GIB, false), 16 * GIB - CONTEXT_BYTES);
    }
}
