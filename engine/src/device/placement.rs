//! Which devices a model's replicas go to. Pure: inventory in, placement or reason out.

use std::fmt;

use bytesize::ByteSize;
use forebay_udf::model::{DeviceChoice, ModelDeclaration, RuntimeKind};
use forebay_udf::runtime::Device;

use super::inventory::{Accelerator, Inventory};
use super::lease::share_millis;
use crate::error::EngineError;

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

/// What is there does not suffice.
fn lacking(model: &ModelDeclaration, problem: String, remedy: &str) -> EngineError {
    EngineError::Placement { model: model.name.clone(), problem, remedy: remedy.to_owned() }
}

/// Nothing would suffice.
fn unplaceable(model: &ModelDeclaration, problem: String, remedy: &str) -> EngineError {
    EngineError::Unplaceable { model: model.name.clone(), problem, remedy: remedy.to_owned() }
}

pub(crate) fn place(
    model: &ModelDeclaration,
    inventory: &Inventory,
    cuda: CudaDevices<'_>,
) -> Result<Placement, EngineError> {
    let refuse = |problem: String, remedy: &str| lacking(model, problem, remedy);
    if model.resources.memory > inventory.memory {
        return Err(refuse(
            format!(
                "it needs {} of memory and {} has {}",
                ByteSize(model.resources.memory),
                inventory.owner,
                ByteSize(inventory.memory)
            ),
            "lower `memory`, or run it on a larger machine",
        ));
    }
    let candidates = candidates(model, inventory, cuda)?;
    if candidates.is_empty() {
        return place_on_cpu(model, inventory);
    }
    let gpus = model.resources.gpus;
    if gpus.ceil() as usize > candidates.len() {
        return Err(refuse(
            format!("it asks for gpus={gpus} and {} has {}", inventory.owner, candidates.len()),
            "lower `gpus`, or run it where there are more accelerators",
        ));
    }
    if gpus.ceil() > 1 {
        return Err(unplaceable(
            model,
            format!("a replica that spans several accelerators is not supported (gpus={gpus})"),
            "use gpus=1 or a fraction of one",
        ));
    }
    let mut devices = Vec::new();
    for accelerator in &candidates {
        let by_share = 1000 / share_millis(accelerator.device, model);
        let by_memory = match model.resources.gpu_memory {
            0 => u64::MAX,
            needed => accelerator.memory / needed,
        };
        let replicas = u64::from(by_share).min(by_memory);
        devices.extend((0..replicas).map(|_| accelerator.device));
    }
    if devices.is_empty() {
        let most = candidates.iter().map(|accelerator| accelerator.memory).max().unwrap_or(0);
        return Err(refuse(
            format!(
                "it needs gpu_memory={} and the largest accelerator has {}",
                ByteSize(model.resources.gpu_memory),
                ByteSize(most)
            ),
            "lower `gpu_memory` together with the batch size, or use a larger accelerator",
        ));
    }
    // One replica per device before a second one on any, so that a cap spreads them.
    let mut spread = Vec::with_capacity(devices.len());
    let mut round = 0;
    while spread.len() < devices.len() {
        for accelerator in &candidates {
            let count = devices.iter().filter(|device| **device == accelerator.device).count();
            spread.extend((round < count).then_some(accelerator.device));
        }
        round += 1;
    }
    Ok(capped(model, spread))
}

/// The accelerators that the model may run on; none if it is to run on CPU cores.
fn candidates(
    model: &ModelDeclaration,
    inventory: &Inventory,
    cuda: CudaDevices<'_>,
) -> Result<Vec<Accelerator>, EngineError> {
    let refuse = |problem: String, remedy: &str| lacking(model, problem, remedy);
    let emulated_runtime = matches!(model.runtime, RuntimeKind::Emulated { .. });
    match model.device {
        DeviceChoice::Emulated | DeviceChoice::Auto if emulated_runtime => {
            if inventory.emulated.is_empty() {
                return Err(refuse(
                    format!("it runs on emulated accelerators and {} has none", inventory.owner),
                    inventory.owner.emulate(),
                ));
            }
            Ok(inventory.emulated.clone())
        }
        choice if emulated_runtime => Err(unplaceable(
            model,
            format!("device={choice} was asked for and its runtime is emulated"),
            "leave `device` out: an emulated model runs on emulated accelerators only",
        )),
        DeviceChoice::Emulated => Err(unplaceable(
            model,
            format!(
                "device=emulated was asked for and its runtime is {}; {} has {} emulated accelerators",
                model.runtime.name(),
                inventory.owner,
                inventory.emulated.len()
            ),
            "an emulated accelerator runs models of the emulated runtime only; use device=cpu, or \
             such a model with `forebay shell --emulated-accelerators N`",
        )),
        DeviceChoice::Cpu => Ok(Vec::new()),
        DeviceChoice::Cuda(ordinal) => {
            let found = cuda().map_err(|reason| {
                refuse(
                    format!(
                        "device={} was asked for and CUDA cannot be used: {reason}",
                        model.device
                    ),
                    "run `forebay doctor`, or use device=auto or device=cpu",
                )
            })?;
            let wanted = |found: &Accelerator| {
                ordinal.is_none_or(|ordinal| found.device == Device::Cuda(ordinal))
            };
            let count = found.len();
            let matching: Vec<_> = found.into_iter().filter(wanted).collect();
            if matching.is_empty() {
                return Err(refuse(
                    format!(
                        "device={} was asked for and {} has {count} CUDA devices",
                        model.device, inventory.owner
                    ),
                    "use one of cuda:0 to the number of devices less one, or device=auto",
                ));
            }
            Ok(matching)
        }
        DeviceChoice::Auto if model.resources.gpus.is_zero() => Ok(Vec::new()),
        DeviceChoice::Auto => match cuda() {
            Ok(found) if !found.is_empty() => Ok(found),
            other if model.needs_accelerator => Err(refuse(
                format!(
                    "gpus={} was asked for and {} has no accelerator{}",
                    model.resources.gpus,
                    inventory.owner,
                    other.err().map(|reason| format!(" ({reason})")).unwrap_or_default()
                ),
                "run `forebay doctor`, or use gpus=0 or device=cpu",
            )),
            _ => Ok(Vec::new()),
        },
    }
}

fn place_on_cpu(model: &ModelDeclaration, inventory: &Inventory) -> Result<Placement, EngineError> {
    let share = share_millis(Device::Cpu, model);
    let cores = inventory.cpus.saturating_mul(1000);
    if share > cores {
        let problem = format!(
            "it asks for cpus={} and {} has {} cores",
            model.resources.cpus, inventory.owner, inventory.cpus
        );
        return Err(lacking(model, problem, "lower `cpus`"));
    }
    Ok(capped(model, vec![Device::Cpu; (cores / share) as usize]))
}

fn capped(model: &ModelDeclaration, mut devices: Vec<Device>) -> Placement {
    if let Some(max) = model.max_replicas {
        devices.truncate(max.max(1) as usize);
    }
    Placement { devices }
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
                &["gpu_memory=80.0 GiB", "has 16.0 GiB"],
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
