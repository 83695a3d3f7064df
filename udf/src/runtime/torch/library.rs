//! Loads libtorch when the first model needs it, and CUDA support if this machine can use it.
//!
//! `build.rs` linked trampolines into the executable: one indirect jump per C function through
//! `forebay_torch_table`. This module opens `libforebay_torch.so` (which brings libtorch along)
//! and fills the table, once.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_NOW};

use super::super::Device;
use super::shim;
use crate::error::RuntimeError;

const LIBRARY: &str = "libforebay_torch.so";
const VERSION: &str = "2.11.0";
/// Names a `lib` folder of another libtorch of the same version, such as a Python one.
const OVERRIDE: &str = "FOREBAY_LIBTORCH";

unsafe extern "C" {
    static mut forebay_torch_table: [*mut c_void; 0];
    static forebay_torch_names: [*const c_char; 0];
    static forebay_torch_count: usize;
}

/// The libtorch of this process.
#[derive(Clone, Debug)]
pub struct LibtorchInfo {
    /// For example `2.11.0`.
    pub version: String,
    /// The file that holds its CPU part.
    pub library_path: PathBuf,
    /// CUDA devices, or why there are none.
    pub cuda: Result<Vec<CudaDevice>, String>,
}

/// A CUDA device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Counted from 0.
    pub ordinal: u16,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// Bytes on the device.
    pub memory_bytes: u64,
    /// Where it is, as `domain:bus:device.function`: other libraries know it by that too.
    pub pci_bus_id: Option<String>,
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
    RuntimeError::Device { device: device.to_string(), problem }
}

fn load() -> Result<LibtorchInfo, (String, String)> {
    if let Some(folder) = std::env::var_os(OVERRIDE).filter(|folder| !folder.is_empty()) {
        for name in ["libc10.so", "libtorch_cpu.so"] {
            // Found again by name when our library asks for it.
            open(&Path::new(&folder).join(name), Lookup::AtOnce).map_err(|e| {
                (name.to_owned(), format!("{e} ({OVERRIDE} is {})", folder.display()))
            })?;
        }
    }
    let path = find_library();
    let library = open(&path, Lookup::AtCall).map_err(|e| (LIBRARY.to_owned(), e))?;
    fill_table(library).map_err(|e| (LIBRARY.to_owned(), e))?;
    let library_path = loaded_path("libtorch_cpu.so").unwrap_or_default();
    let version = version_in(&shim::torch_config());
    if version != VERSION {
        let problem = format!("{} is {version}, expected {VERSION}", library_path.display());
        return Err(("libtorch_cpu.so".to_owned(), problem));
    }
    let cuda = load_cuda(&library_path);
    // Graph fusion would compile kernels at run time for each shape, and make a row's result
    // depend on its batch. Profiling prepares for it: it makes a replica's first two batches slow.
    // Not fatal where libtorch lacks the settings.
    tch::jit::f_set_tensor_expr_fuser_enabled(false).ok();
    tch::jit::f_set_profiling_mode(false).ok();
    Ok(LibtorchInfo { version, library_path, cuda })
}

/// When the functions that a library calls are looked up.
#[derive(Clone, Copy)]
enum Lookup {
    /// All while it is opened: one that is missing is an error, as it may be with the libraries
    /// that are found on a machine.
    AtOnce,
    /// Each at its first call, where a missing one would end the process: for what Forebay was
    /// built with. A model calls few of tens of thousands, so the first rows come sooner.
    AtCall,
}

/// Opens a library, and those that it needs, for all others to see and for the life of the process.
fn open(path: &Path, lookup: Lookup) -> Result<&'static Library, String> {
    let flag = match lookup {
        Lookup::AtOnce => RTLD_NOW,
        Lookup::AtCall => RTLD_LAZY,
    };
    // SAFETY: runs the initializers of libtorch, which are meant for it. RTLD_GLOBAL because
    // libtorch_cuda finds its counterparts by symbol.
    let library = unsafe { Library::open(Some(path), flag | RTLD_GLOBAL) };
    // Never closed: libtorch's threads and statics do not survive that.
    library.map(|library| &*Box::leak(Box::new(library))).map_err(|e| describe(&e))
}

