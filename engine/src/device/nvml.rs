//! What NVIDIA's driver says of its devices, through its management library (NVML).
//!
//! The library comes with the driver and is opened when somebody asks for the first time. Where it
//! is missing, or a device is not told of, there is nothing to see, and that is no error.

use std::ffi::OsStr;
use std::sync::OnceLock;

use forebay_udf::runtime::{self, Device};
use nvml_wrapper::{Device as NvmlDevice, Nvml};

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

/// Finds a CUDA device by its UUID, which CUDA and NVML agree upon whatever `CUDA_VISIBLE_DEVICES` says, and
/// under MIG, where a part and the whole GPU are at the same place on the bus.
fn find(device: Device) -> Option<NvmlDevice<'static>> {
    let Device::Cuda(ordinal) = device else { return None };
    let devices = runtime::driver_devices().ok()?;
    let uuid = devices.into_iter().find(|found| found.ordinal == ordinal)?.uuid?;
    let nvml = library()?;
    ["GPU", "MIG"].iter().find_map(|kind| nvml.device_by_uuid(format!("{kind}-{uuid}")).ok())
}

/// Looks at a CUDA device. A part that MIG cut off tells of its memory, not how busy it is.
pub(super) fn meter(device: Device) -> Option<Meter> {
    let device = find(device)?;
    Some(Box::new(move || {
        let busy_percent = device.utilization_rates().ok().map(|rates| rates.gpu);
        let used_bytes = device.memory_info().ok().map(|memory| memory.used);
        Reading { busy_percent, used_bytes }
    }))
}

/// Bytes of a CUDA device that nobody uses.
pub(super) fn free_bytes(device: Device) -> Option<u64> {
    Some(find(device)?.memory_info().ok()?.free)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    #[test]
    fn without_the_library_there_is_nothing_to_see_and_no_error() {
        assert!(open("libnvidia-ml-of-nobody.so.1").is_none());
        assert!(meter(Device::Cpu).is_none());
        assert!(meter(Device::Cuda(u16::MAX)).is_none());
        assert_eq!(free_bytes(Device::Cpu), None);
        if library().is_none() {
            assert_eq!(Driver::detect(), None);
        }
    }

    /// In a process of its own, since the driver's libraries are looked for by names.
    #[test]
    fn devices_and_parts_of_them_are_found_by_their_uuids() {
        let folder = tempfile::tempdir().unwrap();
        for (source, library) in [("cuda.c", "libcuda.so.1"), ("nvml.c", "libnvidia-ml.so.1")] {
            let source =
                Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/nvidia")).join(source);
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join(library)).arg(source);
            assert!(compiler.status().unwrap().success());
        }
        let beside = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let paths = [folder.path().to_owned()].into_iter().chain(std::env::split_paths(&beside));
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "device::nvml::tests::with_the_fake_driver", "--ignored"])
            .env("LD_LIBRARY_PATH", std::env::join_paths(paths).unwrap())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "devices_and_parts_of_them_are_found_by_their_uuids runs it with the fake driver"]
    fn with_the_fake_driver() {
        // What tests/nvidia/nvml.c says of a GPU, and of a part of another one.
        let whole = meter(Device::Cuda(0)).unwrap()();
        assert_eq!(whole, Reading { busy_percent: Some(40), used_bytes: Some(10 << 30) });
        let part = meter(Device::Cuda(1)).unwrap()();
        assert_eq!(part, Reading { busy_percent: None, used_bytes: Some(3 << 30) });
        assert_eq!(free_bytes(Device::Cuda(0)), Some(70 << 30));
        assert_eq!(free_bytes(Device::Cuda(1)), Some(17 << 30));
        assert!(meter(Device::Cuda(2)).is_none(), "NVML does not know it");
        assert!(meter(Device::Cuda(3)).is_none(), "CUDA does not know it");
    }
}
