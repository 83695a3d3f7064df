//! What the NVIDIA driver has.

use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use libloading::os::unix::{Library, Symbol};

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
    /// What it is called whoever counts, as `nvidia-smi -L` shows it behind `GPU-` or, for a part that MIG
    /// cut off, `MIG-`.
    pub uuid: Option<String>,
}

/// Of the driver's attributes of devices.
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;

/// Its devices. Asked before libtorch is: loading its CUDA part takes seconds and gigabytes of
/// address space, for nothing on a machine without a GPU.
pub(in crate::runtime) fn devices() -> Result<Vec<CudaDevice>, String> {
    let driver = Driver::open()?;
    // SAFETY: functions of the CUDA driver interface with the signatures that it documents, and a pointer
    // to a local.
    let count = unsafe {
        type Init = unsafe extern "C" fn(u32) -> c_int;
        type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
        checked(driver.get::<Init>("cuInit")?(0), "cuInit")?;
        let mut count = 0;
        checked(driver.get::<Count>("cuDeviceGetCount")?(&mut count), "cuDeviceGetCount")?;
        count
    };
    match u16::try_from(count) {
        Ok(count @ 1..) => (0..count).map(|ordinal| driver.device(ordinal)).collect(),
        _ => Err(refusal(NO_DEVICE, "cuDeviceGetCount", visible().as_deref())),
    }
}

/// The latest CUDA that the driver knows, as it numbers them: 13000 is 13.0.
pub(super) fn cuda_version() -> Option<c_int> {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut version = 0;
    // SAFETY: as above.
    let code =
        unsafe { Driver::open().ok()?.get::<Version>("cuDriverGetVersion").ok()?(&mut version) };
    (code == 0).then_some(version)
}

/// The driver's library.
struct Driver(&'static Library);

type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type Memory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Uuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

impl Driver {
    fn open() -> Result<Self, String> {
        open(Path::new("libcuda.so.1"), Lookup::AtOnce).map(Self).map_err(|error| {
            if error.contains("No such file") {
                "there is no NVIDIA driver (libcuda.so.1 was not found); install it".to_owned()
            } else {
                format!("the NVIDIA driver's library cannot be loaded: {error}; install it again")
            }
        })
    }

    /// # Safety
    /// `T` is the function's signature.
    unsafe fn get<T>(&self, name: &str) -> Result<Symbol<T>, String> {
        // SAFETY: as the caller promises.
        let found = unsafe { self.0.get::<T>(name.as_bytes()) };
        found.map_err(|error| {
            format!("the NVIDIA driver is too old: {}; install a newer one", describe(&error))
        })
    }

    fn device(&self, ordinal: u16) -> Result<CudaDevice, String> {
        let (mut device, mut memory, mut name) = (0, 0, [0; 128]);
        // SAFETY: as in `devices`, with pointers to locals of the stated sizes.
        unsafe {
            let get = self.get::<Get>("cuDeviceGet")?;
            checked(get(&mut device, c_int::from(ordinal)), "cuDeviceGet")?;
            let get_name = self.get::<Name>("cuDeviceGetName")?;
            checked(
                get_name(name.as_mut_ptr(), name.len() as c_int - 1, device),
                "cuDeviceGetName",
            )?;
            let get_memory = self.get::<Memory>("cuDeviceTotalMem_v2")?;
            checked(get_memory(&mut memory, device), "cuDeviceTotalMem")?;
        }
        // SAFETY: zero-terminated, as its last byte was not the driver's to write.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(CudaDevice {
            ordinal,
            name,
            memory_bytes: memory as u64,
            compute_capability: self.compute_capability(device)?,
            uuid: self.uuid(device),
        })
    }

    /// Of a device by the driver's handle, after `cuInit`.
    fn compute_capability(&self, device: c_int) -> Result<(u16, u16), String> {
        let number = |attribute: c_int| {
            let mut value = 0;
            // SAFETY: as in `devices`, with a pointer to a local.
            let code = unsafe {
                self.get::<Attribute>("cuDeviceGetAttribute")?(&mut value, attribute, device)
            };
            checked(code, "cuDeviceGetAttribute")?;
            u16::try_from(value).map_err(|_| format!("the NVIDIA driver says capability {value}"))
        };
        Ok((number(CAPABILITY_MAJOR)?, number(CAPABILITY_MINOR)?))
    }

    /// Under MIG the second version tells the part's, the first the whole GPU's.
    fn uuid(&self, device: c_int) -> Option<String> {
        let mut bytes = [0; 16];
        let is_told = ["cuDeviceGetUuid_v2", "cuDeviceGetUuid"].into_iter().any(|name| {
            // SAFETY: as in `devices`; both write 16 bytes.
            unsafe { self.get::<Uuid>(name).is_ok_and(|get| get(&mut bytes, device) == 0) }
        });
        is_told.then(|| uuid_text(bytes))
    }
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    parts.join("-")
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: c_int = 100;

