//! Where this program's memory comes from.
#![allow(unsafe_code, reason = "mimalloc's options are set by a function of its own")]

use std::ffi::{c_int, c_long};

/// Faster than the system's with DataFusion's many small allocations; libtorch keeps the system's.
/// It does not ask for huge pages: of some only a part was used, and memory was up to twice as large
/// (`decode` in `benches/peers`: 830 MB instead of 500 MB).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// `mi_option_purge_decommits`, as `mi_option_e` counts in mimalloc 3 (`MIMALLOC_VERBOSE=1` prints it).
const PURGE_DECOMMITS: c_int = 5;

/// Offers the system what was freed a second ago (`MADV_FREE`), instead of giving it back (`MADV_DONTNEED`).
///
/// The system takes it when it lacks memory; until then it counts as resident. A sort or a shuffle wants it again soon,
/// and a page that was given back must be asked for, found and cleared: workers spent a tenth of the time so in which
/// they sorted 12 GB. `MIMALLOC_PURGE_DECOMMITS=1` undoes this. For the whole process; called while it has one thread.
pub(crate) fn offer_freed_memory() {
    // SAFETY: mimalloc, of which the allocator is made, has this function, which sets a number.
    unsafe { mi_option_set_default(PURGE_DECOMMITS, 0) };
}
