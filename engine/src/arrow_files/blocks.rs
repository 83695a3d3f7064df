//! Files with a footer that says where their batches are, so that a part of one can be read.

use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block, Footer, root_as_footer};
use arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::datasource::listing::FileRange;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::DECOMPRESSED_BYTES_MAX;
use crate::claims;
use crate::read_ahead;

/// The length of the footer and the magic word, at a file's end.
const TAIL_BYTES: u64 = 10;

/// Batches that are fetched while one is decoded.
const FETCHED_AHEAD: usize = 2;

/// The batches that begin in `range`, or all.
pub(super) async fn open(
    store: Arc<dyn ObjectStore>,
    object: ObjectMeta,
    columns: Vec<usize>,
    range: Option<FileRange>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let file = Arc::new(File { store, object });
    let footer = file.footer().await?;
    let footer = root_as_footer(&footer).map_err(|error| file.damaged(&error.to_string()))?;
    let schema = footer.schema().ok_or_else(|| file.damaged("it has no schema"))?;
    let mut decoder =
        FileDecoder::new(Arc::new(fb_to_schema(schema)), footer.version()).with_projection(columns);
    for block in footer.dictionaries().into_iter().flatten() {
        let bytes = file.block(*block).await?;
        decoder.read_dictionary(block, &bytes)?;
    }
    let blocks = batches(&footer, range);
    let fetch = move |block: Block| {
        let file = Arc::clone(&file);
        async move { Ok::<_, DataFusionError>((block, file.block(block).await?)) }
    };
    let fetched = read_ahead(futures::stream::iter(blocks).map(fetch), FETCHED_AHEAD);
    let decode = move |(block, bytes)| {
        let batch: Result<_, ArrowError> = decoder.read_record_batch(&block, &bytes);
        std::future::ready(batch.map_err(DataFusionError::from))
    };
    Ok(fetched.try_filter_map(decode).boxed())
}

fn batches(footer: &Footer<'_>, range: Option<FileRange>) -> Vec<Block> {
    let is_in = |block: &Block| {
        range.as_ref().is_none_or(|range| (range.start..range.end).contains(&block.offset()))
    };
    footer.recordBatches().into_iter().flatten().copied().filter(is_in).collect()
}

struct File {
    store: Arc<dyn ObjectStore>,
    object: ObjectMeta,
}

impl File {
    async fn footer(&self) -> Result<Vec<u8>> {
        let size = self.object.size;
        let cut = || self.damaged(&format!("it has {size} bytes and no footer"));
        let end = size.checked_sub(TAIL_BYTES).ok_or_else(cut)?;
        let tail = self.read(end..size).await?;
        let tail = tail.as_slice().try_into().map_err(|_| cut())?;
        let length = read_footer_length(tail).map_err(|_| cut())? as u64;
        let begin = end.checked_sub(length).ok_or_else(cut)?;
        Ok(self.read(begin..end).await?.to_vec())
    }

    /// A message and its body, which hold what they say.
    async fn block(&self, block: Block) -> Result<Buffer> {
        let Some((range, head_bytes)) = self.place(block) else {
            return Err(self.damaged(&format!("{block:?} is outside of it")));
        };
        let bytes = self.read(range).await?;
        let (head, body) = bytes.split_at(head_bytes);
        let Some(message) = message(head) else {
            return Err(self.damaged(&format!("{block:?} has no message")));
        };
        claims::check(message, body, DECOMPRESSED_BYTES_MAX)
            .map_err(|error| error.context(self.object.location.to_string()))?;
        Ok(bytes)
    }

    /// Where a block is in the file, and how long its message is.
    fn place(&self, block: Block) -> Option<(Range<u64>, usize)> {
        let begin = u64::try_from(block.offset()).ok()?;
        let head = u64::try_from(block.metaDataLength()).ok()?;
        let body = u64::try_from(block.bodyLength()).ok()?;
        let end = begin.checked_add(head)?.checked_add(body)?;
        (end <= self.object.size).then_some((begin..end, head as usize))
    }

    async fn read(&self, range: Range<u64>) -> Result<Buffer> {
        let wanted = range.end - range.start;
        let bytes = self.store.get_range(&self.object.location, range).await?;
        if bytes.len() as u64 != wanted {
            return exec_err!(
                "{}: {} of {wanted} bytes could be read",
                self.object.location,
                bytes.len()
            );
        }
        Ok(Buffer::from(bytes))
    }

    fn damaged(&self, why: &str) -> DataFusionError {
        exec_datafusion_err!("{} is not a whole Arrow file: {why}", self.object.location)
    }
}

/// What follows the length of a message, before which newer files have four bytes of ones.
fn message(head: &[u8]) -> Option<&[u8]> {
    match head.strip_prefix(&super::messages::CONTINUATION) {
        Some(rest) => rest.get(4..),
        None => head.get(4..),
    }
}
