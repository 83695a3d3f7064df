//! Blocks that have been fetched, and their batches.

use std::collections::VecDeque;
use std::task::Poll;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::ipc::reader::StreamDecoder;
use bytes::Bytes;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use forebay_engine::unreserved::admit;
use forebay_engine::weight;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::failure::BlockError;
use crate::protocol::location::BlockLocation;

/// The batches of what `reads` give. The next read begins with the last batch of the one before, which leaves its
/// memory to it: whoever merges a hundred runs is rarely kept waiting by one of them, and holds no more of each than a
/// block and a batch.
pub(super) fn batches(
    reads: impl Stream<Item = Result<Vec<Decoded>>> + Send + 'static,
) -> impl Stream<Item = Result<RecordBatch>> + Send {
    let begun = (Box::pin(reads.peekable()), VecDeque::new(), None::<MemoryReservation>);
    stream::try_unfold(begun, |(mut reads, mut fetched, held)| async move {
        // Of the batch before, if that was the last one of its block.
        drop(held);
        let mut held = None;
        loop {
            let Some(block) = fetched.front_mut() else {
                let Some(blocks) = reads.try_next().await? else { return Ok(None) };
                fetched.extend(blocks);
                continue;
            };
            let batch = block.decode()?;
            if batch.is_none() || block.is_whole() {
                block.check_end()?;
                held = fetched.pop_front().map(|block| block.decoded);
            }
            if fetched.is_empty() {
                // Begun, and not waited for.
                let _: Poll<_> = futures::poll!(reads.as_mut().peek());
            }
            if let Some(batch) = batch {
                return Ok(Some((batch, (reads, fetched, held))));
            }
        }
    })
}

/// How a stream of Arrow's IPC format ends: with a message of no bytes.
const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// The batches of a block, decoded as they are asked for.
pub(super) struct Decoded {
    block: BlockLocation,
    buffer: Buffer,
    decoder: StreamDecoder,
    rows: u64,
    /// For the block, until its last batch is read.
    _reserved: MemoryReservation,
    /// For the batch that was decoded last, until the next one is asked for.
    decoded: MemoryReservation,
}

impl Decoded {
    pub(super) fn new(block: BlockLocation, bytes: Bytes, reserved: MemoryReservation) -> Self {
        let (buffer, decoder) = (Buffer::from(bytes), StreamDecoder::new());
        let decoded = reserved.new_empty();
        Self { block, buffer, decoder, rows: 0, _reserved: reserved, decoded }
    }

    /// The next batch, if there is one.
    fn decode(&mut self) -> Result<Option<RecordBatch>> {
        self.decoded.free();
        let batch = self.next()?;
        if let Some(batch) = &batch {
            admit(&self.decoded, weight::bytes(batch))?;
            self.rows += batch.num_rows() as u64;
        }
        Ok(batch)
    }

    /// Whether all of its rows have been decoded.
    fn is_whole(&self) -> bool {
        self.rows == self.block.rows
    }

    /// Makes sure that these are its rows, and no others follow.
    fn check_end(&mut self) -> Result<()> {
        while let Some(batch) = self.next()? {
            self.rows += batch.num_rows() as u64;
        }
        if self.is_whole() {
            return Ok(());
        }
        let found = format!("{} rows instead of {}", self.rows, self.block.rows);
        Err(BlockError::new(&self.block, found).into())
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.buffer.starts_with(&END_OF_STREAM) {
            // A round of a hash shuffle, read as a whole, is one stream after the other.
            self.buffer.advance(END_OF_STREAM.len());
            self.decoder = StreamDecoder::new();
        }
        let batch = self.decoder.decode(&mut self.buffer);
        batch.map_err(|error| BlockError::new(&self.block, error).into())
    }
}

#[cfg(test)]
mod tests;
