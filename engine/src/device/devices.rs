//! The state of this process that all its queries share: inventory, leases, loaded models.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result as DataFusionResult, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_udf::model::{
    Learned, ModelDeclaration, Package, Precision, RuntimeKind, Signature, TransformKind,
};
use forebay_udf::runtime::{self, Device, Replica};
use forebay_udf::transform::{self, Transform};
use parking_lot::Mutex;

use super::inventory::{Accelerator, Cuda, Inventory, Owner};
use super::lease::{Lease, Leases};
use super::nvml;
use super::once::Once;
use super::placement::{Placement, place};
use super::sampler::{Reading, Samplers, Watch};
use crate::error::{EngineError, panic_text};

/// A model that is ready to run on one device.
#[derive(Debug)]
pub struct LoadedModel {
    /// Input columns → prepared columns.
    pub transform: Arc<dyn Transform>,
    /// Prepared columns → outputs.
    pub replica: Arc<dyn Replica>,
}

/// Inventory, leases and loaded models of this process.
///
/// A model is loaded once per device, however many streams and queries ask for it at the same
/// time. It stays loaded when nobody uses it, until its memory is wanted for another one (the least
/// recently used goes first), or until [`Devices::clear_idle`].
pub struct Devices {
    inventory: Inventory,
    cuda: OnceLock<Result<Vec<Accelerator>, String>>,
    leases: Leases,
    samplers: Samplers,
    learned: Arc<Learned>,
    packages: Once<PackageKey, Package>,
    transforms: Once<TransformKey, dyn Transform>,
    models: Once<ModelKey, LoadedModel>,
    /// Of the models that are loaded or being loaded; the least recently asked for first.
    residents: Mutex<Vec<Resident>>,
}

/// What a device does, by its driver's account.
#[derive(Debug)]
pub struct Utilization {
    percent: Arc<AtomicU32>,
    _watch: Watch,
}

/// A device that tells nothing, or was not asked yet.
const UNKNOWN: u32 = u32::MAX;

impl Utilization {
    /// Share of the time that it computed, when it was last asked: 0 to 1; `None` if it does not
    /// tell.
    pub fn share(&self) -> Option<f64> {
        let percent = self.percent.load(Ordering::Relaxed);
        (percent != UNKNOWN).then(|| f64::from(percent) / 100.0)
    }
}

/// A model that takes memory of a device.
#[derive(Debug)]
struct Resident {
    key: ModelKey,
    bytes: u64,
}

type PackageKey = (String, String);
/// With the prompt, which the weights know nothing of.
type TransformKey = (PackageKey, TransformKind, Signature, String);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelKey {
    package: PackageKey,
    transform: TransformKind,
    signature: Signature,
    runtime: RuntimeKind,
    precision: Precision,
    device: Device,
}

