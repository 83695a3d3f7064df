//! The functions of `shim.cpp`, made safe. Callable once libtorch is loaded.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use tch::Tensor;

use super::super::Device;
use super::linear::LinearKernels;
use super::memory::give_back_freed;
use crate::model::{Precision, Vectors};

unsafe extern "C" {
    fn forebay_last_error() -> *const c_char;
    fn forebay_torch_version() -> *const c_char;
    fn forebay_cpu_capability() -> *const c_char;
    fn forebay_configure() -> bool;
    fn forebay_allow_tf32(allow: bool) -> bool;
    fn forebay_inference_mode_enter() -> *mut c_void;
    fn forebay_inference_mode_leave(guard: *mut c_void);
    fn forebay_set_threads(count: c_int) -> bool;
    fn forebay_device_count() -> c_int;
    fn forebay_device_memory(device: c_int, free: *mut u64, total: *mut u64) -> bool;
    fn forebay_empty_cache() -> bool;
    fn forebay_empty_pinned() -> bool;
    fn forebay_stream_synchronize(device: c_int) -> bool;
    fn forebay_program_load(path: *const c_char, device: c_int, kind: c_int) -> *mut c_void;
    fn forebay_program_load_compiled(
        path: *const c_char,
        device: c_int,
        calls: usize,
    ) -> *mut c_void;
    fn forebay_program_can_do_without_mask(program: *mut c_void) -> bool;
    fn forebay_program_pack(program: *mut c_void, kernels: i64, packed: *mut PackedLayers) -> bool;
    fn forebay_linear_choices(choices: *mut LinearChoice, capacity: usize) -> i64;
    fn forebay_linear_remember(choices: *const LinearChoice, count: usize) -> bool;
    fn forebay_program_free(program: *mut c_void);
    fn forebay_program_run(
        program: *mut c_void,
        without_mask: bool,
        inputs: *const *mut c_void,
        count: usize,
        outputs: *mut *mut c_void,
        capacity: usize,
    ) -> i64;
    fn forebay_program_operations(
        program: *mut c_void,
        inputs: *const *mut c_void,
        count: usize,
    ) -> f64;
}

/// libtorch's message for a failed call.
pub(super) type Failure = String;

pub(super) fn last_error() -> Failure {
    // SAFETY: a C string of this thread, valid until its next failing call; copied here.
    unsafe { CStr::from_ptr(forebay_last_error()) }.to_string_lossy().into_owned()
}

pub(super) fn checked(succeeded: bool) -> Result<(), Failure> {
    if succeeded { Ok(()) } else { Err(last_error()) }
}

/// What libtorch says that its version is; empty if it does not.
pub(super) fn torch_version() -> String {
    // SAFETY: a constant C string, made at the first call under C++'s own lock.
    unsafe { CStr::from_ptr(forebay_torch_version()) }.to_string_lossy().into_owned()
}

/// The vectors of CPUs that libtorch's own kernels use here, where `ATEN_CPU_CAPABILITY` counts.
pub(super) fn cpu_vectors() -> Vectors {
    // SAFETY: a constant C string, made at the first call under C++'s own lock.
    match unsafe { CStr::from_ptr(forebay_cpu_capability()) }.to_bytes() {
        b"AVX512" => Vectors::Avx512,
        b"AVX2" => Vectors::Avx2,
        _ => Vectors::Plain,
    }
}

/// Settings of the process that are not libtorch's own choice.
pub(super) fn configure() -> Result<(), Failure> {
    // SAFETY: no pointers; exceptions are caught on the other side.
    checked(unsafe { forebay_configure() })
}

/// Whether products of fp32 may be rounded to TF32, those of convolutions included, that are started from now
/// on by any thread.
pub(super) fn allow_tf32(allow: bool) -> Result<(), Failure> {
    // SAFETY: no pointers; exceptions are caught on the other side.
    checked(unsafe { forebay_allow_tf32(allow) })
}

/// Threads that an operation started by the calling thread may use.
pub(super) fn set_threads(count: u32) -> Result<(), Failure> {
    let count = c_int::try_from(count).unwrap_or(c_int::MAX);
    // SAFETY: no pointers; exceptions are caught on the other side.
    checked(unsafe { forebay_set_threads(count) })
}

/// CUDA devices that libtorch sees.
pub(super) fn device_count() -> Result<u16, Failure> {
    // SAFETY: no pointers; exceptions are caught on the other side.
    u16::try_from(unsafe { forebay_device_count() }).map_err(|_| last_error())
}

/// Free and total bytes of a CUDA device.
pub(super) fn device_memory(ordinal: u16) -> Result<(u64, u64), Failure> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers are to locals that outlive the call.
    checked(unsafe { forebay_device_memory(c_int::from(ordinal), &mut free, &mut total) })?;
    Ok((free, total))
}

