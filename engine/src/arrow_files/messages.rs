//! Files that are one message after the other, as they were sent: read from the beginning.

use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::root_as_message;
use arrow::record_batch::RecordBatch;
use bytes::{Bytes, BytesMut};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::DECOMPRESSED_BYTES_MAX;
use crate::claims;

/// Before a message's length, except in files of before 2019.
pub(super) const CONTINUATION: [u8; 4] = [0xff; 4];

/// Behind the last message.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// All batches of a file.
pub(super) async fn open(
    store: Arc<dyn ObjectStore>,
    object: ObjectMeta,
    columns: Vec<usize>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let bytes = store.get(&object.location).await?.into_stream();
    let reader = Reader {
        bytes: bytes.map_err(DataFusionError::from).boxed(),
        read: BytesMut::new(),
        left: usize::try_from(object.size).unwrap_or(usize::MAX),
        decoder: StreamDecoder::new(),
        undecoded: Buffer::from(Vec::<u8>::new()),
        has_ended: false,
        columns,
        file: object.location.to_string(),
    };
    let batches = futures::stream::try_unfold(reader, |mut reader| async move {
        Ok(reader.next().await?.map(|batch| (batch, reader)))
    });
    Ok(batches.boxed())
}

struct Reader {
    bytes: BoxStream<'static, Result<Bytes>>,
    /// What has come and is not in a message yet.
    read: BytesMut,
    /// Bytes of the file that are not in a message yet.
    left: usize,
    decoder: StreamDecoder,
    /// Of the last message: the decoder gives a batch without a body when it sees the next one.
    undecoded: Buffer,
    has_ended: bool,
    columns: Vec<usize>,
    file: String,
}

impl Reader {
    /// The next batch, or nothing at the end.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            while !self.undecoded.is_empty() {
                if let Some(batch) = self.decoder.decode(&mut self.undecoded)? {
                    return Ok(Some(batch.project(&self.columns)?));
                }
            }
            if self.has_ended {
                return Ok(None);
            }
            let message = self.message().await?;
            self.has_ended = message.is_none();
            self.undecoded = message.map_or_else(|| Buffer::from(END), Buffer::from);
        }
    }

    /// The next message with its length and body, which hold what they say. A file may end without a
    /// mark, and what follows the mark is not looked at.
    async fn message(&mut self) -> Result<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.fill(CONTINUATION.len()).await?;
        let head_at = if self.read.starts_with(&CONTINUATION) { 8 } else { 4 };
        self.fill(head_at).await?;
        let head_bytes = match self.read[..head_at].last_chunk() {
            Some(length) => u32::from_le_bytes(*length) as usize,
            None => 0,
        };
        if head_bytes == 0 {
            return Ok(None);
        }
        let body_at = head_at + head_bytes;
        self.fill(body_at).await?;
        let message = root_as_message(&self.read[head_at..body_at])
            .map_err(|error| self.damaged(&error.to_string()))?;
        let body_bytes = usize::try_from(message.bodyLength())
            .map_err(|_| self.damaged("a message says that its body has less than no bytes"))?;
        let end = body_at.saturating_add(body_bytes);
        self.fill(end).await?;
        let (head, body) = self.read[..end].split_at(body_at);
        claims::check(&head[head_at..], body, DECOMPRESSED_BYTES_MAX)
            .map_err(|error| error.context(self.file.clone()))?;
        self.left -= end;
        Ok(Some(self.read.split_to(end).freeze()))
    }

    /// Reads until there are so many bytes.
    async fn fill(&mut self, bytes: usize) -> Result<()> {
        if bytes > self.left {
            return Err(self.damaged(&format!(
                "a message has {bytes} bytes, and the file ends after {}",
                self.left
            )));
        }
        while self.read.len() < bytes {
            let Some(more) = self.bytes.try_next().await? else {
                return Err(self.damaged("it has become shorter while it was read"));
            };
            self.read.extend_from_slice(&more);
        }
        Ok(())
    }

    fn damaged(&self, why: &str) -> DataFusionError {
        exec_datafusion_err!("{} is not a whole Arrow file: {why}", self.file)
    }
}
