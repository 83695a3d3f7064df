//! The models of this process: each loaded once per device, and unloaded when nobody uses it and its
//! memory is wanted.

use std::sync::Arc;

use datafusion::common::Result as DataFusionResult;
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_udf::RuntimeError;
use forebay_udf::model::{
    ModelDeclaration, Package, Precision, RuntimeKind, Signature, TransformKind,
};
use forebay_udf::runtime::{self, Device, Replica};
use forebay_udf::transform::{self, Transform};
use parking_lot::Mutex;

use super::once::Once;
use super::slot::{Site, Slot};
use super::threads::Threads;
use crate::error::{EngineError, panic_text};

/// A model that is ready to run on one device.
#[derive(Debug)]
pub struct LoadedModel {
    // First, as they end before the model is freed.
    pub(super) threads: Threads,
    /// Input columns → prepared columns.
    pub transform: Arc<dyn Transform>,
    /// Prepared columns → outputs.
    pub replica: Arc<dyn Replica>,
}

impl LoadedModel {
    /// With the threads that run it; one of them is set up now, if threads stay. Blocks.
    fn new(
        model: &Arc<ModelDeclaration>,
        device: Device,
        transform: Arc<dyn Transform>,
        replica: Arc<dyn Replica>,
    ) -> Result<Self, EngineError> {
        let threads = Threads::new(device, Arc::clone(&replica));
        threads.warm_up(model)?;
        Ok(Self { threads, transform, replica })
    }

    /// A thread for stream `partition`, to run `model`, which is this one with the options of a call.
    ///
    /// # Errors
    /// If there is none, and none can be started.
    pub(super) fn slot(
        &self,
        site: Site,
        model: Arc<ModelDeclaration>,
        partition: usize,
    ) -> DataFusionResult<Slot> {
        self.threads.slot(site, model, partition)
    }
}

/// The models that are loaded, and what they are made of.
#[derive(Default)]
pub(super) struct Models {
    packages: Once<PackageKey, Package>,
    transforms: Once<TransformKey, dyn Transform>,
    models: Once<ModelKey, LoadedModel>,
    /// Of the models that are loaded or being loaded; the least recently asked for first.
    residents: Mutex<Vec<Resident>>,
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
    allow_native: Option<bool>,
    precision: Precision,
    device: Device,
}

impl Models {
    /// A model's transform, without its weights.
    ///
    /// # Errors
    /// [`EngineError`] if the package cannot be fetched or a file of it not be used.
    pub(super) async fn transform(
        &self,
        model: &Arc<ModelDeclaration>,
        env: &Arc<RuntimeEnv>,
    ) -> Result<Arc<dyn Transform>, EngineError> {
        let load = Box::pin(async {
            let package = self.package(model, env).await?;
            let declaration = Arc::clone(model);
            blocking(model, Device::Cpu, move || Ok(transform::load(&declaration, &package)?)).await
        });
        self.transforms.get(transform_key(model), load).await
    }

