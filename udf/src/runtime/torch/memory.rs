//! What the C library's allocator does with memory that libtorch frees. Tensors have theirs from another one: see
//! [`super::allocator`].

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    /// Smaller allocations are not mapped each by itself. The second is the most that glibc took
    /// before 2.35.
    const MAPPED_FROM: [c_int; 2] = [1 << 30, 32 << 20];

    /// More freed memory than this at the heap's end is returned to the system.
    const FREE_MAX: c_int = 1 << 30;

    /// Whoever sets one of these knows better.
    const VARIABLES: [&str; 4] =
        ["GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"];

    pub(super) fn keep_freed() {
        if VARIABLES.iter().any(|variable| std::env::var_os(variable).is_some()) {
            return;
        }
        // SAFETY: no pointers.
        let is_set = |parameter, value| unsafe { libc::mallopt(parameter, value) } == 1;
        // The others alone would make it worse: they stop glibc from raising the first by itself.
        if MAPPED_FROM.into_iter().any(|bytes| is_set(libc::M_MMAP_THRESHOLD, bytes)) {
            is_set(libc::M_TRIM_THRESHOLD, FREE_MAX);
            // The heaps that other threads get hold 64 MiB each: too small for two large results.
            is_set(libc::M_ARENA_MAX, 1);
        }
    }

    pub(super) fn give_back() {
        // SAFETY: no pointers; it takes the allocator's own locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Makes the C library's allocator keep freed memory for the next batch, unless one of
/// `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`, `MALLOC_ARENA_MAX` and `GLIBC_TUNABLES` is
/// set. What is free of it is returned when a model is dropped.
///
/// For the whole process, so the program decides: it calls this first, while it has one thread. Only
/// for programs whose own allocator is another one, as all threads share one heap then. Without an
/// effect where the C library is not glibc.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_freed();
}

/// Returns freed memory of the C library's to the system.
pub(super) fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::give_back();
}
