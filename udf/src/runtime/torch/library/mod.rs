//! Loads libtorch when the first model needs it, and CUDA support if this machine can use it.
//!
//! `build.rs` linked trampolines into the executable: one indirect jump per C function through
//! `forebay_torch_table`. This module finds libtorch and `libforebay_torch.so`, which calls it,
//! opens both and fills the table, once.

mod driver;
mod open;
mod places;
mod waiting;

use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::Library;

pub use self::driver::CudaDevice;
pub(in crate::runtime) use self::driver::devices as driver_devices;
use self::open::{Lookup, describe, open};
pub use self::places::LIBTORCH_VERSION;
use self::places::{CPU_LIBRARY, INTERFACE, INTERFACE_LIBRARY};
use super::super::device_failure::device_error;
use super::super::replica::Device;
use super::allocator::allocate_tensors;
use super::failure::readable;
use super::shim;
use crate::error::RuntimeError;
use crate::model::Vectors;

unsafe extern "C" {
    static mut forebay_torch_table: [*mut c_void; 0];
    static forebay_torch_names: [*const c_char; 0];
    static forebay_torch_count: usize;
}

/// The libtorch of this process.
#[derive(Clone, Debug)]
pub struct LibtorchInfo {
    /// Release of libtorch, for example `2.11.0`.
    pub version: String,
    /// The file that holds its CPU part.
    pub library_path: PathBuf,
    /// The vectors of this machine's CPUs that it uses.
    pub vectors: Vectors,
    /// CUDA devices, or why there are none.
    pub cuda: Result<Vec<CudaDevice>, String>,
}

/// Loads libtorch into this process unless it is there already, and describes it.
///
/// # Errors
/// [`RuntimeError::Library`] names the file and the loader's reason; the same at each call.
pub fn ensure_loaded() -> Result<&'static LibtorchInfo, RuntimeError> {
    static LOADED: OnceLock<Result<LibtorchInfo, (String, String)>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(|(library, problem)| RuntimeError::Library {
        library: library.clone(),
        problem: problem.clone(),
    })
}

/// Checks that models can run on a device.
///
/// # Errors
/// [`RuntimeError::Library`], or [`RuntimeError::Device`] with the reason.
pub(super) fn usable(device: Device) -> Result<(), RuntimeError> {
    let problem = match device {
        Device::Emulated(_) => "emulated accelerators run emulated models only".to_owned(),
        Device::Cpu => return ensure_loaded().map(|_| ()),
        Device::Cuda(ordinal) => match &ensure_loaded()?.cuda {
            Ok(devices) if devices.iter().any(|device| device.ordinal == ordinal) => return Ok(()),
            Ok(devices) => format!("there are {} CUDA devices, counted from 0", devices.len()),
            Err(reason) => reason.clone(),
        },
    };
    Err(device_problem(device, problem))
}

pub(super) fn device_problem(device: Device, problem: String) -> RuntimeError {
    device_error(device, &problem, readable)
}

fn load() -> Result<LibtorchInfo, (String, String)> {
    let lookup = load_libtorch().map_err(|problem| (CPU_LIBRARY.to_owned(), problem))?;
    load_interface(lookup).map_err(|problem| (INTERFACE_LIBRARY.to_owned(), problem))?;
    let library_path = loaded_path(CPU_LIBRARY).unwrap_or_default();
    let version = Some(shim::torch_version()).filter(|version| !version.is_empty());
    let version = version.unwrap_or_else(|| "of an unknown version".to_owned());
    check_version(&version, &library_path).map_err(|problem| (CPU_LIBRARY.to_owned(), problem))?;
    // Before all else that may ask libtorch for CUDA: once asked without, it has none for good.
    let cuda = load_cuda(&library_path);
    shim::configure().map_err(|problem| (CPU_LIBRARY.to_owned(), problem))?;
    allocate_tensors();
    // Graph fusion would compile kernels at run time for each shape, and make a row's result
    // depend on its batch. Profiling prepares for it: it makes a replica's first two batches slow.
    // Not fatal where libtorch lacks the settings.
    tch::jit::f_set_tensor_expr_fuser_enabled(false).ok();
    tch::jit::f_set_profiling_mode(false).ok();
    Ok(LibtorchInfo { version, library_path, vectors: shim::cpu_vectors(), cuda })
}