    /// A model loaded on a device that has `capacity` bytes of memory.
    ///
    /// # Errors
    /// [`EngineError`] if the package cannot be fetched or the model not be loaded.
    pub(super) async fn replica(
        &self,
        model: &Arc<ModelDeclaration>,
        device: Device,
        env: &Arc<RuntimeEnv>,
        capacity: impl Fn() -> u64,
    ) -> Result<Arc<LoadedModel>, EngineError> {
        let key = model_key(model, device);
        let resident = Resident { key: key.clone(), bytes: memory_of(model, device) };
        let load = Box::pin(async {
            let transform = self.transform(model, env).await?;
            let package = self.package(model, env).await?;
            self.make_room(resident, capacity());
            let load = || {
                let (declaration, package) = (Arc::clone(model), Arc::clone(&package));
                let transform = Arc::clone(&transform);
                let load = move || {
                    let replica = runtime::load(&declaration, &package, device)?;
                    LoadedModel::new(&declaration, device, transform, replica)
                };
                blocking(model, device, load)
            };
            with_room(load, || self.unload_idle(device)).await.map(Arc::new)
        });
        self.used_now(&key);
        self.models.get(key, load).await
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
    fn make_room(&self, new: Resident, capacity: u64) {
        let device = new.key.device;
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

    /// Unloads all models of the device that nobody uses; whether there were any.
    fn unload_idle(&self, device: Device) -> bool {
        let mut residents = self.residents.lock();
        let before = residents.len();
        residents.retain(|resident| {
            resident.key.device != device || !self.models.remove_idle(&resident.key)
        });
        residents.len() < before
    }

    /// Forgets the models that nobody uses at this moment; says how many.
    pub(super) fn clear_idle(&self) -> usize {
        let cleared = self.models.clear_idle();
        self.transforms.clear_idle();
        self.packages.clear_idle();
        cleared
    }

    /// Whether any model is loaded, or being loaded, on a device.
    pub(super) fn are_on(&self, device: Device) -> bool {
        let residents = self.residents.lock();
        residents
            .iter()
            .any(|resident| resident.key.device == device && self.models.has(&resident.key))
    }

    /// Whether a model is loaded on a device, in use or idle.
    pub(super) fn is_loaded(&self, model: &ModelDeclaration, device: Device) -> bool {
        self.models.has(&model_key(model, device))
    }

    /// How many models are loaded, idle ones included.
    pub(super) fn loaded(&self) -> usize {
        self.models.len()
    }

    /// Has `replica` used in the place of that of `loaded`, the only model that is loaded.
    #[cfg(test)]
    pub(super) fn replace_any(
        &self,
        model: &Arc<ModelDeclaration>,
        device: Device,
        loaded: &LoadedModel,
        replica: impl FnOnce(Arc<dyn Replica>) -> Arc<dyn Replica>,
    ) {
        let transform = Arc::clone(&loaded.transform);
        let replica = replica(Arc::clone(&loaded.replica));
        let loaded = LoadedModel::new(model, device, transform, replica).unwrap();
        self.models.replace_any(Arc::new(loaded));
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

fn model_key(model: &ModelDeclaration, device: Device) -> ModelKey {
    ModelKey {
        package: package_key(model),
        transform: model.transform.clone(),
        signature: model.signature.clone(),
        runtime: model.runtime.clone(),
        allow_native: model.allow_native,
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

/// Loads, and once more if memory was missing and `make_room` found some: declarations only guess what
/// models take.
async fn with_room<T, F: Future<Output = Result<T, EngineError>>>(
    load: impl Fn() -> F,
    make_room: impl FnOnce() -> bool,
) -> Result<T, EngineError> {
    match load().await {
        Err(EngineError::Runtime(RuntimeError::NoRoom { .. })) if make_room() => load().await,
        result => result,
    }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tempfile::TempDir;

    use super::*;
    use crate::testing::{emulated_model, with_package};

    #[tokio::test]
    async fn a_model_without_room_is_loaded_once_idle_ones_of_its_device_are_gone() {
        let (models, env) = (Models::default(), Arc::default());
        let dirs: Vec<TempDir> = (0..3).map(|_| TempDir::new().unwrap()).collect();
        let declared = ["idle", "used", "elsewhere"].into_iter().zip(&dirs);
        let declared: Vec<_> =
            declared.map(|(name, dir)| with_package(emulated_model(name), dir.path())).collect();
        let (device, other) = (Device::Emulated(0), Device::Emulated(1));
        let load = |at: usize, device| models.replica(&declared[at], device, &env, || u64::MAX);
        load(0, device).await.unwrap();
        let _used = load(1, device).await.unwrap();
        load(2, other).await.unwrap();
        let attempts = Cell::new(0);
        let load = || {
            attempts.set(attempts.get() + 1);
            let is_full = attempts.get() == 1;
            async move {
                let (model, device, problem) = ("m".to_owned(), device.to_string(), String::new());
                let full = RuntimeError::NoRoom { model, device, problem };
                if is_full { Err(EngineError::from(full)) } else { Ok(()) }
            }
        };
        with_room(load, || models.unload_idle(device)).await.unwrap();
        assert_eq!(attempts.replace(0), 2);
        let is_loaded = |at: usize, device| models.is_loaded(&declared[at], device);
        assert_eq!(
            (is_loaded(0, device), is_loaded(1, device), is_loaded(2, other)),
            (false, true, true)
        );
        // With nothing to unload, the error is told at once.
        let error = with_room(load, || models.unload_idle(device)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert_eq!(attempts.get(), 1);
    }
}