/// Returns unused memory to the devices.
pub(super) fn empty_cache() -> Result<(), Failure> {
    // SAFETY: no pointers; exceptions are caught on the other side.
    checked(unsafe { forebay_empty_cache() })
}

/// Returns unused pinned memory to the host.
fn empty_pinned() -> Result<(), Failure> {
    // SAFETY: no pointers; exceptions are caught on the other side.
    checked(unsafe { forebay_empty_pinned() })
}

/// Waits for what the calling thread has started on a device, which threads with streams of their own
/// would not wait for. What a CPU was told to do is done.
pub(super) fn synchronize(device: Device) -> Result<(), Failure> {
    match device {
        // SAFETY: no pointers; exceptions are caught on the other side.
        Device::Cuda(ordinal) => {
            checked(unsafe { forebay_stream_synchronize(c_int::from(ordinal)) })
        }
        Device::Cpu | Device::Emulated(_) => Ok(()),
    }
}

/// No autograd on this thread while it lives.
#[derive(Debug)]
pub(super) struct InferenceMode(*mut c_void);

impl InferenceMode {
    pub(super) fn enter() -> Self {
        // SAFETY: the guard is thread-local state; the raw pointer keeps this type on its thread.
        Self(unsafe { forebay_inference_mode_enter() })
    }
}

impl Drop for InferenceMode {
    fn drop(&mut self) {
        // SAFETY: made by `enter` on this thread, left once.
        unsafe { forebay_inference_mode_leave(self.0) }
    }
}

/// What [`Program::pack_linear_layers`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct PackedLayers {
    /// Layers that other kernels than MKL's compute.
    pub(super) layers: i64,
    /// Activations that they compute on the way.
    pub(super) activations: i64,
    /// Additions of another tensor that they compute on the way.
    pub(super) sums: i64,
    /// Weights in their layout; layers may have them in common.
    pub(super) weights: i64,
    /// Weights that are in memory in their old layout as well.
    pub(super) twice: i64,
    /// Attentions whose products oneDNN computes.
    pub(super) attentions: i64,
}

/// Which kernels compute linear layers of a shape faster. `outputs` are those that were measured, which
/// are fewer than a large layer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(super) struct LinearChoice {
    pub(super) inputs: i64,
    pub(super) outputs: i64,
    pub(super) threads: i64,
    /// What is computed with the layer: nothing, an addition, ReLU, GELU or tanh, 0 to 4.
    pub(super) follower: i64,
    /// Whose: MKL's, oneDNN's layers or its kernels of small products, 0 to 2.
    pub(super) kernels: i64,
}

/// All that this process has measured or was told to remember.
pub(super) fn linear_choices() -> Result<Vec<LinearChoice>, Failure> {
    let mut choices = Vec::new();
    loop {
        let capacity = choices.len();
        // SAFETY: room for as many as are said; linear.h declares the type alike.
        let known = unsafe { forebay_linear_choices(choices.as_mut_ptr(), capacity) };
        let known = usize::try_from(known).map_err(|_| last_error())?;
        let is_all = known <= capacity;
        choices.resize(known, LinearChoice::default());
        if is_all {
            return Ok(choices);
        }
    }
}

/// What another process measured, so that this one does not.
pub(super) fn remember_linear(choices: &[LinearChoice]) -> Result<(), Failure> {
    // SAFETY: a slice, which is copied; linear.h declares the type alike.
    checked(unsafe { forebay_linear_remember(choices.as_ptr(), choices.len()) })
}

fn c_string(path: &Path) -> Result<CString, Failure> {
    CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())
}

/// As the other side counts devices.
fn ordinal(device: Device) -> c_int {
    match device {
        Device::Cuda(ordinal) => c_int::from(ordinal),
        Device::Cpu | Device::Emulated(_) => -1,
    }
}

/// A program with its weights on one device.
#[derive(Debug)]
pub(super) struct Program {
    pointer: NonNull<c_void>,
    device: Device,
    _owned: PhantomData<c_void>,
}

