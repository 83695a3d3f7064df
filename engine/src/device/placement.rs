//! Which devices a model's replicas go to. Pure: inventory in, placement or reason out.

use std::fmt;

use bytesize::ByteSize;
use forebay_udf::model::{DeviceChoice, ModelDeclaration, RuntimeKind};
use forebay_udf::runtime::Device;

use super::inventory::{Accelerator, Inventory};
use super::lease::share_millis;
use crate::error::EngineError;

/// What a thread that computes on a CUDA device takes beside its model: the workspace of cuBLAS, which
/// libtorch makes for each stream, of the size that it has on the largest devices.
const WORKSPACE_BYTES: u64 = 32 << 20;

/// One device per replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// Where replica `i` runs; at least one.
    pub devices: Vec<Device>,
}

impl Placement {
    /// How many replicas there are.
    pub fn replicas(&self) -> usize {
        self.devices.len()
    }

    /// Whether the replicas lease an accelerator, a real or an emulated one.
    pub fn is_accelerated(&self) -> bool {
        !matches!(self.devices.first(), None | Some(Device::Cpu))
    }
}

impl fmt::Display for Placement {
    /// `cpu`, `cuda`, `emulated (not a real device)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.devices.first() {
            None | Some(Device::Cpu) => "cpu",
            Some(Device::Cuda(_)) => "cuda",
            Some(Device::Emulated(_)) => "emulated (not a real device)",
        })
    }
}

/// The CUDA devices, or why there are none.
pub(crate) type CudaDevices<'a> = &'a dyn Fn() -> Result<Vec<Accelerator>, String>;

/// Where the replicas of a model go, of what there is.
///
/// # Errors
/// [`EngineError::Placement`] if what is there does not suffice, [`EngineError::Unplaceable`] if
/// nothing would.
pub(crate) fn place(
    model: &ModelDeclaration,
    inventory: &Inventory,
    cuda: CudaDevices<'_>,
) -> Result<Placement, EngineError> {
    let search = Search { model, inventory };
    search.check_memory()?;
    let accelerators = search.accelerators(cuda)?;
    let mut devices = match accelerators.as_slice() {
        [] => search.on_cores()?,
        accelerators => search.on_accelerators(accelerators)?,
    };
    if let Some(max) = model.max_replicas {
        devices.truncate(max.max(1) as usize);
    }
    Ok(Placement { devices })
}

/// A model that looks for its place.
struct Search<'a> {
    model: &'a ModelDeclaration,
    inventory: &'a Inventory,
}

