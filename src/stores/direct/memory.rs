//! Memory from which a disk takes much at a time.

use std::io;

use memmap2::{Advice, MmapMut};

/// The size of the pages that are asked for, and what memory begins at a multiple of.
const PAGE: usize = 2 << 20;

/// Memory in large pages, where the kernel has such. A request to a disk names each piece of memory that lies by itself,
/// and only so many of them: of usual pages it has half a megabyte or one, of these as much as the disk takes at a time.
#[derive(Debug)]
pub(super) struct LargePages {
    map: MmapMut,
    start: usize,
}

impl LargePages {
    /// For so many bytes, which are zeros.
    ///
    /// # Errors
    /// If there is no such memory.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let whole = bytes.max(1).next_multiple_of(PAGE);
        let map = MmapMut::map_anon(whole + PAGE)?;
        // Without them it is slower.
        map.advise(Advice::HugePage).ok();
        let start = map.as_ptr().align_offset(PAGE).min(PAGE);
        Ok(Self { map, start })
    }

    /// Bytes of it.
    pub(super) fn room(&self) -> usize {
        self.map.len() - self.start
    }

    /// All of it, from its first page on.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.map[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_behind_the_beginning_of_a_page() {
        for bytes in [0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 7] {
            let mut memory = LargePages::new(bytes).unwrap();
            let room = memory.room();
            assert!(room >= bytes, "{bytes}");
            assert_eq!((memory.bytes().as_ptr().addr() % PAGE, memory.bytes().len()), (0, room));
            memory.bytes().fill(7);
        }
    }
}
