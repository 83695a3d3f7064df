//! How threads wait for a GPU.

use std::ffi::{c_int, c_uint};
use std::path::Path;

use libloading::os::unix::Library;

use super::open::{Lookup, describe, open};

/// Of the CUDA driver interface: a thread that waits for the device sleeps.
const SLEEP: c_uint = 0x04;

/// Has threads that wait for these devices sleep; by itself CUDA keeps a core busy with each that waits. To be told
/// before the device is first used. If it cannot be, models run all the same.
pub(super) fn sleep(devices: impl IntoIterator<Item = u16>) {
    let told = open(Path::new("libcuda.so.1"), Lookup::AtOnce)
        .and_then(|driver| devices.into_iter().try_for_each(|ordinal| tell(driver, ordinal)));
    if let Err(problem) = told {
        tracing::warn!("threads that wait for a GPU keep a core busy meanwhile: {problem}");
    }
}

fn tell(driver: &Library, ordinal: u16) -> Result<(), String> {
    type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type SetFlags = unsafe extern "C" fn(c_int, c_uint) -> c_int;
    let missing = |e: libloading::Error| describe(&e);
    let check = |code: c_int, what: &str| match code {
        0 => Ok(()),
        code => Err(format!("{what} of the NVIDIA driver returned {code} for device {ordinal}")),
    };
    // SAFETY: functions of the CUDA driver interface with the signatures that it documents, and a pointer to a
    // local.
    unsafe {
        let get = driver.get::<Get>(b"cuDeviceGet\0").map_err(missing)?;
        let set_flags =
            driver.get::<SetFlags>(b"cuDevicePrimaryCtxSetFlags_v2\0").map_err(missing)?;
        let mut device = 0;
        check(get(&mut device, c_int::from(ordinal)), "cuDeviceGet")?;
        check(set_flags(device, SLEEP), "cuDevicePrimaryCtxSetFlags")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// A driver of two devices, which it calls 40 and 41.
    const DRIVER: &str = "
        static unsigned flags[2];
        extern \"C\" int cuDeviceGet(int *device, int ordinal) {
            *device = ordinal + 40;
            return ordinal < 2 ? 0 : 101;
        }
        extern \"C\" int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned set) {
            flags[device - 40] = set;
            return 0;
        }
        extern \"C\" unsigned flags_of(int ordinal) { return flags[ordinal]; }
    ";

    #[test]
    fn the_driver_is_told_for_the_device_that_is_meant() {
        if Command::new("c++").arg("-v").output().is_err() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("driver.cpp"), folder.path().join("driver.so"));
        fs::write(&source, DRIVER).unwrap();
        let options = ["-shared", "-fPIC", "-o"];
        let made = Command::new("c++").args(options).args([&library, &source]).status().unwrap();
        assert!(made.success());
        let driver = open(&library, Lookup::AtOnce).unwrap();
        tell(driver, 1).unwrap();
        type FlagsOf = unsafe extern "C" fn(c_int) -> c_uint;
        // SAFETY: the function of the source above.
        let flags = |ordinal| unsafe { driver.get::<FlagsOf>(b"flags_of\0").unwrap()(ordinal) };
        assert_eq!((flags(0), flags(1)), (0, 4));
        let problem = tell(driver, 2).unwrap_err();
        assert_eq!(problem, "cuDeviceGet of the NVIDIA driver returned 101 for device 2");
    }
}
