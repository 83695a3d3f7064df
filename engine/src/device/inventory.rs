//! What this process has: cores, memory, accelerators; detected or given by flags.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use forebay_udf::runtime::Device;

/// One accelerator of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// How a replica addresses it.
    pub device: Device,
    /// Its name, for people.
    pub name: String,
    /// Its memory in bytes, or what models may take of it.
    pub memory: u64,
}

/// Where the list of CUDA devices comes from.
#[derive(Clone, Debug)]
pub(crate) enum Cuda {
    /// Ask libtorch, once a model could use one.
    Ask,
    /// There is no driver on this machine, so libtorch need not be loaded to know.
    Absent,
    /// Known already: of another process, or of a test.
    Given(Vec<Accelerator>),
}

/// Cores, memory and accelerators of this process.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// CPU cores that models may lease; at least one.
    pub cpus: u32,
    /// Host memory in bytes.
    pub memory: u64,
    /// Whether models may load native code that comes with their packages.
    pub(crate) allows_native: bool,
    /// Whose these are, in messages.
    pub(crate) owner: Owner,
    pub(crate) emulated: Vec<Accelerator>,
    pub(crate) cuda: Cuda,
}

/// Whose devices an inventory lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// Those of this process.
    #[default]
    Process,
    /// Those of all workers of a cluster.
    Cluster,
}

impl Owner {
    /// How to get an emulated accelerator, for messages.
    pub(crate) fn emulate(self) -> &'static str {
        match self {
            Self::Process => "start with `forebay shell --emulated-accelerators 1`",
            Self::Cluster => "add one with `forebay worker --emulated-accelerators 1`",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "this process",
            Self::Cluster => "the cluster",
        })
    }
}

impl Inventory {
    /// What the machine has. Looks for NVIDIA's driver but does not load libtorch: CUDA devices
    /// are counted when the first model that could use one is placed.
    pub fn detect() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            memory: host_memory().unwrap_or(u64::MAX),
            allows_native: false,
            owner: Owner::Process,
            emulated: Vec::new(),
            cuda: if has_nvidia_driver() { Cuda::Ask } else { Cuda::Absent },
        }
    }

    /// As that of `owner`.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Lets models load native code that comes with their packages, unless they say that they must not. It runs
    /// with the rights of this process.
    #[must_use]
    pub fn with_native_code(mut self, allows_native: bool) -> Self {
        self.allows_native = allows_native;
        self
    }

    /// With this many cores, whatever the machine has.
    #[must_use]
    pub fn with_cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus.max(1);
        self
    }

    /// With this much host memory, in bytes.
    #[must_use]
    pub fn with_memory(mut self, memory: u64) -> Self {
        self.memory = memory;
        self
    }

    /// With `count` emulated accelerators of `memory` bytes each.
    #[must_use]
    pub fn with_emulated(mut self, count: u16, memory: u64) -> Self {
        let accelerator = |ordinal| Accelerator {
            device: Device::Emulated(ordinal),
            name: "emulated (not a real device)".to_owned(),
            memory,
        };
        self.emulated = (0..count).map(accelerator).collect();
        self
    }

    /// With these CUDA devices, whatever the machine has; none if empty.
    #[must_use]
    pub fn with_cuda(mut self, accelerators: Vec<Accelerator>) -> Self {
        self.cuda = Cuda::Given(accelerators);
        self
    }

    /// The emulated accelerators; real ones are asked for at [`Devices::cuda`](super::Devices::cuda).
    pub fn emulated(&self) -> &[Accelerator] {
        &self.emulated
    }
}

/// Total memory from `/proc/meminfo`, or the smaller limit of this process's control group.
fn host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    Some(limit.map_or(total, |limit| limit.min(total)))
}

fn has_nvidia_driver() -> bool {
    let usual = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/lib"];
    let named = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders = usual.iter().map(PathBuf::from).chain(env::split_paths(&named));
    Path::new("/dev/nvidiactl").exists()
        || folders.any(|folder| folder.join("libcuda.so.1").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detection_finds_at_least_a_core_and_some_memory() {
        let inventory = Inventory::detect();
        assert!(inventory.cpus >= 1);
        assert!(inventory.memory > 1 << 20);
        assert!(inventory.emulated().is_empty());
    }
}
