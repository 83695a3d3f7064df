//! Small rounds of a task are put together at its end: with little memory and many partitions there would be many small
//! segments, each to be asked for and read from another place.
//!
//! ```text
//!  ├0┤├1┤├2┤  ├0┤├2┤  ├0┤├1┤├2┤     ──▶     ├0 0 0┤├1 1┤├2 2 2┤
//! ```
//! Their bytes are copied as they are, one file after the other for each partition, and checked: a segment is then several
//! streams, as a whole round is.

use std::fs::File;
use std::io::{BufReader, Read};
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use forebay_engine::unreserved::admit;

use super::failure::{BlockError, DiskError};
use super::open_block::Sealed;
use super::open_round::OpenRound;
use super::store::BlockStore;
use crate::graph::Segment;
use crate::protocol::location::{BlockLocation, FileId};

/// A round that is complete.
pub(super) type Round = (FileId, Sealed);

/// Segments that are smaller on average are put together.
const SMALL_BYTES: u64 = 16 << 10;

/// But no segment becomes larger than this, which a reader has in memory; nor a file than this, nor more files one.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
const FILE_BYTES_MAX: u64 = 1 << 30;
const FILES_MAX: usize = 256;

/// Which of a task's rounds become one, each group by their places.
pub(super) fn groups(rounds: &[Round], partitions: u32) -> Vec<Range<usize>> {
    let mut found = vec![];
    let mut from = 0;
    let mut group = Group::new(partitions);
    for (at, (_, sealed)) in rounds.iter().enumerate() {
        if !group.takes(sealed) || at - from == FILES_MAX {
            found.extend(group.is_worth_it().then_some(from..at));
            (from, group) = (at, Group::new(partitions));
        }
        group.add(sealed);
    }
    found.extend(group.is_worth_it().then_some(from..rounds.len()));
    found
}

/// What a file of several rounds would be.
struct Group {
    of_partitions: Vec<u64>,
    bytes: u64,
    segments: u64,
    rounds: usize,
}

impl Group {
    fn new(partitions: u32) -> Self {
        Self { of_partitions: vec![0; partitions as usize], bytes: 0, segments: 0, rounds: 0 }
    }

    fn takes(&self, round: &Sealed) -> bool {
        let fits = |segment: Segment| {
            let before = self.of_partitions.get(segment.partition as usize);
            before.is_some_and(|before| before + u64::from(segment.bytes) <= SEGMENT_BYTES_MAX)
        };
        self.bytes + round.bytes <= FILE_BYTES_MAX && segments(round).all(fits)
    }

    fn add(&mut self, round: &Sealed) {
        for segment in segments(round) {
            if let Some(of_partition) = self.of_partitions.get_mut(segment.partition as usize) {
                *of_partition += u64::from(segment.bytes);
            }
            self.segments += 1;
        }
        self.bytes += round.bytes;
        self.rounds += 1;
    }

    fn is_worth_it(&self) -> bool {
        self.rounds > 1 && self.bytes / self.segments.max(1) < SMALL_BYTES
    }
}

fn segments(round: &Sealed) -> impl Iterator<Item = Segment> {
    round.segments.iter().flat_map(|segments| segments.iter())
}

/// Writes one round of several.
///
/// # Errors
/// If one of them is damaged, or the disk or the store is full or fails.
pub(super) async fn together(
    store: &Arc<BlockStore>,
    job: &str,
    id: FileId,
    rounds: &[Round],
    partitions: u32,
    memory: &MemoryReservation,
) -> Result<Round> {
    let sources = rounds.iter().map(|round| Source::open(store, job, round));
    let mut sources = sources.collect::<Result<Vec<_>, BlockError>>()?;
    let mut file = OpenRound::create_for_copies(store, job, id)?;
    for partition in 0..partitions {
        let mut has_rows = false;
        for source in &mut sources {
            let Some(segment) = source.segments.next_if(|next| next.partition == partition) else {
                continue;
            };
            let memory = memory.new_empty();
            admit(&memory, segment.bytes as usize)?;
            file.copy(&source.read(&segment)?, segment.rows)?;
            has_rows = true;
        }
        if has_rows {
            file.end_segment(partition)?;
            // Others of this thread have waited for the copies of a partition.
            tokio::task::yield_now().await;
        }
    }
    Ok((id, file.seal()?))
}

