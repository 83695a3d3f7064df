//! The state of this process that all its queries share: inventory, leases, loaded models.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::common::{Result as DataFusionResult, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_udf::RuntimeError;
use forebay_udf::model::{Learned, ModelDeclaration, Precision, RuntimeKind};
#[cfg(test)]
use forebay_udf::runtime::Replica;
use forebay_udf::runtime::torch::TakenProgram;
use forebay_udf::runtime::{self, Device};
use forebay_udf::transform::Transform;

use super::batching::Batching;
use super::inventory::{Accelerator, Cuda, Inventory, Owner};
use super::lease::{Lease, Leases};
use super::models::{LoadedModel, Models};
use super::nvml;
use super::placement::{Placement, place};
use super::room::Room;
use super::sampler::{Reading, Samplers, Utilization, Watch};
use super::slot::{Site, Slot};
use crate::error::EngineError;

/// Inventory, leases and loaded models of this process.
///
/// A model is loaded once per device, however many streams and queries ask for it at the same
/// time. It stays loaded when nobody uses it, until its memory is wanted for another one (the least
/// recently used goes first), or until [`Devices::clear_idle`].
pub struct Devices {
    inventory: Inventory,
    cuda: OnceLock<Result<Vec<Accelerator>, String>>,
    leases: Arc<Leases>,
    room: Room,
    samplers: Samplers,
    learned: Arc<Learned>,
    models: Models,
}

impl Devices {
    /// The state of a process that has this.
    pub fn new(inventory: Inventory) -> Self {
        Self {
            leases: Arc::new(Leases::new(inventory.cpus)),
            room: Room::new(nvml::free_bytes),
            samplers: Samplers::new(|device| matches!(device, Device::Cuda(_)), nvml::meter),
            inventory,
            cuda: OnceLock::new(),
            learned: Arc::default(),
            models: Models::default(),
        }
    }

    /// Keeps what running models teaches there.
    #[must_use]
    pub fn with_learned(mut self, learned: Arc<Learned>) -> Self {
        self.learned = learned;
        self
    }

    /// Looks at devices by other means.
    #[cfg(test)]
    pub(crate) fn with_samplers(mut self, samplers: Samplers) -> Self {
        self.samplers = samplers;
        self
    }

    /// Asks by other means what is free on a device.
    #[cfg(test)]
    pub(crate) fn with_room(mut self, room: Room) -> Self {
        self.room = room;
        self
    }

    /// Tells `watcher` what a device does while the watch is held; `None` if it is not measured.
    pub(crate) fn watch(
        &self,
        device: Device,
        watcher: impl Fn(Reading) + Send + Sync + 'static,
    ) -> Option<Watch> {
        self.samplers.watch(device, watcher)
    }

    /// What running models has taught.
    pub fn learned(&self) -> &Arc<Learned> {
        &self.learned
    }

    /// What a device is called where lessons on it are kept: those of one accelerator do not hold
    /// for another kind.
    pub fn device_type(&self, device: Device) -> String {
        match device {
            Device::Cpu => "cpu".to_owned(),
            Device::Emulated(_) => "emulated".to_owned(),
            Device::Cuda(_) => {
                let accelerators = self.cuda().unwrap_or_default();
                let found = accelerators.into_iter().find(|found| found.device == device);
                found.map_or("cuda".to_owned(), |found| found.name)
            }
        }
    }

    /// The devices that the session was given.
    ///
    /// # Errors
    /// An internal error if it was given none.
    pub fn from_context(context: &TaskContext) -> DataFusionResult<Arc<Self>> {
        context.session_config().get_extension::<Self>().ok_or_else(|| {
            internal_datafusion_err!(
                "the session has no forebay devices; create it with \
                 SessionConfig::with_extension(Arc::new(Devices::new(Inventory::detect())))"
            )
        })
    }

    /// What this process has.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The CUDA devices, with the memory that models may take. Loads libtorch when it is first called on a
    /// machine with a driver.
    ///
    /// # Errors
    /// The reason why CUDA cannot be used.
    pub fn cuda(&self) -> Result<Vec<Accelerator>, String> {
        let found = match &self.inventory.cuda {
            Cuda::Given(accelerators) => Ok(accelerators.clone()),
            Cuda::Absent => Err("no NVIDIA driver is installed".to_owned()),
            Cuda::Ask => self.cuda.get_or_init(ask_libtorch).clone(),
        };
        found.map(|accelerators| self.with_what_is_free(accelerators))
    }

