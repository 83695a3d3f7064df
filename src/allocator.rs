//! Where this program's memory comes from.
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to be, and mimalloc's options are set by a function of its own"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// mimalloc: faster than the system's with DataFusion's many small allocations; libtorch keeps the system's.
///
/// What is large has large pages, where the kernel has such. A sort picks its rows all over a hundred megabytes, and with
/// usual pages each of them is looked for first. Of small allocations only a part of such a page was used, and memory was
/// up to twice as large (`decode` in `benches/peers`: 830 MB instead of 500 MB), so mimalloc does not ask for them itself.
struct Allocator;

/// From so many bytes on an allocation is large.
const LARGE: usize = 8 << 20;

/// Bytes of a large page.
const PAGE: usize = 2 << 20;

// SAFETY: all of it is mimalloc's, which is one. What else is done changes no byte, but that a copy is made of what grows.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's; so many bytes were allocated, if any.
        unsafe {
            let start = MiMalloc.alloc(layout);
            advise(start, layout.size(), libc::MADV_HUGEPAGE);
            start
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's; so many bytes were allocated, if any.
        unsafe {
            let start = MiMalloc.alloc_zeroed(layout);
            advise(start, layout.size(), libc::MADV_HUGEPAGE);
            start
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's; so many bytes are still allocated.
        unsafe {
            // Small allocations may be there next.
            advise(start, layout.size(), libc::MADV_NOHUGEPAGE);
            MiMalloc.dealloc(start, layout);
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes < LARGE || bytes <= layout.size() {
            // SAFETY: the caller's.
            return unsafe { MiMalloc.realloc(start, layout, bytes) };
        }
        // mimalloc would fill usual pages before anybody could ask for others.
        // SAFETY: the caller promises that there is such a layout; both have as many bytes as are copied.
        unsafe {
            let grown = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
            if !grown.is_null() {
                grown.copy_from_nonoverlapping(start, layout.size());
                self.dealloc(start, layout);
            }
            grown
        }
    }
}

/// Says of the whole large pages within an allocation, if it is large, which pages it is to have. Those that have been
/// written to stay what they are.
///
/// # Safety
/// So many bytes are allocated at `start`, or it is null.
unsafe fn advise(start: *mut u8, bytes: usize, pages: c_int) {
    if bytes >= LARGE && !start.is_null() {
        let before = start.addr().wrapping_neg() % PAGE;
        let whole = (bytes - before) / PAGE * PAGE;
        // SAFETY: it is within what is allocated. Where it is refused, pages are as they were.
        unsafe { libc::madvise(start.add(before).cast(), whole, pages) };
    }
}

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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const MOST: usize = 3 * LARGE + 5;

    #[test]
    fn what_becomes_large_or_small_keeps_its_bytes() {
        let expected: Vec<u8> = (0..=250).cycle().take(5 * LARGE).collect();
        let mut bytes: Vec<u8> = vec![];
        for size in [1, LARGE - 1, LARGE, LARGE + 1, MOST, LARGE, 7, 5 * LARGE, PAGE, MOST] {
            bytes.truncate(size);
            bytes.shrink_to_fit();
            assert!(bytes == expected[..bytes.len()], "{size}");
            bytes.reserve_exact(size - bytes.len());
            bytes.extend_from_slice(&expected[bytes.len()..size]);
            assert!(bytes == expected[..size], "{size}");
        }
    }

    #[test]
    fn what_is_asked_for_as_zeros_is_zeros() {
        let zeros = [0; 1 << 10];
        for _ in 0..3 {
            let mut bytes = vec![0_u8; 2 * LARGE];
            assert!(bytes.chunks(zeros.len()).all(|chunk| chunk == zeros));
            bytes.fill(7);
        }
    }

    /// What the kernel says of the memory at a place: `VmFlags` of its map.
    fn flags_at(place: usize) -> String {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut found = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let address = |text: &str| usize::from_str_radix(text, 16).ok();
            match range.and_then(|(from, to)| Some(address(from)?..address(to)?)) {
                Some(range) => found = range.contains(&place),
                None if found && line.starts_with("VmFlags:") => return line.to_owned(),
                None => {}
            }
        }
        panic!("no map at {place:x}")
    }

    #[test]
    fn what_is_large_is_asked_for_in_large_pages() {
        if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return eprintln!("not tested: this kernel has no large pages");
        }
        // Or else what is asked for is not had.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(!status.contains("THP_enabled:\t0"), "{status}");
        for bytes in [vec![1_u8; MOST], vec![0_u8; MOST]] {
            let flags = flags_at(bytes.as_ptr().addr() + MOST / 2);
            assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
        }
    }
}
