//! What NVIDIA's driver says of its devices, through its management library (NVML).
//!
//! The library comes with the driver and is opened when somebody asks for the first time. Where it
//! is missing, or a device is not told of, there is nothing to see, and that is no error.

use std::ffi::OsStr;
use std::sync::OnceLock;

use forebay_udf::runtime::{Device, torch};
use nvml_wrapper::Nvml;

use super::sampler::{Meter, Reading};

/// NVIDIA's driver and the devices that it manages, also those that this process may not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The driver's own version, for example `550.54.15`; not that of CUDA.
    pub version: String,
    /// In the order of their buses, which CUDA's ordinals need not follow.
    pub gpus: Vec<Gpu>,
}

/// One device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// For example `NVIDIA H200`.
    pub name: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// Bytes of it that are in use, by whomever.
    pub used: u64,
}

impl Driver {
    /// The driver of this machine; `None` if there is none, or it cannot be asked.
    pub fn detect() -> Option<Self> {
        let nvml = library()?;
        let gpu = |index| {
            let device = nvml.device_by_index(index).ok()?;
            let memory = device.memory_info().ok()?;
            Some(Gpu { name: device.name().ok()?, memory: memory.total, used: memory.used })
        };
        Some(Self {
            version: nvml.sys_driver_version().ok()?,
            gpus: (0..nvml.device_count().ok()?).filter_map(gpu).collect(),
        })
    }
}

fn library() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    LIBRARY.get_or_init(|| open("libnvidia-ml.so.1")).as_ref()
}

fn open(file: &str) -> Option<Nvml> {
    Nvml::builder().lib_path(OsStr::new(file)).init().ok()
}

/// Looks at a CUDA device. It is found by its bus, which CUDA and NVML agree upon whatever
/// `CUDA_VISIBLE_DEVICES` says: a number of CUDA's counts the visible devices only.
pub(super) fn meter(device: Device) -> Option<Meter> {
    let Device::Cuda(ordinal) = device else { return None };
    let nvml = library()?;
    let devices = torch::info().ok()?.cuda.as_ref().ok()?;
    let found = devices.iter().find(|found| found.ordinal == ordinal)?;
    let device = nvml.device_by_pci_bus_id(found.pci_bus_id.as_deref()?).ok()?;
    Some(Box::new(move || {
        let busy_percent = device.utilization_rates().ok().map(|rates| rates.gpu);
        let used_bytes = device.memory_info().ok().map(|memory| memory.used);
        Reading { busy_percent, used_bytes }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_there_is_nothing_to_see_and_no_error() {
        assert!(open("libnvidia-ml-of-nobody.so.1").is_none());
        assert!(meter(Device::Cpu).is_none());
        assert!(meter(Device::Cuda(u16::MAX)).is_none());
        if library().is_none() {
            assert_eq!(Driver::detect(), None);
        }
    }
}