/// Whether there is no room for rounds twice: they stay as they are then.
pub(super) fn lacks_room(error: &DataFusionError) -> bool {
    let cause: Option<&DiskError> = match error {
        DataFusionError::External(cause) => cause.downcast_ref(),
        _ => None,
    };
    matches!(cause, Some(DiskError::Full(_)))
}

/// A round that is read from its begin to its end, segment by segment.
struct Source {
    location: BlockLocation,
    file: BufReader<File>,
    segments: Peekable<std::vec::IntoIter<Segment>>,
}

impl Source {
    fn open(store: &BlockStore, job: &str, (id, sealed): &Round) -> Result<Self, BlockError> {
        let location = BlockLocation {
            job: job.to_owned(),
            id: *id,
            worker: store.worker().to_owned(),
            address: String::new(),
            bytes: sealed.bytes,
            rows: sealed.rows,
            checksum: sealed.checksum,
            segment_at: None,
        };
        let file = store.open(&location)?.into_file();
        let file = file.map_err(|error| BlockError::new(&location, error))?;
        let file = BufReader::new(file);
        let segments = segments(sealed).collect::<Vec<_>>().into_iter().peekable();
        Ok(Self { location, file, segments })
    }

    /// The next segment, which is this one.
    fn read(&mut self, segment: &Segment) -> Result<Vec<u8>, BlockError> {
        let mut bytes = vec![0; segment.bytes as usize];
        let read = self.file.read_exact(&mut bytes);
        read.map_err(|error| BlockError::new(&self.location, error))?;
        let whole = BlockLocation { checksum: segment.checksum, ..self.location.clone() };
        whole.check_sum(crc32fast::hash(&bytes))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Segments;

    /// A round with segments of so many bytes, of the partitions from 0 on.
    fn round(seq: u32, bytes: &[u32]) -> Round {
        let (mut all, mut at) = (vec![], 0);
        for (partition, bytes) in (0..).zip(bytes.iter().copied()).filter(|(_, bytes)| *bytes > 0) {
            all.push(Segment { partition, at, bytes, rows: 1, checksum: 0 });
            at += bytes;
        }
        let segments = Segments::new(&all);
        let (bytes, rows) = (segments.file_bytes(), segments.rows());
        let sealed = Sealed { bytes, rows, checksum: 0, run: None, segments: Some(segments) };
        (FileId { stage: 1, task: 2, seq }, sealed)
    }

    fn grouped(rounds: &[&[u32]]) -> Vec<(usize, usize)> {
        let rounds: Vec<_> = (0..).zip(rounds).map(|(seq, bytes)| round(seq, bytes)).collect();
        groups(&rounds, 3).into_iter().map(|group| (group.start, group.end)).collect()
    }

    #[test]
    fn small_rounds_become_one_and_large_ones_stay() {
        assert_eq!(grouped(&[]), []);
        assert_eq!(grouped(&[&[10, 10, 10]]), []);
        assert_eq!(grouped(&[&[10, 10, 10], &[0, 0, 10]]), [(0, 2)]);
        assert_eq!(grouped(&[&[100_000; 3], &[100_000; 3]]), []);
        // One large segment does not become larger.
        let skewed: &[u32] = &[3 << 20, 10, 10];
        assert_eq!(grouped(&[skewed, skewed]), []);
        let small: &[u32] = &[0, 10, 10];
        assert_eq!(grouped(&[small, small, &[5 << 20; 3], small, small]), [(0, 2), (3, 5)]);
    }

    #[test]
    fn no_segment_and_no_file_becomes_too_large_and_not_too_many_are_open() {
        let rounds: Vec<_> = (0..600).map(|seq| round(seq, &[40_000, 1, 1])).collect();
        let found = groups(&rounds, 3);
        // 104 segments of 40,000 bytes are 4 MiB.
        assert!(found.iter().all(|group| group.len() <= 104), "{found:?}");
        assert_eq!(found.iter().map(ExactSizeIterator::len).sum::<usize>(), 600);
        let rounds: Vec<_> = (0..600).map(|seq| round(seq, &[10, 10, 10])).collect();
        assert_eq!(groups(&rounds, 3), [0..256, 256..512, 512..600]);
    }
}