impl Search<'_> {
    /// What is there does not suffice.
    fn lacking(&self, problem: String, remedy: &str) -> EngineError {
        let model = self.model.name.clone();
        EngineError::Placement { model, problem, remedy: remedy.to_owned() }
    }

    /// Nothing would suffice.
    fn unplaceable(&self, problem: String, remedy: &str) -> EngineError {
        let model = self.model.name.clone();
        EngineError::Unplaceable { model, problem, remedy: remedy.to_owned() }
    }

    fn check_memory(&self) -> Result<(), EngineError> {
        let Inventory { memory, owner, .. } = self.inventory;
        let needed = self.model.resources.memory;
        if needed <= *memory {
            return Ok(());
        }
        Err(self.lacking(
            format!(
                "it needs {} of memory and {owner} has {}",
                ByteSize(needed),
                ByteSize(*memory)
            ),
            "lower `memory`, or run it on a larger machine",
        ))
    }

    /// The accelerators that the model may run on; none if it is to run on CPU cores.
    fn accelerators(&self, cuda: CudaDevices<'_>) -> Result<Vec<Accelerator>, EngineError> {
        if matches!(self.model.runtime, RuntimeKind::Emulated { .. }) {
            return self.for_emulated_runtime();
        }
        match self.model.device {
            DeviceChoice::Cpu => Ok(Vec::new()),
            DeviceChoice::Cuda(ordinal) => self.cuda_devices(ordinal, cuda),
            DeviceChoice::Auto => self.cuda_if_there(cuda),
            DeviceChoice::Emulated => Err(self.unplaceable(
                format!(
                    "device=emulated was asked for and its runtime is {}; {} has {} emulated \
                     accelerators",
                    self.model.runtime.name(),
                    self.inventory.owner,
                    self.inventory.emulated.len()
                ),
                "an emulated accelerator runs models of the emulated runtime only; use device=cpu, \
                 or such a model with `forebay shell --emulated-accelerators N`",
            )),
        }
    }

    fn for_emulated_runtime(&self) -> Result<Vec<Accelerator>, EngineError> {
        let Inventory { emulated, owner, .. } = self.inventory;
        match self.model.device {
            DeviceChoice::Emulated | DeviceChoice::Auto if emulated.is_empty() => {
                let problem = format!("it runs on emulated accelerators and {owner} has none");
                Err(self.lacking(problem, owner.emulate()))
            }
            DeviceChoice::Emulated | DeviceChoice::Auto => Ok(emulated.clone()),
            choice => Err(self.unplaceable(
                format!("device={choice} was asked for and its runtime is emulated"),
                "leave `device` out: an emulated model runs on emulated accelerators only",
            )),
        }
    }

    /// All CUDA devices or one of them, as was asked for.
    fn cuda_devices(
        &self,
        ordinal: Option<u16>,
        cuda: CudaDevices<'_>,
    ) -> Result<Vec<Accelerator>, EngineError> {
        let device = self.model.device;
        let found = cuda().map_err(|reason| {
            self.lacking(
                format!("device={device} was asked for and CUDA cannot be used: {reason}"),
                "run `forebay doctor`, or use device=auto or device=cpu",
            )
        })?;
        let count = found.len();
        let wanted = |found: &Accelerator| {
            ordinal.is_none_or(|ordinal| found.device == Device::Cuda(ordinal))
        };
        let matching: Vec<_> = found.into_iter().filter(wanted).collect();
        if matching.is_empty() {
            let owner = self.inventory.owner;
            return Err(self.lacking(
                format!("device={device} was asked for and {owner} has {count} CUDA devices"),
                "use one of cuda:0 to the number of devices less one, or device=auto",
            ));
        }
        Ok(matching)
    }

    /// The CUDA devices, if the model wants a share of one and there is one.
    fn cuda_if_there(&self, cuda: CudaDevices<'_>) -> Result<Vec<Accelerator>, EngineError> {
        let gpus = self.model.resources.gpus;
        if gpus.is_zero() {
            return Ok(Vec::new());
        }
        let owner = self.inventory.owner;
        match cuda() {
            Ok(found) if !found.is_empty() => Ok(found),
            _ if !self.model.needs_accelerator => Ok(Vec::new()),
            found => {
                let reason = found.err().map(|reason| format!(" ({reason})")).unwrap_or_default();
                Err(self.lacking(
                    format!("gpus={gpus} was asked for and {owner} has no accelerator{reason}"),
                    "run `forebay doctor`, or use gpus=0 or device=cpu",
                ))
            }
        }
    }

    fn on_cores(&self) -> Result<Vec<Device>, EngineError> {
        let Inventory { cpus, owner, .. } = self.inventory;
        let share = share_millis(Device::Cpu, self.model);
        let cores = cpus.saturating_mul(1000);
        if share > cores {
            let asked = self.model.resources.cpus;
            let problem = format!("it asks for cpus={asked} and {owner} has {cpus} cores");
            return Err(self.lacking(problem, "lower `cpus`"));
        }
        Ok(vec![Device::Cpu; (cores / share) as usize])
    }

    fn on_accelerators(&self, accelerators: &[Accelerator]) -> Result<Vec<Device>, EngineError> {
        let gpus = self.model.resources.gpus;
        if gpus.ceil() as usize > accelerators.len() {
            let (owner, count) = (self.inventory.owner, accelerators.len());
            return Err(self.lacking(
                format!("it asks for gpus={gpus} and {owner} has {count}"),
                "lower `gpus`, or run it where there are more accelerators",
            ));
        }
        if gpus.ceil() > 1 {
            return Err(self.unplaceable(
                format!("a replica that spans several accelerators is not supported (gpus={gpus})"),
                "use gpus=1 or a fraction of one",
            ));
        }
        let room = |accelerator: &Accelerator| (accelerator.device, self.replicas_on(accelerator));
        let devices = spread(&accelerators.iter().map(room).collect::<Vec<_>>());
        if devices.is_empty() {
            let most = accelerators.iter().map(|accelerator| accelerator.memory).max();
            return Err(self.lacking(
                format!(
                    "it needs gpu_memory={} and the accelerator with most room has {} for models",
                    ByteSize(self.model.resources.gpu_memory),
                    ByteSize(most.unwrap_or(0))
                ),
                "lower `gpu_memory` together with the batch size, end what else uses the accelerator, or \
                 use a larger one",
            ));
        }
        Ok(devices)
    }

    /// What one replica takes of an accelerator's memory.
    fn bytes_on(&self, device: Device) -> u64 {
        match device {
            Device::Cuda(_) => self.model.resources.gpu_memory.saturating_add(WORKSPACE_BYTES),
            Device::Cpu | Device::Emulated(_) => self.model.resources.gpu_memory,
        }
    }

    /// How many replicas an accelerator has room for, by their shares of it and of its memory.
    fn replicas_on(&self, accelerator: &Accelerator) -> u64 {
        let by_share = 1000 / share_millis(accelerator.device, self.model);
        let by_memory = accelerator.memory.checked_div(self.bytes_on(accelerator.device));
        u64::from(by_share).min(by_memory.unwrap_or(u64::MAX))
    }
}