// SAFETY: a loaded program in evaluation mode is never written to while it is shared; libtorch
// documents concurrent `forward` as safe, and freeing does not depend on the thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// Reads a TorchScript file and gives its floating point weights a format.
    pub(super) fn load(path: &Path, device: Device, precision: Precision) -> Result<Self, Failure> {
        let path = c_string(path)?;
        // Of c10::ScalarType.
        let kind = match precision {
            Precision::Fp32 | Precision::Tf32 | Precision::Int8 => -1,
            Precision::Fp16 => 5,
            Precision::Bf16 => 15,
        };
        // SAFETY: a C string that outlives the call.
        let pointer = unsafe { forebay_program_load(path.as_ptr(), ordinal(device), kind) };
        let pointer = NonNull::new(pointer).ok_or_else(last_error)?;
        // The weights as they are in the file, if they were converted on the device.
        give_back(device);
        Ok(Self { pointer, device, _owned: PhantomData })
    }

    /// Native code for this kind of device, which so many threads may run at the same time; more wait.
    pub(super) fn load_compiled(
        path: &Path,
        device: Device,
        calls: usize,
    ) -> Result<Self, Failure> {
        let path = c_string(path)?;
        // SAFETY: a C string that outlives the call.
        let pointer =
            unsafe { forebay_program_load_compiled(path.as_ptr(), ordinal(device), calls) };
        let pointer = NonNull::new(pointer).ok_or_else(last_error)?;
        Ok(Self { pointer, device, _owned: PhantomData })
    }

    /// Whether it can be run without a mask.
    pub(super) fn can_do_without_mask(&self) -> bool {
        // SAFETY: the program lives; nothing of it changes.
        unsafe { forebay_program_can_do_without_mask(self.pointer.as_ptr()) }
    }

    /// Gives attention of a TorchScript program on the CPU to oneDNN, and its linear layers to
    /// these kernels, or each to those that compute its shape fastest on as many threads as the
    /// calling thread may use. With MKL's it stays as it is, as it does after a failure.
    pub(super) fn pack_linear_layers(
        &mut self,
        kernels: LinearKernels,
    ) -> Result<PackedLayers, Failure> {
        let kernels = match kernels {
            LinearKernels::Mkl => return Ok(PackedLayers::default()),
            LinearKernels::Measured => -1,
            LinearKernels::OneDnn => 1,
            LinearKernels::Blocks => 2,
        };
        let mut packed = PackedLayers::default();
        // SAFETY: nobody else has the program; linear.h declares the other pointer's type alike.
        checked(unsafe { forebay_program_pack(self.pointer.as_ptr(), kernels, &mut packed) })?;
        // The weights were copied into another layout.
        give_back_freed();
        Ok(packed)
    }

    /// Runs the program and counts the floating point operations of its matrices.
    pub(super) fn operations(&self, inputs: &[Tensor]) -> Result<f64, Failure> {
        let inputs = pointers(inputs);
        // SAFETY: the tensors behind `inputs` are borrowed for the call, which only adds references.
        let counted = unsafe {
            forebay_program_operations(self.pointer.as_ptr(), inputs.as_ptr(), inputs.len())
        };
        if counted < 0.0 { Err(last_error()) } else { Ok(counted) }
    }

    /// Runs the program. Exactly `expected` tensors must come back.
    pub(super) fn forward(
        &self,
        inputs: &[Tensor],
        expected: usize,
    ) -> Result<Vec<Tensor>, Failure> {
        self.run(inputs, false, expected)
    }

    /// Runs its method that takes all arguments but the mask, for rows without padding. Exactly `expected` tensors
    /// must come back.
    pub(super) fn forward_without_mask(
        &self,
        inputs: &[Tensor],
        expected: usize,
    ) -> Result<Vec<Tensor>, Failure> {
        self.run(inputs, true, expected)
    }

    fn run(
        &self,
        inputs: &[Tensor],
        without_mask: bool,
        expected: usize,
    ) -> Result<Vec<Tensor>, Failure> {
        let inputs = pointers(inputs);
        let mut outputs = vec![ptr::null_mut::<c_void>(); expected];
        // SAFETY: the tensors behind `inputs` are borrowed for the call, which only adds
        // references to them; `outputs` has room for `expected` pointers.
        let count = unsafe {
            forebay_program_run(
                self.pointer.as_ptr(),
                without_mask,
                inputs.as_ptr(),
                inputs.len(),
                outputs.as_mut_ptr(),
                expected,
            )
        };
        let given = usize::try_from(count).map_err(|_| last_error())?;
        // SAFETY: the call has put owned tensors into the first places, at most `expected`.
        let owned = outputs.into_iter().take(given);
        let tensors = owned.map(|output| unsafe { Tensor::from_ptr(output.cast()) }).collect();
        if given == expected {
            return Ok(tensors);
        }
        Err(format!("it returned {given} tensors, but [[output]] declares {expected}"))
    }
}

/// What a call borrows.
fn pointers(tensors: &[Tensor]) -> Vec<*mut c_void> {
    tensors.iter().map(|tensor| tensor.as_ptr().cast_mut().cast()).collect()
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: owned by this value; freed once.
        unsafe { forebay_program_free(self.pointer.as_ptr()) };
        give_back(self.device);
        give_back_freed();
    }
}

/// Gives memory of a device that no tensor uses back to it, and pinned memory to the host, for other models and processes. That it cannot be is
/// said by what runs there next.
fn give_back(device: Device) {
    if let Device::Cuda(_) = device {
        empty_cache().ok();
        empty_pinned().ok();
    }
}
