//! The blocks of a job that a worker has, and the files in which they lie.

use std::collections::HashMap;

use crate::protocol::location::FileId;

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a file of its own.
    Whole,
    /// In the file that is named by a block, behind others perhaps; [past the page cache](super::past_cache) or not.
    Part { of: FileId, at: u64, is_direct: bool },
}

impl Place {
    /// The name of the file, for this block.
    pub(super) fn file(self, id: FileId) -> FileId {
        match self {
            Self::Whole => id,
            Self::Part { of, .. } => of,
        }
    }
}

/// The blocks of a job that are sealed, and the files in which they lie.
#[derive(Debug, Default)]
pub(super) struct JobBlocks {
    blocks: HashMap<FileId, Place>,
    files: HashMap<FileId, SealedFile>,
}

#[derive(Debug, Default)]
struct SealedFile {
    blocks: usize,
    /// Of all that it has had.
    bytes: u64,
}

impl JobBlocks {
    /// Where a block lies, if it is here.
    pub(super) fn place(&self, id: FileId) -> Option<Place> {
        self.blocks.get(&id).copied()
    }

    /// Says whether its file is there.
    pub(super) fn keep(&mut self, id: FileId, bytes: u64, place: Place) -> bool {
        let name = place.file(id);
        let is_first = matches!(place, Place::Whole | Place::Part { at: 0, .. });
        if !is_first && !self.files.contains_key(&name) {
            return false;
        }
        let before = self.blocks.insert(id, place);
        debug_assert!(before.is_none(), "block {id} is written twice");
        let file = self.files.entry(name).or_default();
        file.blocks += 1;
        file.bytes += bytes;
        true
    }

    /// Counts a block no more; the file that has no others, and its bytes. Of what is not known there may be a file.
    pub(super) fn remove(&mut self, id: FileId) -> Option<(FileId, u64)> {
        let Some(place) = self.blocks.remove(&id) else {
            return (!self.files.contains_key(&id)).then_some((id, 0));
        };
        let name = place.file(id);
        let file = self.files.get_mut(&name)?;
        file.blocks -= 1;
        if file.blocks > 0 {
            return None;
        }
        self.files.remove(&name).map(|file| (name, file.bytes))
    }

    /// The same for all blocks of some stages; bytes of their files.
    pub(super) fn remove_stages(&mut self, stages: &[u32]) -> u64 {
        self.blocks.retain(|id, _| !stages.contains(&id.stage));
        let gone = self.files.extract_if(|id, _| stages.contains(&id.stage));
        gone.map(|(_, file)| file.bytes).sum()
    }

    /// Of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}
