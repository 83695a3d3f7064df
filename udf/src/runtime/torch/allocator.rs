//! Tensors on CPUs have their memory from this program's allocator. All else of libtorch's has it from the C library's:
//! see [`super::memory`].
//!
//! Each batch has results of other sizes. glibc either maps them anew, and the kernel clears their pages again, which
//! is up to a fifth of the CPU time; or keeps what was freed, and its heap grows with every new length of texts. An allocator
//! that has pages for each size does neither.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

/// Of tensors, as libtorch's own allocator aligns them (`c10::gAlignment`).
const ALIGNMENT: usize = 64;

/// In front of each tensor: how many bytes it takes with this, which who frees it does not say.
const HEADER_BYTES: usize = ALIGNMENT;

unsafe extern "C" {
    fn forebay_allocate_with(
        allocate: extern "C" fn(usize) -> *mut c_void,
        free: unsafe extern "C" fn(*mut c_void),
    );
}

/// Gives tensors their memory from this program's allocator. Callable once libtorch is loaded.
pub(super) fn allocate_tensors() {
    // SAFETY: both functions live as long as the process.
    unsafe { forebay_allocate_with(allocate, free) };
}

/// What the machine has. An allocator may map more, for the process to be killed when it is used.
fn machine_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: zeros are a value of this structure of numbers.
            let mut found: libc::sysinfo = unsafe { std::mem::zeroed() };
            // SAFETY: it fills the structure, which is a local.
            if unsafe { libc::sysinfo(&mut found) } == 0 {
                let units = found.totalram.saturating_add(found.totalswap);
                let bytes = units.saturating_mul(found.mem_unit.into());
                return usize::try_from(bytes).unwrap_or(usize::MAX);
            }
        }
        usize::MAX
    })
}

/// Memory for a tensor of so many bytes; null if there is none.
extern "C" fn allocate(bytes: usize) -> *mut c_void {
    let layout = bytes
        .checked_add(HEADER_BYTES)
        .filter(|bytes| *bytes < machine_bytes())
        .and_then(|bytes| Layout::from_size_align(bytes, ALIGNMENT).ok());
    let Some(layout) = layout else { return ptr::null_mut() };
    // SAFETY: it has a size, that of the header at least.
    let start = unsafe { alloc(layout) };
    if start.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the header is within what was allocated, and aligned for a number.
    unsafe {
        start.cast::<usize>().write(layout.size());
        start.add(HEADER_BYTES).cast()
    }
}

/// Frees what [`allocate`] gave.
///
/// # Safety
/// It is null, or [`allocate`] gave it and it was not freed since.
unsafe extern "C" fn free(tensor: *mut c_void) {
    if tensor.is_null() {
        return;
    }
    // SAFETY: `allocate` has put a header in front, and its layout was a valid one.
    unsafe {
        let start = tensor.cast::<u8>().sub(HEADER_BYTES);
        let bytes = start.cast::<usize>().read();
        dealloc(start, Layout::from_size_align_unchecked(bytes, ALIGNMENT));
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::super::library::ensure_loaded;
    use super::{ALIGNMENT, HEADER_BYTES};

    #[test]
    fn tensors_have_their_memory_from_this_programs_allocator() {
        ensure_loaded().unwrap();
        let numbers = Tensor::arange(1000, (Kind::Int64, Device::Cpu));
        let start = numbers.data_ptr();
        assert_eq!(start.align_offset(ALIGNMENT), 0);
        // SAFETY: in front of each tensor is its header.
        let bytes = unsafe { start.cast::<u8>().sub(HEADER_BYTES).cast::<usize>().read() };
        assert_eq!(bytes, 1000 * size_of::<i64>() + HEADER_BYTES);
        let nothing = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        let larger = Tensor::cat(&[&numbers, &numbers], 0);
        assert_eq!((nothing.numel(), larger.int64_value(&[1999])), (0, 999));
        assert!(super::allocate(super::machine_bytes()).is_null(), "more than there is");
    }
}
