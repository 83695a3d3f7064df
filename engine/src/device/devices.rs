//! The state of this process that all its queries share: inventory, leases, loaded models.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result as DataFusionResult, internal_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_udf::model::{
    ModelDeclaration, Package, Precision, RuntimeKind, Signature, TransformKind,
};
use forebay_udf::runtime::{self, Device, Replica};
use forebay_udf::transform::{self, Transform};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::inventory::{Accelerator, Cuda, Inventory};
use super::lease::{Lease, Leases};
use super::placement::{Placement, place};
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
/// time, and stays loaded when nobody uses it, until [`Devices::clear_idle`].
pub struct Devices {
    inventory: Inventory,
    cuda: OnceLock<Result<Vec<Accelerator>, String>>,
    leases: Leases,
    packages: Once<PackageKey, Package>,
    transforms: Once<TransformKey, dyn Transform>,
    models: Once<ModelKey, LoadedModel>,
}

type PackageKey = (String, String);
type TransformKey = (PackageKey, TransformKind, Signature);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelKey {
    transform: TransformKey,
    runtime: RuntimeKind,
    precision: Precision,
    device: Device,
}

impl Devices {
    /// The state of a process that has this.
    pub fn new(inventory: Inventory) -> Self {
        Self {
            leases: Leases::new(inventory.cpus),
            inventory,
            cuda: OnceLock::new(),
            packages: Once::default(),
            transforms: Once::default(),
            models: Once::default(),
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
    /// [`EngineError::Placement`] with what was asked for, what there is, and what to do.
    pub fn place(&self, model: &ModelDeclaration) -> Result<Placement, EngineError> {
        place(model, &self.inventory, &|| self.cuda())
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
        let key = ModelKey {
            transform: transform_key(model),
            runtime: model.runtime.clone(),
            precision: model.precision,
            device,
        };
        let load = Box::pin(async {
            let transform = self.transform(model, env).await?;
            let package = self.package(model, env).await?;
            let declaration = Arc::clone(model);
            let load = move || Ok(runtime::load(&declaration, &package, device)?);
            let replica = blocking(model, device, load).await?;
            Ok(Arc::new(LoadedModel { transform, replica }))
        });
        self.models.get(key, Box::pin(load)).await
    }

    /// Forgets the models that nobody uses at this moment; says how many.
    pub fn clear_idle(&self) -> usize {
        let cleared = self.models.clear_idle();
        self.transforms.clear_idle();
        self.packages.clear_idle();
        cleared
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
        let cell = OnceCell::new_with(Some(Arc::new(LoadedModel { transform, replica })));
        *self.models.cells.lock().values_mut().next().unwrap() = Arc::new(cell);
    }

    async fn package(
        &self,
        model: &ModelDeclaration,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Arc<Package>, EngineError> {
        let fetch = async {
            let package = Package::fetch(&model.location, &model.content_hash, env);
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

fn package_key(model: &ModelDeclaration) -> PackageKey {
    (model.location.to_string(), model.content_hash.clone())
}

fn transform_key(model: &ModelDeclaration) -> TransformKey {
    (package_key(model), model.transform.clone(), model.signature.clone())
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
    let accelerator = |found: &runtime::torch::CudaDevice| Accelerator {
        device: Device::Cuda(found.ordinal),
        name: found.name.clone(),
        memory: found.memory_bytes,
    };
    Ok(info.cuda.as_ref().map_err(String::clone)?.iter().map(accelerator).collect())
}

/// Values that are made once per key, while everyone else who asks waits for the first.
struct Once<K, V: ?Sized> {
    cells: Mutex<HashMap<K, Arc<OnceCell<Arc<V>>>>>,
}

impl<K, V: ?Sized> Default for Once<K, V> {
    fn default() -> Self {
        Self { cells: Mutex::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash, V: ?Sized> Once<K, V> {
    /// The value of `key`. A failure is not remembered: the next caller tries again. Callers box
    /// `make`, which is large (it may download) and would be copied into every future around it.
    async fn get(
        &self,
        key: K,
        make: Pin<Box<impl Future<Output = Result<Arc<V>, EngineError>>>>,
    ) -> Result<Arc<V>, EngineError> {
        let cell = Arc::clone(self.cells.lock().entry(key).or_default());
        cell.get_or_try_init(|| make).await.map(Arc::clone)
    }

    fn clear_idle(&self) -> usize {
        let mut cells = self.cells.lock();
        let before = cells.len();
        cells.retain(|_, cell| {
            let in_use = cell.get().is_none_or(|value| Arc::strong_count(value) > 1);
            in_use || Arc::strong_count(cell) > 1
        });
        before - cells.len()
    }

    fn len(&self) -> usize {
        self.cells.lock().values().filter(|cell| cell.initialized()).count()
    }
}