/// The loader's own words; libloading hides them behind its own.
fn describe(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// Beside the executable, in `../lib`, or where it was built.
fn find_library() -> PathBuf {
    let built = PathBuf::from(env!("FOREBAY_TORCH_LIBRARY"));
    let Some(folder) = std::env::current_exe()
        .and_then(fs::canonicalize)
        .ok()
        .and_then(|executable| executable.parent().map(Path::to_owned))
    else {
        return built;
    };
    let candidates = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    candidates.into_iter().find(|path| path.exists()).unwrap_or(built)
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

/// `TORCH_VERSION=2.11.0` in libtorch's description of itself.
fn version_in(config: &str) -> String {
    let rest = config.split("TORCH_VERSION=").nth(1).unwrap_or("of an unknown version");
    rest.split([',', '\n']).next().unwrap_or(rest).trim().to_owned()
}

/// CUDA devices once the CUDA part of libtorch is loaded. Must come before anything that asks
/// libtorch about CUDA: it remembers for good that there is none.
fn load_cuda(libtorch_cpu: &Path) -> Result<Vec<CudaDevice>, String> {
    let devices = driver_devices()?;
    let library = libtorch_cpu.with_file_name("libtorch_cuda.so");
    if !library.exists() {
        return Err(format!(
            "this libtorch is for CPUs only ({} is missing); set {OVERRIDE} to the lib folder of \
             a CUDA build of torch {VERSION}",
            library.display()
        ));
    }
    open(&library, Lookup::AtOnce).map_err(|e| {
        format!(
            "{e}; install the CUDA libraries of torch {VERSION} (`pip install torch=={VERSION}`) \
             and set {OVERRIDE} to that torch's lib folder"
        )
    })?;
    match shim::device_count() {
        Ok(count) if usize::from(count) >= devices.len() => Ok(devices),
        Ok(count) => {
            Err(format!("the driver has {} devices, but libtorch can use {count}", devices.len()))
        }
        Err(e) => Err(e),
    }
}

/// What the NVIDIA driver has. Asked first: loading libtorch's CUDA part takes seconds and
/// gigabytes of address space, for nothing on a machine without a GPU.
fn driver_devices() -> Result<Vec<CudaDevice>, String> {
    let driver = open(Path::new("libcuda.so.1"), Lookup::AtOnce).map_err(|_| {
        "there is no NVIDIA driver (libcuda.so.1 was not found); install it".to_owned()
    })?;
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    let check = |code: c_int, what: &str| match code {
        0 => Ok(()),
        100 => Err("the NVIDIA driver sees no device".to_owned()),
        code => Err(format!("the NVIDIA driver failed: {what} returned {code}")),
    };
    // SAFETY: functions of the CUDA driver interface with the signatures that it documents, and
    // pointers to locals with the stated sizes.
    unsafe {
        let missing = |e: libloading::Error| describe(&e);
        let init = driver.get::<Init>(b"cuInit\0").map_err(missing)?;
        let get_count = driver.get::<Count>(b"cuDeviceGetCount\0").map_err(missing)?;
        let get = driver.get::<Get>(b"cuDeviceGet\0").map_err(missing)?;
        let get_name = driver.get::<Name>(b"cuDeviceGetName\0").map_err(missing)?;
        let get_bus_id = driver.get::<Name>(b"cuDeviceGetPCIBusId\0").ok();
        let get_memory = driver.get::<Memory>(b"cuDeviceTotalMem_v2\0").map_err(missing)?;
        check(init(0), "cuInit")?;
        let mut count = 0;
        check(get_count(&mut count), "cuDeviceGetCount")?;
        if count == 0 {
            return Err("the NVIDIA driver sees no device".to_owned());
        }
        let mut devices = Vec::new();
        for ordinal in 0..count {
            let (mut device, mut memory, mut name) = (0, 0, [0; 128]);
            check(get(&mut device, ordinal), "cuDeviceGet")?;
            check(get_name(name.as_mut_ptr(), name.len() as c_int - 1, device), "cuDeviceGetName")?;
            check(get_memory(&mut memory, device), "cuDeviceTotalMem")?;
            let mut bus_id = [0; 32];
            let has_bus_id = get_bus_id.as_ref().is_some_and(|get_bus_id| {
                get_bus_id(bus_id.as_mut_ptr(), bus_id.len() as c_int - 1, device) == 0
            });
            let text =
                |bytes: &[c_char]| CStr::from_ptr(bytes.as_ptr()).to_string_lossy().into_owned();
            devices.push(CudaDevice {
                ordinal: ordinal as u16,
                name: text(&name),
                memory_bytes: memory as u64,
                pci_bus_id: has_bus_id.then(|| text(&bus_id)),
            });
        }
        Ok(devices)
    }
}
