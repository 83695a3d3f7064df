//! Rows in a file, where queries spill theirs: Arrow's stream format, its buffers compressed with LZ4.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::CompressionType;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, SpillFile, SpillWriter};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use forebay_engine::weight;
use futures::TryStreamExt;
use futures::stream::{self, BoxStream};

/// Rows in a file, which is gone when nobody has these any more, nor reads them.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) schema: SchemaRef,
    file: Arc<dyn SpillFile>,
}

impl Kept {
    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.file.size().unwrap_or(0)
    }

    /// The rows, in the order in which they were written.
    pub(super) fn read(&self) -> Result<SendableRecordBatchStream> {
        let reader = Reader {
            parts: self.file.read_stream()?,
            part: Buffer::from(&[]),
            decoder: StreamDecoder::new(),
            _kept: self.clone(),
        };
        let rows = stream::try_unfold(reader, |mut reader| async move {
            let batch = reader.next().await?;
            Ok::<_, DataFusionError>(batch.map(|batch| (batch, reader)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)))
    }
}

/// A file that is read.
struct Reader {
    parts: BoxStream<'static, Result<Bytes>>,
    /// Of the file, what is read and not decoded.
    part: Buffer,
    decoder: StreamDecoder,
    _kept: Kept,
}

impl Reader {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.decoder.decode(&mut self.part)? {
                return Ok(Some(batch));
            }
            match self.parts.try_next().await? {
                Some(bytes) => self.part = Buffer::from(bytes),
                None => break,
            }
        }
        self.decoder.finish()?;
        Ok(None)
    }
}

/// Writes rows that are kept.
pub(in crate::flight) struct Keeper {
    kept: Kept,
    writer: StreamWriter<Box<dyn SpillWriter>>,
}

impl Keeper {
    /// Begins a file where this session's queries spill theirs.
    ///
    /// # Errors
    /// Those of the file system.
    pub(in crate::flight) fn create(
        runtime: &RuntimeEnv,
        schema: SchemaRef,
        job: &str,
    ) -> Result<Self> {
        let file = runtime.disk_manager.create_tmp_file(&format!("the result of job {job}"))?;
        let compressed = Some(CompressionType::LZ4_FRAME);
        let options = IpcWriteOptions::default().try_with_compression(compressed)?;
        let writer = StreamWriter::try_new_with_options(file.open_writer()?, &schema, options)?;
        Ok(Self { kept: Kept { schema, file }, writer })
    }

    /// The rows, which are whole once [`Self::finish`] was called.
    pub(super) fn kept(&self) -> Kept {
        self.kept.clone()
    }

    /// Adds rows.
    ///
    /// # Errors
    /// Those of the file system, and types that files of Arrow do not have.
    pub(in crate::flight) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(&weight::compact(batch)?)?)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Those of the file system.
    pub(in crate::flight) fn finish(mut self) -> Result<()> {
        self.writer.finish()?;
        self.writer.into_inner()?.finish()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringViewArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    #[tokio::test]
    async fn rows_come_back_as_they_were_and_their_file_goes_with_them() {
        let runtime = RuntimeEnv::default();
        let text = |row: i64| if row % 7 == 0 { None } else { Some("x".repeat(row as usize % 40)) };
        let batch = |first: i64| {
            let rows = first..first + 5_000;
            let numbers: ArrayRef = Arc::new(rows.clone().map(Some).collect::<Int64Array>());
            let texts: ArrayRef = Arc::new(rows.map(text).collect::<StringViewArray>());
            let kinds = ["a", "b", if first == 0 { "c" } else { "d" }].into_iter().cycle();
            let kinds: ArrayRef =
                Arc::new(kinds.take(5_000).collect::<DictionaryArray<Int32Type>>());
            let columns = [("n", numbers, true), ("text", texts, true), ("kind", kinds, true)];
            RecordBatch::try_from_iter_with_nullable(columns).unwrap()
        };
        let batches = [batch(0), batch(5_000), batch(9_000).slice(10, 20)];
        let mut keeper = Keeper::create(&runtime, batches[0].schema(), "0A").unwrap();
        let kept = keeper.kept();
        batches.iter().for_each(|batch| keeper.write(batch).unwrap());
        keeper.finish().unwrap();
        for _ in 0..2 {
            let rows: Vec<_> = kept.read().unwrap().try_collect().await.unwrap();
            assert_eq!(rows, batches);
        }
        let path = kept.file.path().unwrap().to_owned();
        assert_eq!(kept.bytes(), path.metadata().unwrap().len());
        let mut reader = kept.read().unwrap();
        drop(kept);
        assert_eq!(reader.try_next().await.unwrap().unwrap().num_rows(), 5_000);
        drop(reader);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn no_rows_are_kept_too() {
        let runtime = RuntimeEnv::default();
        let columns: [(&str, ArrayRef); 1] = [("n", Arc::new(Int64Array::from(vec![1])))];
        let schema = RecordBatch::try_from_iter(columns).unwrap().schema();
        let keeper = Keeper::create(&runtime, Arc::clone(&schema), "0A").unwrap();
        let kept = keeper.kept();
        keeper.finish().unwrap();
        let rows = kept.read().unwrap();
        assert_eq!(rows.schema(), schema);
        assert!(rows.try_collect::<Vec<_>>().await.unwrap().is_empty());
    }
}