/// So many replicas on each device: one on each before a second one on any, so that a cap spreads
/// them.
fn spread(room: &[(Device, u64)]) -> Vec<Device> {
    let most = room.iter().map(|(_, replicas)| *replicas).max().unwrap_or(0);
    let round = |round| {
        let has_room = room.iter().filter(move |(_, replicas)| round < *replicas);
        has_room.map(|(device, _)| *device)
    };
    (0..most).flat_map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::emulated_model;
    use forebay_udf::model::Share;

    const GIB: u64 = 1 << 30;

    fn torch(change: impl FnOnce(&mut ModelDeclaration)) -> ModelDeclaration {
        let mut model = emulated_model("m");
        model.runtime = RuntimeKind::Torch { program: "model.pt".to_owned() };
        model.device = DeviceChoice::Auto;
        model.needs_accelerator = false;
        change(&mut model);
        model
    }

    fn cuda(count: u16, memory: u64) -> Vec<Accelerator> {
        let accelerator = |ordinal| Accelerator {
            device: Device::Cuda(ordinal),
            name: "H200".to_owned(),
            memory,
        };
        (0..count).map(accelerator).collect()
    }

    fn share(value: f64) -> Share {
        Share::try_from(value).unwrap()
    }

    fn placed(model: &ModelDeclaration, gpus: u16) -> Result<Vec<String>, String> {
        let inventory = Inventory::detect().with_cpus(4).with_memory(8 * GIB);
        let found = || match gpus {
            0 => Err("no NVIDIA driver is installed".to_owned()),
            gpus => Ok(cuda(gpus, 16 * GIB)),
        };
        let placement = place(model, &inventory, &found).map_err(|error| error.to_string())?;
        Ok(placement.devices.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn replicas_are_as_many_as_fit() {
        let cases = [
            (torch(|_| {}), 0, vec!["cpu"; 4]),
            (torch(|m| m.resources.cpus = share(2.0)), 0, vec!["cpu"; 2]),
            (torch(|m| m.resources.cpus = share(3.0)), 0, vec!["cpu"; 1]),
            (torch(|m| m.resources.cpus = share(0.0)), 0, vec!["cpu"; 4]),
            (torch(|m| m.max_replicas = Some(3)), 0, vec!["cpu"; 3]),
            (torch(|_| {}), 2, vec!["cuda:0", "cuda:1"]),
            (torch(|m| m.resources.gpus = share(0.0)), 2, vec!["cpu"; 4]),
            (torch(|m| m.device = DeviceChoice::Cpu), 2, vec!["cpu"; 4]),
            (torch(|m| m.device = DeviceChoice::Cuda(Some(1))), 2, vec!["cuda:1"]),
            (
                torch(|m| m.resources.gpus = share(0.4)),
                2,
                vec!["cuda:0", "cuda:1", "cuda:0", "cuda:1"],
            ),
            (
                torch(|m| {
                    m.resources.gpus = share(0.1);
                    m.resources.gpu_memory = 6 * GIB;
                }),
                1,
                vec!["cuda:0"; 2],
            ),
        ];
        for (model, gpus, expected) in cases {
            assert_eq!(placed(&model, gpus).unwrap(), expected, "{model:?}");
        }
    }

    #[test]
    fn a_refusal_says_what_was_asked_what_there_is_and_what_to_do() {
        let cases: [(ModelDeclaration, u16, &[&str]); 9] = [
            (torch(|m| m.needs_accelerator = true), 0, &["gpus=1", "no NVIDIA driver", "gpus=0"]),
            (
                torch(|m| m.device = DeviceChoice::Cuda(None)),
                0,
                &["device=cuda", "no NVIDIA driver", "forebay doctor"],
            ),
            (
                torch(|m| m.device = DeviceChoice::Cuda(Some(9))),
                1,
                &["device=cuda:9", "has 1 CUDA devices"],
            ),
            (
                torch(|m| m.device = DeviceChoice::Emulated),
                0,
                &["device=emulated", "--emulated-accelerators N"],
            ),
            (torch(|m| m.resources.gpus = share(3.0)), 2, &["gpus=3", "has 2"]),
            (
                torch(|m| m.resources.gpus = share(2.0)),
                2,
                &["spans several accelerators", "gpus=1"],
            ),
            (
                torch(|m| m.resources.gpu_memory = 80 * GIB),
                1,
                &["gpu_memory=80.0 GiB", "has 16.0 GiB for models"],
            ),
            (torch(|m| m.resources.memory = 9 * GIB), 0, &["9.0 GiB", "has 8.0 GiB"]),
            (torch(|m| m.resources.cpus = share(5.0)), 0, &["cpus=5", "4 cores"]),
        ];
        for (model, gpus, parts) in cases {
            let error = placed(&model, gpus).unwrap_err();
            assert!(error.contains("model 'm'"), "{error}");
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }

    #[test]
    fn an_emulated_model_runs_on_emulated_accelerators_only() {
        let none = || Err(String::new());
        let inventory = Inventory::detect();
        let error = place(&emulated_model("m"), &inventory, &none).unwrap_err().to_string();
        assert!(error.contains("--emulated-accelerators 1"), "{error}");
        let inventory = inventory.with_emulated(3, GIB);
        let placement = place(&emulated_model("m"), &inventory, &none).unwrap();
        assert_eq!(placement.replicas(), 3);
        assert_eq!(placement.to_string(), "emulated (not a real device)");
        let mut model = emulated_model("m");
        model.device = DeviceChoice::Cpu;
        let error = place(&model, &inventory, &none).unwrap_err().to_string();
        assert!(error.contains("device=cpu"), "{error}");
    }
}