/// Opens libtorch by its path, so that the library that calls it finds it by its name. Returns how
/// that one is to be opened.
fn load_libtorch() -> Result<Lookup, String> {
    let looked_at = places::of_libtorch();
    let found = looked_at.find(CPU_LIBRARY);
    let version = found.as_deref().and_then(places::version_beside);
    if let (Some(path), Some(version)) = (&found, &version) {
        // Before it is opened: calls between libraries that do not fit end the process.
        check_version(version, path)?;
    }
    // A libtorch whose version nobody states may lack anything.
    let lookup = if version.is_some() { Lookup::AtCall } else { Lookup::AtOnce };
    // One that is nowhere here may be known to the system's loader.
    let path = found.as_deref().unwrap_or(Path::new(CPU_LIBRARY));
    match open(path, lookup) {
        Ok(_) => Ok(lookup),
        Err(e) if found.is_some() => Err(format!("{e}; {}", places::remedy())),
        Err(_) => {
            let looked = looked_at.shown();
            Err(format!("PyTorch's library is not in {looked}; {}", places::remedy()))
        }
    }
}

/// Opens the library that calls libtorch, and fills the table of its functions.
fn load_interface(lookup: Lookup) -> Result<(), String> {
    let looked_at = places::of_interface();
    let Some(path) = looked_at.find(INTERFACE_LIBRARY) else {
        return Err(format!(
            "it comes with Forebay and is not in {}; install Forebay again, or run \
             `tools/setup libtorch` in the checkout that this executable was built from",
            looked_at.shown()
        ));
    };
    let library = open(&path, lookup)?;
    let found = interface_of(library).unwrap_or_else(|| "another one".to_owned());
    if found != INTERFACE {
        return Err(format!(
            "{} is of another build of Forebay: its interface is {found}, this executable's is \
             {INTERFACE}; install both from the same release, or run `tools/setup libtorch` in the \
             checkout that this executable was built from",
            path.display()
        ));
    }
    fill_table(library)
}

fn check_version(version: &str, library: &Path) -> Result<(), String> {
    if places::is_compatible(version) {
        return Ok(());
    }
    Err(format!(
        "{} is of torch {version}, expected {}; {}",
        library.display(),
        places::series(LIBTORCH_VERSION),
        places::remedy()
    ))
}

/// What a library says that it was built from.
fn interface_of(library: &Library) -> Option<String> {
    type Interface = unsafe extern "C" fn() -> *const c_char;
    // SAFETY: the function has this signature in every build that has it, and returns a constant.
    unsafe {
        let interface = library.get::<Interface>(b"forebay_interface\0").ok()?;
        Some(CStr::from_ptr(interface()).to_string_lossy().into_owned())
    }
}

fn fill_table(library: &Library) -> Result<(), String> {
    // SAFETY: `build.rs` lays out `count` pointers in the table and as many C strings in names.
    // Nobody else touches the table: this runs once, under OnceLock, before any call through it.
    unsafe {
        let table = (&raw mut forebay_torch_table).cast::<*mut c_void>();
        let names = (&raw const forebay_torch_names).cast::<*const c_char>();
        for i in 0..forebay_torch_count {
            let name = CStr::from_ptr(*names.add(i));
            let symbol = library.get::<*mut c_void>(name.to_bytes_with_nul());
            *table.add(i) = symbol.map_err(|e| describe(&e))?.into_raw();
        }
    }
    Ok(())
}

/// Where a loaded library really is.
fn loaded_path(file_name: &str) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .filter_map(|line| line.find('/').map(|start| &line[start..]))
        .find(|path| Path::new(path).file_name().is_some_and(|name| name == file_name))?;
    fs::canonicalize(path).ok()
}

/// CUDA devices once the CUDA part of libtorch is loaded. Must come before anything that asks
/// libtorch about CUDA: it remembers for good that there is none.
fn load_cuda(libtorch_cpu: &Path) -> Result<Vec<CudaDevice>, String> {
    let devices = driver::devices()?;
    let library = places::cuda_part(libtorch_cpu)?;
    let version = places::version_beside(libtorch_cpu).unwrap_or_default();
    if let Some(problem) = driver::too_old(driver::cuda_version(), &version) {
        return Err(problem);
    }
    open(&library, Lookup::AtOnce).map_err(|e| format!("{e}; {}", places::cuda_remedy()))?;
    waiting::sleep(devices.iter().map(|device| device.ordinal));
    match shim::device_count() {
        Ok(count) if usize::from(count) >= devices.len() => Ok(devices),
        Ok(count) => Err(format!(
            "the driver has {} devices, but libtorch can use {count}; see what CUDA_VISIBLE_DEVICES \
                 says and whether `nvidia-smi` shows all",
            devices.len()
        )),
        Err(e) => Err(e),
    }
}