    /// Workers know what is free on their devices, and say that.
    fn with_what_is_free(&self, mut accelerators: Vec<Accelerator>) -> Vec<Accelerator> {
        if self.inventory.owner == Owner::Process {
            for found in &mut accelerators {
                let is_used = self.models.are_on(found.device);
                found.memory = self.room.of_models(found.device, found.memory, is_used);
            }
        }
        accelerators
    }

    /// Where the replicas of a model go.
    ///
    /// # Errors
    /// [`EngineError::Placement`] or [`EngineError::Unplaceable`] with what was asked for, what there
    /// is, and what to do.
    pub fn place(&self, model: &ModelDeclaration) -> Result<Placement, EngineError> {
        let placement = place(model, &self.inventory, &|| match (self.cuda(), &model.runtime) {
            // Its library need not be there for models of another one.
            (Err(_), RuntimeKind::Onnx { .. }) if matches!(self.inventory.cuda, Cuda::Ask) => {
                ask_driver().map(|accelerators| self.with_what_is_free(accelerators))
            }
            (found, _) => found,
        })?;
        // Workers know their own CPUs.
        if self.inventory.owner == Owner::Process {
            placement.devices.iter().try_for_each(|device| check_precision(model, *device))?;
        }
        Ok(placement)
    }

    /// Refuses a model whose precision no device that it may run on has, as far as that is known before a
    /// query: one that is made now, to be used later.
    ///
    /// # Errors
    /// [`EngineError::Placement`].
    pub fn check_precision(&self, model: &ModelDeclaration) -> Result<(), EngineError> {
        // Only these depend on devices, and to know these may take loading a library.
        match model.precision {
            Precision::Fp32 | Precision::Int8 => Ok(()),
            Precision::Tf32 | Precision::Bf16 | Precision::Fp16 => {
                let with_fp32 = ModelDeclaration { precision: Precision::Fp32, ..model.clone() };
                // What cannot be placed at all may be once there are other devices.
                match self.place(&with_fp32) {
                    Ok(_) => self.place(model).map(|_| ()),
                    Err(_) => Ok(()),
                }
            }
        }
    }

    /// By device that a model may run on, which program of its package that takes and why; empty where all
    /// take the same, or where workers decide.
    pub fn programs(&self, model: &ModelDeclaration) -> Vec<(String, String)> {
        if self.inventory.owner != Owner::Process
            || !matches!(model.runtime, RuntimeKind::Aoti { .. })
        {
            return vec![];
        }
        // A model that cannot be placed says so when it is used.
        let mut devices = self.place(model).map(|found| found.devices).unwrap_or_default();
        devices.sort();
        devices.dedup();
        let model = self.permitted(model);
        let taken = |device: Device| match TakenProgram::by(&model, device) {
            Ok(taken) => taken.to_string(),
            Err(error) => error.to_string(),
        };
        devices.into_iter().map(|device| (device.to_string(), taken(device))).collect()
    }

