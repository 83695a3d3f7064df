//! What libtorch's messages mean.

use super::super::device_failure::{device_error, is_out_of_memory};
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
    if is_out_of_memory(message) {
        return RuntimeError::NoRoom {
            model: model.name.clone(),
            device: device.to_string(),
            problem: readable(message),
        };
    }
    if is_device_failure(message) {
        return device_error(device, message, readable);
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

/// Whether it is the device that failed.
pub(super) fn is_device_failure(message: &str) -> bool {
    ["CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS_", "NCCL error"]
        .iter()
        .any(|sign| message.contains(sign))
}

/// A failed batch, as the kind of error that says what may help.
pub(super) fn batch_error(model: &str, device: Device, rows: usize, message: &str) -> RuntimeError {
    let problem = readable(message);
    if is_out_of_memory(message) {
        RuntimeError::OutOfMemory { model: model.to_owned(), rows, problem }
    } else if is_device_failure(message) {
        device_error(device, message, readable)
    } else {
        RuntimeError::Program { model: model.to_owned(), rows, problem }
    }
}

/// Where libtorch's advice on debugging begins, and its C++ frames.
const AFTERWORDS: [&str; 3] = [
    "\nException raised from",
    "\nSearch for `cudaError",
    "\nCUDA kernel errors might be asynchronously reported",
];

/// The sentence that matters: what follows the interpreter's traceback, without C++ frames.
pub(super) fn readable(message: &str) -> String {
    let ends = AFTERWORDS.iter().filter_map(|sign| message.find(sign));
    let message = &message[..ends.min().unwrap_or(message.len())];
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
    use crate::fixture::{Folder, TEXT, open};

    const OF_DEVICES: [&str; 4] = [
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`",
    ];

    #[test]
    fn a_failed_batch_is_of_the_kind_that_says_what_may_help() {
        let of = |message: &str| batch_error("m", Device::Cuda(0), 3, message);
        for message in OF_DEVICES {
            let error = of(message);
            let is_of_device =
                matches!(error, RuntimeError::Device { .. } | RuntimeError::DeviceLost { .. });
            assert!(is_of_device, "{error:?}");
        }
        let memory =
            of("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
        assert!(matches!(memory, RuntimeError::OutOfMemory { rows: 3, .. }), "{memory:?}");
        let of_rows = of("The size of tensor a (3) must match the size of tensor b (4)");
        assert!(matches!(of_rows, RuntimeError::Program { rows: 3, .. }), "{of_rows:?}");
        // A row's text is not the device's.
        let quoted = of("no label 'device-side assert triggered'");
        assert!(matches!(quoted, RuntimeError::Program { .. }), "{quoted:?}");
    }

    #[test]
    fn a_model_without_room_is_tried_again_and_a_damaged_file_is_not() {
        let package = Folder::new(TEXT, &[("model.pt", b""), ("tokenizer.json", b"{}")]);
        let (model, _) = open(package.path());
        let of = |message: &str| load_error(&model, "model.pt", Device::Cuda(0), message);
        let room = of("CUDA out of memory. Tried to allocate 20.00 MiB.");
        assert!(matches!(room, RuntimeError::NoRoom { .. }) && room.is_retryable(), "{room:?}");
        assert!(room.to_string().contains("loaded on cuda:0: CUDA out of memory"), "{room}");
        let damaged = of("PytorchStreamReader failed reading zip archive: invalid header");
        assert!(matches!(damaged, RuntimeError::Load { .. }), "{damaged:?}");
        let lost = of("CUDA error: an illegal memory access was encountered");
        assert!(matches!(lost, RuntimeError::DeviceLost { .. }), "{lost:?}");
    }

    #[test]
    fn libtorchs_advice_on_debugging_is_left_out() {
        let message = "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in \
                       https://docs.nvidia.com/cuda for more information.\nCUDA kernel errors might be \
                       asynchronously reported at some other API call";
        assert_eq!(readable(message), "CUDA error: device-side assert triggered");
    }
}