impl Devices {
    /// The state of a process that has this.
    pub fn new(inventory: Inventory) -> Self {
        Self {
            leases: Leases::new(inventory.cpus),
            samplers: Samplers::new(|device| matches!(device, Device::Cuda(_)), nvml::meter),
            inventory,
            cuda: OnceLock::new(),
            learned: Arc::default(),
            packages: Once::default(),
            transforms: Once::default(),
            models: Once::default(),
            residents: Mutex::default(),
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

    /// The CUDA devices. Loads libtorch when it is first called on a machine with a driver.
    ///
    /// # Errors
    /// The reason why CUDA cannot be used.
    pub fn cuda(&self) -> Result<Vec<Accelerator>, String> {
        match &self.inventory.cuda {
            Cuda::Given(accelerators) => Ok(accelerators.clone()),
            Cuda::Absent => Err("no NVIDIA driver is installed".to_owned()),
            Cuda::Ask => self.cuda.get_or_init(ask_libtorch).clone(),
        }
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
                ask_driver()
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
        // Only half precisions depend on devices, and to know these may take loading a library.
        match model.precision {
            Precision::Fp32 | Precision::Int8 => Ok(()),
            Precision::Bf16 | Precision::Fp16 => {
                let with_fp32 = ModelDeclaration { precision: Precision::Fp32, ..model.clone() };
                // What cannot be placed at all may be once there are other devices.
                match self.place(&with_fp32) {
                    Ok(_) => self.place(model).map(|_| ()),
                    Err(_) => Ok(()),
                }
            }
        }
    }

    /// The share of `device` that one batch of `model` needs; waits in line for it.
    ///
    /// Hold it for one forward pass and wait for nothing meanwhile; await it where it is polled
    /// whenever it is woken, such as on a thread or task of its own.
    pub async fn lease(&self, device: Device, model: &ModelDeclaration) -> Lease {
        self.leases.lease(device, model).await
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
        let percent = Arc::new(AtomicU32::new(UNKNOWN));
        let seen = Arc::clone(&percent);
        let watch = self.watch(device, move |reading| {
            seen.store(reading.busy_percent.unwrap_or(UNKNOWN), Ordering::Relaxed);
        });
        watch.map(|watch| Utilization { percent, _watch: watch })
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
        let load = Box::pin(async {
            let package = self.package(model, env).await?;
            let declaration = Arc::clone(model);
            blocking(model, Device::Cpu, move || Ok(transform::load(&declaration, &package)?)).await
        });
        self.transforms.get(transform_key(model), Box::pin(load)).await
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
        let key = model_key(model, device);
        let resident = Resident { key: key.clone(), bytes: memory_of(model, device) };
        let load = Box::pin(async {
            let transform = self.transform(model, env).await?;
            let package = self.package(model, env).await?;
            self.make_room(resident);
            let declaration = Arc::clone(model);
            let load = move || Ok(runtime::load(&declaration, &package, device)?);
            let replica = blocking(model, device, load).await?;
            Ok(Arc::new(LoadedModel { transform, replica }))
        });
        // On a worker, whose CPU the plan was made without.
        check_precision(model, device)?;
        self.used_now(&key);
        self.models.get(key, Box::pin(load)).await
    }

    fn used_now(&self, key: &ModelKey) {
        let mut residents = self.residents.lock();
        if let Some(at) = residents.iter().position(|resident| resident.key == *key) {
            let resident = residents.remove(at);
            residents.push(resident);
        }
    }

    /// Unloads idle models of the device until the new one fits, the least recently used first.
    /// What is in use stays: placement has checked that each model fits by itself, and what does
    /// not fit together runs out of memory and says so.
    fn make_room(&self, new: Resident) {
        let device = new.key.device;
        let capacity = self.memory_of_device(device);
        let mut residents = self.residents.lock();
        residents.retain(|resident| resident.key != new.key && self.models.has(&resident.key));
        let before = residents.len();
        let on_device = |resident: &Resident| resident.key.device == device;
        let mut used: u64 = residents.iter().filter(|r| on_device(r)).map(|r| r.bytes).sum();
        residents.retain(|resident| {
            let wanted = on_device(resident) && used.saturating_add(new.bytes) > capacity;
            let unloaded = wanted && self.models.remove_idle(&resident.key);
            if unloaded {
                used -= resident.bytes;
            }
            !unloaded
        });
        if residents.len() < before {
            // What only the unloaded models used.
            self.transforms.clear_idle();
            self.packages.clear_idle();
        }
        residents.push(new);
    }

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

    /// Forgets the models that nobody uses at this moment; says how many.
    pub fn clear_idle(&self) -> usize {
        let cleared = self.models.clear_idle();
        self.transforms.clear_idle();
        self.packages.clear_idle();
        cleared
    }

    /// Whether a model is loaded on a device, in use or idle.
    pub fn is_loaded(&self, model: &ModelDeclaration, device: Device) -> bool {
        self.models.has(&model_key(model, device))
    }

    /// How many models are loaded, idle ones included.
    pub fn loaded(&self) -> usize {
        self.models.len()
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
        let transform = Arc::clone(&loaded.transform);
        let replica = replica(Arc::clone(&loaded.replica));
        self.models.replace_any(Arc::new(LoadedModel { transform, replica }));
    }

    async fn package(
        &self,
        model: &ModelDeclaration,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Arc<Package>, EngineError> {
        let fetch = async {
            let package = Package::fetch(model.pinned(), env);
            Ok(Box::pin(package).await?)
        };
        self.packages.get(package_key(model), Box::pin(fetch)).await
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

fn model_key(model: &ModelDeclaration, device: Device) -> ModelKey {
    ModelKey {
        package: package_key(model),
        transform: model.transform.clone(),
        signature: model.signature.clone(),
        runtime: model.runtime.clone(),
        precision: model.precision,
        device,
    }
}

/// What a loaded model takes of its device's memory, by its declaration.
fn memory_of(model: &ModelDeclaration, device: Device) -> u64 {
    match device {
        Device::Cpu => model.resources.memory,
        Device::Cuda(_) | Device::Emulated(_) => model.resources.gpu_memory,
    }
}

fn package_key(model: &ModelDeclaration) -> PackageKey {
    (model.location.to_string(), model.content_hash.clone())
}

fn transform_key(model: &ModelDeclaration) -> TransformKey {
    let prompt = model.prompt_text().to_owned();
    (package_key(model), model.transform.clone(), model.signature.clone(), prompt)
}

/// Refuses a precision that the device only emulates.
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

/// Loads off the async threads. A dropped query does not wait for it.
async fn blocking<T: Send + 'static>(
    model: &ModelDeclaration,
    device: Device,
    load: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    SpawnedTask::spawn_blocking(load).await.unwrap_or_else(|error| {
        let problem = match error.try_into_panic() {
            Ok(panic) => format!("loading panicked: {}", panic_text(&*panic)),
            Err(_) => "loading was cancelled".to_owned(),
        };
        Err(EngineError::Panic { model: model.name.clone(), device: device.to_string(), problem })
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
