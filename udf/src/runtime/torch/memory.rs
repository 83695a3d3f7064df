//! The C library's allocator, from which libtorch has its memory on CPUs.
//!
//! glibc maps large results anew for each batch, and the kernel clears their pages again: of a
//! convolutional model that is up to a fifth of the CPU time. Freed memory that stays is used by the
//! next batch, which wants just as much.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    /// Of allocations that are mapped each by itself, and of freed memory at the heap's end.
    const KEPT_MAX: c_int = 1 << 30;

    /// What is set, and the variable by which a user sets it.
    const SETTINGS: [(c_int, c_int, &str); 3] = [
        (libc::M_MMAP_THRESHOLD, KEPT_MAX, "MALLOC_MMAP_THRESHOLD_"),
        (libc::M_TRIM_THRESHOLD, KEPT_MAX, "MALLOC_TRIM_THRESHOLD_"),
        // The heaps that other threads get hold 64 MiB each: too small for two large results.
        (libc::M_ARENA_MAX, 1, "MALLOC_ARENA_MAX"),
    ];

    pub(super) fn keep_freed() {
        for (parameter, value, variable) in SETTINGS {
            if std::env::var_os(variable).is_none() {
                // SAFETY: no pointers; a value that is not taken leaves the default.
                unsafe { libc::mallopt(parameter, value) };
            }
        }
    }

    pub(super) fn give_back() {
        // SAFETY: no pointers; it takes the allocator's own locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Makes the C library's allocator keep up to 1 GiB of freed memory for the next batch, unless
/// `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_` or `MALLOC_ARENA_MAX` is set. A model that is
/// dropped gives its share back.
///
/// For the whole process, so the program decides: it calls this first, while it has one thread.
/// Without an effect where the C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_freed();
}

/// Returns freed memory to the system.
pub(super) fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::give_back();
}
