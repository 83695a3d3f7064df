//! Finds and loads ONNX Runtime when the first model needs it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::{LoadDynamicError, MINOR_VERSION};

use super::super::places::{Places, is_of_python, named};
use crate::error::RuntimeError;
use crate::folders;

/// The release that `tools/setup onnxruntime` unpacks; newer ones and some older ones will do.
pub const ONNXRUNTIME_VERSION: &str = "1.31.1";
/// Names the folder of the library, such as a Python environment's `onnxruntime/capi`.
const OVERRIDE: &str = "FOREBAY_ONNXRUNTIME";
const LIBRARY: &str = "libonnxruntime.so";

/// The ONNX Runtime of this process.
#[derive(Clone, Debug)]
pub struct OnnxRuntimeInfo {
    /// Release of ONNX Runtime, for example `1.31.1`.
    pub version: String,
    /// The file that holds it.
    pub library_path: PathBuf,
}

pub(super) struct Loaded {
    info: OnnxRuntimeInfo,
    pub(super) environment: Environment,
}

/// Loads ONNX Runtime into this process unless it is there already, and describes it.
///
/// # Errors
/// [`RuntimeError::Library`] names the file and the reason; the same at each call.
pub fn ensure_loaded() -> Result<&'static OnnxRuntimeInfo, RuntimeError> {
    loaded().map(|loaded| &loaded.info)
}

pub(super) fn loaded() -> Result<&'static Loaded, RuntimeError> {
    static LOADED: OnceLock<Result<Loaded, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(|problem| RuntimeError::Library {
        library: LIBRARY.to_owned(),
        problem: problem.clone(),
    })
}

/// Whether it is nowhere, and nobody said where it is.
pub fn is_missing() -> bool {
    named(OVERRIDE).is_none() && find(&places()).is_none()
}

fn places() -> Places {
    let unpacked = folders::cache()
        .map(|cache| cache.join(format!("onnxruntime-{ONNXRUNTIME_VERSION}/onnxruntime/capi")));
    Places::of_package(OVERRIDE, "onnxruntime/capi", unpacked)
}

fn load() -> Result<Loaded, String> {
    let places = places();
    let Some(library_path) = find(&places) else {
        return Err(format!("it is not in {}; {}", places.shown(), remedy()));
    };
    let builder = ort::init_from(&library_path).map_err(|error| unusable(&error, &library_path))?;
    let environment = builder
        .with_name("forebay")
        .with_telemetry(false)
        .with_logger(Arc::new(|level, category, _, place, message| {
            tracing::debug!("ONNX Runtime: {level:?} {category} {place}: {message}");
        }))
        .build()
        .map_err(|error| format!("{}: {error}; {}", library_path.display(), remedy()))?;
    environment.set_log_level(LogLevel::Warning);
    let version =
        version_of(&library_path).unwrap_or_else(|| format!("1.{MINOR_VERSION} or newer"));
    Ok(Loaded { info: OnnxRuntimeInfo { version, library_path }, environment })
}

/// In the first folder that has one, the plain name or else the newest of those with a version behind it.
fn find(places: &Places) -> Option<PathBuf> {
    places.folders().iter().find_map(|folder| {
        let plain = folder.join(LIBRARY);
        if plain.is_file() {
            return Some(plain);
        }
        let names = folder.read_dir().ok()?.flatten().map(|entry| entry.path());
        let versioned = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.strip_prefix(LIBRARY).is_some_and(|rest| rest.starts_with('.'))
        };
        let number = |path: &PathBuf| version_of(path).map(|version| parts(&version));
        names.filter(versioned).max_by_key(number)
    })
}

fn parts(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// As the name of the file says: `libonnxruntime.so.1.31.1`.
fn version_of(library: &Path) -> Option<String> {
    let resolved = library.canonicalize().ok()?;
    let name = resolved.file_name()?.to_str()?;
    name.split_once(".so.").map(|(_, version)| version.to_owned())
}

fn unusable(error: &LoadDynamicError, library: &Path) -> String {
    let shown = library.display();
    let reason = match error {
        LoadDynamicError::BadVersion { version_str, .. } => {
            format!("{shown} is of ONNX Runtime {version_str}, expected 1.{MINOR_VERSION} or newer")
        }
        LoadDynamicError::Dlopen { error, .. } => {
            // The loader's own words, which name the file.
            let source = std::error::Error::source(error).map(ToString::to_string);
            source.unwrap_or_else(|| error.to_string())
        }
        LoadDynamicError::MissingApi { .. } | LoadDynamicError::InvalidVersionString => {
            format!("{shown} is not a valid ONNX Runtime library")
        }
    };
    format!("{reason}; {}", remedy())
}

/// What to do where it is missing or is another one, for whoever started this process.
fn remedy() -> String {
    if is_of_python() {
        return "install it: pip install 'forebay[onnx]'".to_owned();
    }
    format!(
        "run `tools/setup onnxruntime` in Forebay's checkout, or set {OVERRIDE} to the folder \
         onnxruntime/capi of a Python environment with onnxruntime 1.{MINOR_VERSION} or newer"
    )
}

/// What to do where it cannot use a GPU.
pub(super) fn gpu_remedy() -> String {
    format!(
        "set {OVERRIDE} to the folder onnxruntime/capi of a Python environment with onnxruntime-gpu \
         1.{MINOR_VERSION} or newer and its CUDA libraries, or run the model on CPU cores: gpus = 0"
    )
}