    /// The model with what this process permits those that do not say.
    fn permitted<'a>(&self, model: &'a ModelDeclaration) -> Cow<'a, ModelDeclaration> {
        match model.allow_native {
            None if self.inventory.allows_native => {
                Cow::Owned(ModelDeclaration { allow_native: Some(true), ..model.clone() })
            }
            _ => Cow::Borrowed(model),
        }
    }

    /// The share of `device` that one batch of `model` needs; waits in line for it.
    ///
    /// Hold it for one forward pass and wait for nothing meanwhile; await it where it is polled
    /// whenever it is woken, such as on a thread or task of its own.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceLost`], also while it waits.
    pub async fn lease(
        &self,
        device: Device,
        model: &ModelDeclaration,
    ) -> Result<Lease, RuntimeError> {
        self.leases.lease(device, model).await
    }

    /// Takes note of what an error says of a device. If it is lost, nobody is given a share of it any
    /// more.
    pub(crate) fn heed(&self, device: Device, error: &RuntimeError) {
        self.leases.heed(device, error);
    }

    /// Waits until a device has failed so that this process can use it no more.
    pub async fn device_lost(&self) {
        self.leases.lost().any().await;
    }

    /// Whether all devices of this process can be used, as far as they were.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceLost`].
    pub fn check_devices(&self) -> Result<(), RuntimeError> {
        self.leases.lost().first().map_or(Ok(()), Err)
    }

    /// Thousandths of the device (of a core, on CPUs) that are leased at this moment.
    pub fn leased_millis(&self, device: Device) -> usize {
        self.leases.leased_millis(device)
    }

    /// For how long the device has computed: the time in which at least one batch did.
    pub fn busy_time(&self, device: Device) -> Duration {
        self.leases.busy_time(device)
    }

    /// Tells what a device does, by its driver's account, while the answer is held; `None` if that
    /// is not measured.
    pub fn utilization(&self, device: Device) -> Option<Utilization> {
        Utilization::of(&self.samplers, device)
    }

    /// A model's transform, without its weights.
    ///
    /// # Errors
    /// [`EngineError`] if the package cannot be fetched or a file of it not be used.
    pub async fn transform(
        &self,
        model: &Arc<ModelDeclaration>,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Arc<dyn Transform>, EngineError> {
        self.models.transform(model, env).await
    }

    /// A model loaded on a device.
    ///
    /// # Errors
    /// [`EngineError`] if the package cannot be fetched or the model not be loaded.
    pub async fn replica(
        &self,
        model: &Arc<ModelDeclaration>,
        device: Device,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Arc<LoadedModel>, EngineError> {
        // On a worker, whose CPU the plan was made without.
        check_precision(model, device)?;
        self.leases.lost().check(device)?;
        let capacity = || self.memory_of_device(device);
        let model = match self.permitted(model) {
            Cow::Owned(permitted) => &Arc::new(permitted),
            Cow::Borrowed(_) => model,
        };
        let loaded = self.models.replica(model, device, env, capacity).await;
        if let Err(EngineError::Runtime(error)) = &loaded {
            self.heed(device, error);
        }
        loaded
    }

    /// What batches of a model on a device are, and what they teach.
    pub(crate) fn batching(&self, model: &Arc<ModelDeclaration>, device: Device) -> Batching {
        Batching::new(Arc::clone(&self.learned), model, device, self.device_type(device))
    }

    /// A thread for stream `partition`, to run a model that is loaded on `device`, with the options of a call.
    ///
    /// # Errors
    /// If none can be started.
    pub(crate) fn slot(
        &self,
        loaded: &LoadedModel,
        device: Device,
        model: &Arc<ModelDeclaration>,
        partition: usize,
    ) -> DataFusionResult<Slot> {
        let batching = self.batching(model, device);
        let site = Site { leases: Arc::clone(&self.leases), batching };
        loaded.slot(site, Arc::clone(model), partition)
    }

    /// Forgets the models that nobody uses at this moment; says how many.
    pub fn clear_idle(&self) -> usize {
        self.models.clear_idle()
    }

    /// Whether a model is loaded on a device, in use or idle.
    pub fn is_loaded(&self, model: &ModelDeclaration, device: Device) -> bool {
        self.models.is_loaded(&self.permitted(model), device)
    }

    /// How many models are loaded, idle ones included.
    pub fn loaded(&self) -> usize {
        self.models.loaded()
    }

    /// Has `replica` used for the model on that device.
    #[cfg(test)]
    pub(crate) async fn replace_replica(
        &self,
        model: &Arc<ModelDeclaration>,
        device: Device,
        replica: impl FnOnce(Arc<dyn Replica>) -> Arc<dyn Replica>,
    ) {
        let env = Arc::new(RuntimeEnv::default());
        let loaded = self.replica(model, device, &env).await.unwrap();
        self.models.replace_any(model, device, &loaded, replica);
    }

    /// In bytes; no limit for a device that is not in the inventory.
    fn memory_of_device(&self, device: Device) -> u64 {
        match device {
            Device::Cpu => self.inventory.memory,
            _ => {
                let cuda = self.cuda().unwrap_or_default();
                let mut accelerators = self.inventory.emulated().iter().chain(&cuda);
                accelerators.find(|found| found.device == device).map_or(u64::MAX, |a| a.memory)
            }
        }
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("inventory", &self.inventory)
            .field("loaded", &self.loaded())
            .finish_non_exhaustive()
    }
}

/// Refuses a precision that the device lacks or only emulates.
fn check_precision(model: &ModelDeclaration, device: Device) -> Result<(), EngineError> {
    if device != Device::Cpu {
        return Ok(());
    }
    runtime::check_precision(model).map_err(|(problem, remedy)| EngineError::Placement {
        model: model.name.clone(),
        problem,
        remedy,
    })
}

fn ask_libtorch() -> Result<Vec<Accelerator>, String> {
    let info = runtime::torch::info().map_err(|error| error.to_string())?;
    Ok(info.cuda.as_ref().map_err(String::clone)?.iter().map(accelerator).collect())
}

fn ask_driver() -> Result<Vec<Accelerator>, String> {
    Ok(runtime::driver_devices()?.iter().map(accelerator).collect())
}

fn accelerator(found: &runtime::torch::CudaDevice) -> Accelerator {
    Accelerator {
        device: Device::Cuda(found.ordinal),
        name: found.name.clone(),
        memory: found.memory_bytes,
    }
}
