//! The file of a block, or a segment of it, as it is served: in pieces, so that it is never in memory as a whole, however
//! many ask for blocks at a time.

use std::sync::Arc;

use bytes::Bytes;

use super::block_file::BlockFile;
use super::failure::BlockError;
use super::store::BlockStore;
use crate::protocol::location::BlockLocation;

/// Bytes in one piece.
const PIECE_BYTES: u64 = 1 << 20;

/// What of a block has not been served yet.
#[derive(Debug)]
pub(super) struct Serving {
    location: BlockLocation,
    file: BlockFile,
    bytes_left: u64,
    checksum: crc32fast::Hasher,
}

impl Serving {
    /// From the first byte on.
    ///
    /// # Errors
    /// If it is gone, or has another size.
    pub(super) fn open(
        store: &Arc<BlockStore>,
        location: BlockLocation,
    ) -> Result<Self, BlockError> {
        let file = store.open(&location)?;
        let checksum = crc32fast::Hasher::new();
        Ok(Self { bytes_left: location.bytes, location, file, checksum })
    }

    /// The next bytes, if there are more.
    ///
    /// # Errors
    /// If they cannot be read, or all together are not those that were sealed. The reader counts and
    /// checks them as well: a line may damage them.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, BlockError> {
        if self.bytes_left == 0 {
            self.location.check_sum(self.checksum.clone().finalize())?;
            return Ok(None);
        }
        let wanted = self.bytes_left.min(PIECE_BYTES);
        let piece = self.file.read(self.location.bytes - self.bytes_left, wanted as usize);
        let piece = piece.map_err(|error| BlockError::new(&self.location, error))?;
        if (piece.len() as u64) < wanted {
            return Err(BlockError::new(&self.location, "its file became shorter"));
        }
        self.bytes_left -= wanted;
        self.checksum.update(&piece);
        Ok(Some(piece))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::protocol::location::FileId;

    /// A file of so many bytes where a block should be.
    fn block(folder: &tempfile::TempDir, bytes: usize) -> (Arc<BlockStore>, BlockLocation) {
        let store = BlockStore::new("w".to_owned(), folder.path().to_owned(), u64::MAX);
        let content: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let blocks = folder.path().join("job/1/blocks");
        fs::create_dir_all(&blocks).unwrap();
        fs::write(blocks.join("2-3.arrow"), &content).unwrap();
        let location = BlockLocation {
            job: "job".to_owned(),
            id: FileId { stage: 1, task: 2, seq: 3 },
            worker: "w".to_owned(),
            bytes: bytes as u64,
            checksum: crc32fast::hash(&content),
            ..BlockLocation::default()
        };
        (Arc::new(store), location)
    }

    fn served(mut serving: Serving) -> Result<Vec<Bytes>, BlockError> {
        std::iter::from_fn(|| serving.next().transpose()).collect()
    }

    #[test]
    fn a_block_comes_in_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let (store, location) = block(&folder, 2_500_000);
        let pieces = served(Serving::open(&store, location.clone()).unwrap()).unwrap();
        let sizes: Vec<_> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(sizes, [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]);
        assert_eq!(pieces.concat(), store.read(&location).unwrap());
        let (store, empty) = block(&folder, 0);
        assert!(served(Serving::open(&store, empty).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn damage_is_told_before_the_end_and_a_file_that_is_not_the_block_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (store, location) = block(&folder, 2_500_000);
        let other = BlockLocation { checksum: 1, ..location.clone() };
        let error = served(Serving::open(&store, other).unwrap()).unwrap_err().to_string();
        assert!(error.contains("instead of 00000001"), "{error}");
        let longer = BlockLocation { bytes: 2_500_001, ..location.clone() };
        let error = Serving::open(&store, longer).unwrap_err().to_string();
        assert!(error.contains("2500000 bytes instead of 2500001"), "{error}");
        let gone = BlockLocation { id: FileId { stage: 1, task: 2, seq: 4 }, ..location };
        assert!(Serving::open(&store, gone).is_err());
    }
}
