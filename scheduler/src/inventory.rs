//! What workers have, as a session plans for it.

use forebay_engine::device::Owner;
use forebay_engine::{Accelerator, Devices, Inventory};
use forebay_udf::runtime::Device;

use crate::protocol::messages;

/// What messages call an NVIDIA GPU.
pub const CUDA: &str = "cuda";
/// What messages call an emulated accelerator.
pub const EMULATED: &str = "emulated";

/// What a process has, as it travels. CUDA devices are counted here, which loads libtorch.
pub fn to_message(
    devices: &Devices,
    labels: Vec<String>,
    work_limit: Option<u64>,
) -> messages::Inventory {
    let inventory = devices.inventory();
    let accelerators = devices.cuda().unwrap_or_default();
    let accelerators = accelerators.iter().chain(inventory.emulated());
    messages::Inventory {
        cpus: inventory.cpus,
        memory: inventory.memory,
        accelerators: accelerators.filter_map(accelerator_to_message).collect(),
        labels,
        work_limit,
    }
}

fn accelerator_to_message(accelerator: &Accelerator) -> Option<messages::Accelerator> {
    let (kind, ordinal) = match accelerator.device {
        Device::Cpu => return None,
        Device::Cuda(ordinal) => (CUDA, u32::from(ordinal)),
        Device::Emulated(ordinal) => (EMULATED, u32::from(ordinal)),
    };
    Some(messages::Accelerator {
        kind: kind.to_owned(),
        ordinal,
        name: accelerator.name.clone(),
        memory: accelerator.memory,
    })
}

/// The device that a message calls so, if there is such a kind.
pub fn device(kind: &str, ordinal: u32) -> Option<Device> {
    let ordinal = u16::try_from(ordinal).ok()?;
    match kind {
        CUDA => Some(Device::Cuda(ordinal)),
        EMULATED => Some(Device::Emulated(ordinal)),
        _ => None,
    }
}

/// The sum of what workers have: what a session on a cluster plans for. Memory is the largest
/// worker's, because a replica lives on one.
pub fn pooled(workers: &[messages::Worker]) -> Inventory {
    let inventories = || workers.iter().map(|worker| &worker.inventory);
    let cpus: u32 = inventories().map(|inventory| inventory.cpus).sum();
    let memory = inventories().map(|inventory| inventory.memory).max();
    let of_kind = |kind: &'static str| {
        let all = inventories().flat_map(|inventory| &inventory.accelerators);
        all.filter(move |accelerator| accelerator.kind == kind)
    };
    let emulated = of_kind(EMULATED).count();
    let emulated_memory = of_kind(EMULATED).map(|found| found.memory).max().unwrap_or(0);
    let cuda = (0..).zip(of_kind(CUDA)).map(|(ordinal, found)| Accelerator {
        device: Device::Cuda(ordinal),
        name: found.name.clone(),
        memory: found.memory,
    });
    Inventory::detect()
        .with_owner(Owner::Cluster)
        .with_cpus(cpus)
        .with_memory(memory.unwrap_or(0))
        .with_emulated(u16::try_from(emulated).unwrap_or(u16::MAX), emulated_memory)
        .with_cuda(cuda.collect())
}
