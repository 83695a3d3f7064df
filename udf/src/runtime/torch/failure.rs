//! What libtorch's messages mean.

use super::super::replica::Device;
use crate::error::RuntimeError;
use crate::model::ModelDeclaration;

/// Why a program could not be loaded, as the kind of error that says what may help.
pub(super) fn load_error(
    model: &ModelDeclaration,
    file: &str,
    device: Device,
    message: &str,
) -> RuntimeError {
    if is_device_failure(message) && !is_out_of_memory(message) {
        return RuntimeError::Device { device: device.to_string(), problem: readable(message) };
    }
    // libtorch's archive reader: a truncated or overwritten file.
    let is_damaged = ["PytorchStreamReader", "zip archive", "central directory"]
        .iter()
        .any(|sign| message.contains(sign));
    let problem = if is_damaged {
        // The rest is advice on how the file may have come about.
        let text = readable(message);
        let reason = text.split(". ").next().unwrap_or(&text);
        format!("the file is damaged or not a program of libtorch's ({reason})")
    } else {
        readable(message)
    };
    RuntimeError::Load { model: model.name.clone(), file: file.to_owned(), problem }
}

/// libtorch gives no error codes. What its allocators say, of devices and of the host's memory, and its libraries
/// that allocate by themselves: cuDNN's last words are of a workspace that no algorithm was small enough for.
pub(super) fn is_out_of_memory(message: &str) -> bool {
    [
        "out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "unable to find an engine to execute this computation",
        "DefaultCPUAllocator: can't allocate memory",
        "not enough memory",
        "bad_alloc",
    ]
    .iter()
    .any(|sign| contains(message, sign))
}

/// Whatever the case of its first letter.
fn contains(message: &str, sign: &str) -> bool {
    message.to_ascii_lowercase().contains(&sign.to_ascii_lowercase())
}

/// Whether it is the device that failed.
pub(super) fn is_device_failure(message: &str) -> bool {
    ["CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS_", "NCCL error"]
        .iter()
        .any(|sign| message.contains(sign))
}

/// The sentence that matters: what follows the interpreter's traceback, without C++ frames.
pub(super) fn readable(message: &str) -> String {
    let message = message.split("\nException raised from").next().unwrap_or(message);
    let start = message.rfind("Error: ").filter(|_| message.contains("TorchScript interpreter"));
    let text = start.map_or(message, |start| &message[start + "Error: ".len()..]);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PyTorch 2.11 and the libraries of CUDA write them.
    const OUT_OF_MEMORY: [&str; 8] = [
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "GET was unable to find an engine to execute this computation",
        "Unable to find an engine to execute this computation",
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you \
         tried to allocate 4398046511104 bytes.",
        "std::bad_alloc",
    ];

    const OF_DEVICES: [&str; 4] = [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`",
    ];

    #[test]
    fn messages_are_of_the_kind_that_says_what_may_help() {
        for message in OUT_OF_MEMORY {
            assert!(is_out_of_memory(message), "{message}");
        }
        for message in OF_DEVICES {
            assert!(is_device_failure(message) && !is_out_of_memory(message), "{message}");
        }
        let of_rows = "The size of tensor a (3) must match the size of tensor b (4)";
        assert!(!is_device_failure(of_rows) && !is_out_of_memory(of_rows));
    }
}
