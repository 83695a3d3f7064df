//! What failures of CUDA mean, whichever library reports them.
//!
//! libtorch and ONNX Runtime give no error codes, but both quote CUDA's own words.

use super::replica::Device;
use crate::error::RuntimeError;

/// What CUDA says of errors that stay: its context is damaged, and every later call of the process on that
/// device fails with the same words. The texts of `cudaGetErrorString`, by their numbers.
const LASTING: [&str; 14] = [
    "uncorrectable ECC error encountered", // 214
    "uncorrectable NVLink error detected during the execution", // 220
    "an illegal memory access was encountered", // 700
    "the launch timed out and was terminated", // 702
    "device-side assert triggered",        // 710
    "hardware stack error",                // 714
    "an illegal instruction was encountered", // 715
    "misaligned address",                  // 716
    "operation not supported on global/shared address space", // 717
    "invalid program counter",             // 718
    "unspecified launch failure",          // 719
    "Invalid access of peer GPU memory over nvlink", // 721
    "tensor memory not completely freed",  // 722
    "GPU is lost",                         // of the driver: it fell off the bus
];

/// What allocators say, of devices and of the host's memory, and libraries that allocate by themselves: the
/// last words of cuDNN are of a workspace that no algorithm was small enough for.
const OUT_OF_MEMORY: [&str; 8] = [
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "unable to find an engine to execute this computation",
    "defaultcpuallocator: can't allocate memory",
    "failed to allocate memory",
    "not enough memory",
    "bad_alloc",
];

/// Whether memory was missing, of a device or of the host.
pub(super) fn is_out_of_memory(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    OUT_OF_MEMORY.iter().any(|sign| message.contains(sign))
}

/// The error of a device that failed, by its library's message, of which `readable` makes what people read.
pub(super) fn device_error(
    device: Device,
    message: &str,
    readable: impl Fn(&str) -> String,
) -> RuntimeError {
    let (device, mut problem) = (device.to_string(), readable(message));
    if message.contains("no kernel image is available") {
        problem += ": torch, or ONNX Runtime, was not built for this GPU; install a build for its architecture";
    }
    if LASTING.iter().any(|sign| message.contains(sign)) {
        RuntimeError::DeviceLost { device, problem, by_others: false }
    } else {
        RuntimeError::Device { device, problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PyTorch 2.11, ONNX Runtime and the libraries of CUDA write them.
    const MEMORY: [&str; 10] = [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "GET was unable to find an engine to execute this computation",
        "Unable to find an engine to execute this computation",
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you \
         tried to allocate 4398046511104 bytes.",
        "std::bad_alloc",
        "Failed to allocate memory for requested buffer of size 4398046511104",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=a",
    ];

    #[test]
    fn missing_memory_is_seen_whoever_misses_it() {
        for message in MEMORY {
            assert!(is_out_of_memory(message), "{message}");
        }
        for message in LASTING {
            assert!(!is_out_of_memory(message), "{message}");
        }
    }

    #[test]
    fn errors_that_stay_are_told_from_those_of_one_call() {
        let is_lost = |message: &str| {
            let error = device_error(Device::Cuda(1), message, str::to_owned);
            let text = error.to_string();
            assert!(text.contains("device 'cuda:1'") && text.contains(message), "{text}");
            matches!(error, RuntimeError::DeviceLost { by_others: false, .. })
        };
        for message in LASTING {
            assert!(is_lost(&format!("CUDA error: {message}")), "{message}");
        }
        // As libtorch and ONNX Runtime write it.
        assert!(is_lost(
            "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com"
        ));
        assert!(is_lost(
            "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=a"
        ));
        for message in [
            "CUDA error: invalid device ordinal",
            "CUDA error: no kernel image is available for execution on the device",
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        ] {
            assert!(!is_lost(message), "{message}");
        }
    }
}