fn checked(code: c_int, what: &str) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(refusal(code, what, visible().as_deref())),
    }
}

fn visible() -> Option<String> {
    env::var_os("CUDA_VISIBLE_DEVICES").map(|devices| devices.to_string_lossy().into_owned())
}

/// What a code of the driver means, and what to do.
fn refusal(code: c_int, what: &str, visible: Option<&str>) -> String {
    match (code, visible) {
        (NO_DEVICE, Some(visible)) => format!(
            "the NVIDIA driver shows no device to this process: CUDA_VISIBLE_DEVICES is '{visible}'; unset \
             it, or name devices that `nvidia-smi -L` lists"
        ),
        (NO_DEVICE, None) => {
            "the NVIDIA driver sees no device; see whether `nvidia-smi` does, and start \
                              containers with devices (--gpus all)"
                .to_owned()
        }
        // CUDA_ERROR_STUB_LIBRARY
        (34, _) => {
            "libcuda.so.1 is the stub of the CUDA toolkit, not the driver's; take its folder out \
                    of LD_LIBRARY_PATH"
                .to_owned()
        }
        // CUDA_ERROR_SYSTEM_NOT_READY
        (802, _) => {
            "the NVIDIA driver is not ready; on machines with NVSwitch, nvidia-fabricmanager of \
                     the driver's version must run"
                .to_owned()
        }
        // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        (803, _) => {
            "the NVIDIA driver's library and its kernel module are of different versions; restart \
                     the machine, or give the container the driver of the machine"
                .to_owned()
        }
        // CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        (804, _) => {
            "CUDA's compatibility package does not support this device; remove it, and update the \
                     driver"
                .to_owned()
        }
        (code, _) => format!(
            "the NVIDIA driver failed: {what} returned {code}; see whether `nvidia-smi` works, and the \
             kernel's log"
        ),
    }
}

/// Why a torch of this version, such as `2.11.0+cu130`, cannot use a driver that knows CUDA up to
/// `driver`. Within one major version of CUDA, older drivers run what was built for newer ones.
pub(super) fn too_old(driver: Option<c_int>, torch: &str) -> Option<String> {
    let (driver, (_, built)) = (driver?, torch.split_once("+cu")?);
    let built: c_int = built.parse().ok()?;
    let (major, minor) = (built / 10, built % 10);
    let (driver_major, driver_minor) = (driver / 1000, driver % 1000 / 10);
    (driver_major < major).then(|| {
        format!(
            "the NVIDIA driver is too old: it knows CUDA {driver_major}.{driver_minor}, and this torch was \
             built for CUDA {major}.{minor}; update the driver, or install torch's build for CUDA \
             {driver_major} (https://pytorch.org/get-started/locally)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do() {
        for code in [NO_DEVICE, 34, 46, 802, 803, 804, 999] {
            for visible in [None, Some("7")] {
                let said = refusal(code, "cuInit", visible);
                let (problem, remedy) = said.split_once("; ").unwrap();
                assert!(problem.len() > 20 && remedy.len() > 20, "{said}");
            }
        }
        let said = refusal(NO_DEVICE, "cuInit", Some(""));
        assert!(said.contains("CUDA_VISIBLE_DEVICES is ''; unset it"), "{said}");
    }

    #[test]
    fn a_driver_is_too_old_for_a_later_major_version_of_cuda() {
        let said = too_old(Some(12040), "2.11.0+cu130").unwrap();
        assert!(said.contains("knows CUDA 12.4") && said.contains("built for CUDA 13.0"), "{said}");
        let fits = [(13000, "2.11.0+cu130"), (12040, "2.11.0+cu128"), (13010, "2.11.0+cu126")];
        for (driver, torch) in fits {
            assert_eq!(too_old(Some(driver), torch), None, "{driver} {torch}");
        }
        // It finds out by itself.
        for torch in ["2.11.0", "2.11.0+cpu", "2.11.0+rocm6.4"] {
            assert_eq!(too_old(Some(11000), torch), None, "{torch}");
        }
        assert_eq!(too_old(None, "2.11.0+cu130"), None);
    }

    #[test]
    fn uuids_are_written_as_the_driver_does() {
        let bytes = *b"\x9c\xb5\x0c\x37\x1e\x8c\x4b\x7d\xa6\x21\x0f\x10\x65\xfe\x03\xd2";
        assert_eq!(uuid_text(bytes), "9cb50c37-1e8c-4b7d-a621-0f1065fe03d2");
    }
}
