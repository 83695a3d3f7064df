//! The models of this process: each loaded once per device, and unloaded when nobody uses it and its
//! memory is wanted.

use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_udf::model::{
    ModelDeclaration, Package, Precision, RuntimeKind, Signature, TransformKind,
};
use forebay_udf::runtime::{self, Device, Replica};
use forebay_udf::transform::{self, Transform};
use parking_lot::Mutex;

use super::once::Once;
use crate::error::{EngineError, panic_text};

/// A model that is ready to run on one device.
#[derive(Debug)]
pub struct LoadedModel {
    /// Input columns → prepared columns.
    pub transform: Arc<dyn Transform>,
    /// Prepared columns → outputs.
    pub replica: Arc<dyn Replica>,
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
            let declaration = Arc::clone(model);
            let load = move || Ok(runtime::load(&declaration, &package, device)?);
            let replica = blocking(model, device, load).await?;
            Ok(Arc::new(LoadedModel { transform, replica }))
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

    /// Forgets the models that nobody uses at this moment; says how many.
    pub(super) fn clear_idle(&self) -> usize {
        let cleared = self.models.clear_idle();
        self.transforms.clear_idle();
        self.packages.clear_idle();
        cleared
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
        loaded: &LoadedModel,
        replica: impl FnOnce(Arc<dyn Replica>) -> Arc<dyn Replica>,
    ) {
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
