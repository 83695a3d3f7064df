//! What the NVIDIA driver has.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use libloading::os::unix::Library;

use super::open::{Lookup, describe, open};

/// A CUDA device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaDevice {
    /// Its number in this process, from 0: CUDA_VISIBLE_DEVICES counts.
    pub ordinal: u16,
    /// For example `NVIDIA H200`.
    pub name: String,
    /// Bytes on the device.
    pub memory_bytes: u64,
    /// What its code is compiled for, such as 9 and 0 of `sm_90`.
    pub compute_capability: (u16, u16),
    /// Where it is, as `domain:bus:device.function`: other libraries know it by that too.
    pub pci_bus_id: Option<String>,
}

/// Of the driver's attributes of devices.
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Its devices. Asked before libtorch is: loading its CUDA part takes seconds and gigabytes of
/// address space, for nothing on a machine without a GPU.
pub(in crate::runtime) fn devices() -> Result<Vec<CudaDevice>, String> {
    let driver = open(Path::new("libcuda.so.1"), Lookup::AtOnce).map_err(|_| {
        "there is no NVIDIA driver (libcuda.so.1 was not found); install it".to_owned()
    })?;
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    // SAFETY: functions of the CUDA driver interface with the signatures that it documents, and
    // pointers to locals with the stated sizes.
    unsafe {
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
                compute_capability: compute_capability(driver, device)?,
                pci_bus_id: has_bus_id.then(|| text(&bus_id)),
            });
        }
        Ok(devices)
    }
}

/// Of a device by the driver's handle, after `cuInit`.
fn compute_capability(driver: &Library, device: c_int) -> Result<(u16, u16), String> {
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    let number = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: a function of the CUDA driver interface with the signature that it documents, and a
        // pointer to a local.
        let code = unsafe {
            let get = driver.get::<Attribute>(b"cuDeviceGetAttribute\0").map_err(missing)?;
            get(&mut value, attribute, device)
        };
        check(code, "cuDeviceGetAttribute")?;
        u16::try_from(value).map_err(|_| format!("the NVIDIA driver says capability {value}"))
    };
    Ok((number(CAPABILITY_MAJOR)?, number(CAPABILITY_MINOR)?))
}

fn check(code: c_int, what: &str) -> Result<(), String> {
    match code {
        0 => Ok(()),
        100 => Err("the NVIDIA driver sees no device".to_owned()),
        code => Err(format!("the NVIDIA driver failed: {what} returned {code}")),
    }
}

fn missing(error: libloading::Error) -> String {
    describe(&error)
}
