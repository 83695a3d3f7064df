//! Parquet files, of which a store gets parts as they lie in memory.
//!
//! DataFusion's sink has each row group in one buffer that grows by doubling, and copies it into the parts that the store
//! gets. Here it is encoded into these parts. (Of a sort of 12 GB, these copies were 4% of all CPU time, and buffers that
//! grow, of which this was one, 5%.)

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::Result;
use datafusion::common::config::TableParquetOptions;
use datafusion::datasource::file_format::write::get_writer_schema;
use datafusion::datasource::physical_plan::FileSinkConfig;
use datafusion::datasource::sink::DataSink;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_writer::ArrowWriterOptions;
use datafusion::parquet::file::metadata::SortingColumn;
use datafusion::parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::StreamExt;

use super::one_file;

/// Writes all rows to one file, by one thread, the same as DataFusion's sink without tasks for each column.
///
/// - memory: a row group as it is encoded, and parts that the store has not got yet, reserved; what it has got, not
/// - cancel, errors: no file; a store that takes parts may keep them
#[derive(Debug)]
pub(super) struct ParquetFileSink {
    config: FileSinkConfig,
    options: TableParquetOptions,
    sorted_by: Option<Vec<SortingColumn>>,
}

impl ParquetFileSink {
    /// A file with these options, which say nothing of encryption: that is not known here.
    pub(super) fn new(
        config: FileSinkConfig,
        options: TableParquetOptions,
        sorted_by: Option<Vec<SortingColumn>>,
    ) -> Self {
        Self { config, options, sorted_by }
    }

    /// Whether a file with these options is written here.
    pub(super) fn writes(options: &TableParquetOptions) -> bool {
        let crypto = &options.crypto;
        let is_encrypted = crypto.file_encryption.is_some() || crypto.factory_id.is_some();
        !is_encrypted && !options.global.allow_single_file_parallelism
    }

    fn properties(&self) -> Result<WriterProperties> {
        let mut options = self.options.clone();
        if !options.global.skip_arrow_metadata {
            options.arrow_schema(self.config.output_schema());
        }
        let properties = WriterPropertiesBuilder::try_from(&options)?;
        Ok(properties.set_sorting_columns(self.sorted_by.clone()).build())
    }
}

impl DisplayAs for ParquetFileSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ParquetFileSink")
    }
}

#[async_trait]
impl DataSink for ParquetFileSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(
        &self,
        mut rows: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> Result<u64> {
        let mut file = one_file::begin(&self.config, context)?;
        let options = ArrowWriterOptions::new()
            .with_properties(self.properties()?)
            .with_skip_arrow_metadata(self.options.global.skip_arrow_metadata);
        let schema = get_writer_schema(&self.config);
        let parts = FileParts::of(one_file::part_bytes(context));
        let mut written = ArrowWriter::try_new_with_options(parts, schema, options)?;
        let memory = MemoryConsumer::new("ParquetFileSink").register(context.memory_pool());
        while let Some(batch) = rows.next().await {
            written.write(&batch?)?;
            memory.try_resize(written.memory_size() + written.inner().bytes())?;
            for part in written.inner_mut().take_full() {
                file.put(part).await?;
            }
            memory.try_resize(written.memory_size() + written.inner().bytes())?;
        }
        let metadata = written.finish()?;
        for part in written.inner_mut().take_all() {
            file.put(part).await?;
        }
        one_file::end(file).await?;
        Ok(metadata.file_metadata().num_rows().unsigned_abs())
    }
}

/// Where parts that are larger begin in memory, behind the first one: at a large page, so that a file system that goes past
/// the page cache can write from there.
const ALIGNMENT: usize = 2 << 20;

/// What was written, in parts of one size. The first one takes no more memory than twice what is in it: many files are
/// small.
struct FileParts {
    size: usize,
    has_first: bool,
    full: Vec<Bytes>,
    open: Vec<u8>,
    /// Where the open part begins in its memory.
    start: usize,
}

impl FileParts {
    fn of(size: usize) -> Self {
        Self { size: size.max(1), has_first: false, full: vec![], open: vec![], start: 0 }
    }

    /// All that it holds.
    fn bytes(&self) -> usize {
        self.full.iter().map(Bytes::len).sum::<usize>() + self.open_bytes()
    }

    fn open_bytes(&self) -> usize {
        self.open.len() - self.start
    }

    fn take_full(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.full)
    }

    /// With what is left of the last one.
    fn take_all(&mut self) -> Vec<Bytes> {
        if self.open_bytes() > 0 {
            self.end_part();
        }
        self.take_full()
    }

    fn begin_part(&mut self) {
        if self.size < ALIGNMENT {
            self.open = Vec::with_capacity(self.size);
            return;
        }
        self.open = Vec::with_capacity(self.size + ALIGNMENT);
        self.start = self.open.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        self.open.resize(self.start, 0);
    }

    fn end_part(&mut self) {
        let part = Bytes::from(std::mem::take(&mut self.open));
        self.full.push(part.slice(std::mem::take(&mut self.start)..));
        self.has_first = true;
    }
}

impl Write for FileParts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_first && self.open_bytes() == 0 {
            self.begin_part();
        }
        let room = self.size - self.open_bytes();
        let fit = &bytes[..room.min(bytes.len())];
        self.open.extend_from_slice(fit);
        if fit.len() == room {
            self.end_part();
        }
        Ok(fit.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use datafusion::datasource::file_format::parquet::ParquetSink;
    use datafusion::datasource::listing::ListingTableUrl;
    use datafusion::datasource::object_store::ObjectStoreUrl;
    use datafusion::datasource::physical_plan::{FileGroup, FileOutputMode};
    use datafusion::logical_expr::dml::InsertOp;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use datafusion::prelude::{SessionConfig, SessionContext};
    use futures::stream;
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    const PART: usize = 100_000;

    fn batches(seed: i64, count: i64, rows: i64) -> Vec<RecordBatch> {
        let batch = |at: i64| {
            let ids = Int64Array::from_iter_values((0..rows).map(|row| row * 7919 + at * seed));
            let text = |id: &i64| (id % 11 != 0).then(|| format!("{id:x}").repeat(9));
            let texts: StringArray = ids.values().iter().map(text).collect();
            let columns = [("id", Arc::new(ids) as ArrayRef), ("text", Arc::new(texts))];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        (0..count).map(batch).collect()
    }

    /// What a sink, which is made of these options, writes into a file.
    async fn file(
        rows: &[RecordBatch],
        options: &TableParquetOptions,
        sink: impl FnOnce(FileSinkConfig, TableParquetOptions) -> Arc<dyn DataSink>,
    ) -> Result<(u64, Vec<u8>)> {
        let folder = TempDir::new()?;
        let path = folder.path().join("all.parquet");
        let schema = rows[0].schema();
        let config = FileSinkConfig {
            original_url: path.display().to_string(),
            object_store_url: ObjectStoreUrl::local_filesystem(),
            file_group: FileGroup::default(),
            table_paths: vec![ListingTableUrl::parse(path.display().to_string())?],
            output_schema: Arc::clone(&schema),
            table_partition_cols: vec![],
            insert_op: InsertOp::Append,
            keep_partition_by_columns: false,
            file_extension: "parquet".to_owned(),
            file_output_mode: FileOutputMode::SingleFile,
        };
        let mut session = SessionConfig::new();
        session.options_mut().execution.objectstore_writer_buffer_size = PART;
        let session = SessionContext::new_with_config(session);
        let rows = stream::iter(Vec::from(rows).into_iter().map(Ok));
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
        let count = sink(config, options.clone()).write_all(rows, &session.task_ctx()).await?;
        Ok((count, std::fs::read(path)?))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn files_are_those_of_datafusions_sink(
            seed in any::<i32>(),
            count in 0_i64..12,
            rows in 0_i64..3000,
            group in prop_oneof![Just(None), (1_usize..300_000).prop_map(Some)],
            compression in prop_oneof![Just("uncompressed"), Just("zstd(1)")],
            skips_schema in any::<bool>(),
        ) {
            let mut options = TableParquetOptions::default();
            options.global.allow_single_file_parallelism = false;
            options.global.compression = Some(compression.to_owned());
            options.global.dictionary_enabled = Some(seed % 2 == 0);
            options.global.skip_arrow_metadata = skips_schema;
            options.global.max_row_group_bytes = group
                .and_then(|bytes| datafusion::common::config::MaxRowGroupBytes::try_new(bytes).ok());
            let metadata = ("origin".to_owned(), Some("a test".to_owned()));
            options.key_value_metadata.extend((seed % 3 == 0).then_some(metadata));
            let sorted_by = Some(vec![SortingColumn { column_idx: 0, descending: false, nulls_first: true }]);
            let batches = batches(seed.into(), count + 1, rows);
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            let (own, theirs) = runtime.block_on(async {
                let own = file(&batches, &options, |config, options| {
                    assert!(ParquetFileSink::writes(&options));
                    Arc::new(ParquetFileSink::new(config, options, sorted_by.clone()))
                });
                let theirs = file(&batches, &options, |config, options| {
                    let sink = ParquetSink::new(config, options);
                    Arc::new(sink.with_sorting_columns(sorted_by.clone()))
                });
                (own.await.unwrap(), theirs.await.unwrap())
            });
            prop_assert_eq!(own.0, ((count + 1) * rows) as u64);
            prop_assert_eq!(own.0, theirs.0);
            prop_assert!(own.1 == theirs.1, "{} and {} bytes", own.1.len(), theirs.1.len());
        }

        #[test]
        fn parts_have_one_size_and_all_bytes(pieces in prop::collection::vec(0_usize..300, 0..40), size in 1_usize..500) {
            let mut parts = FileParts::of(size);
            let (mut expected, mut found, mut number) = (vec![], vec![], 0_u8);
            for piece in pieces {
                let bytes: Vec<u8> = (0..piece).map(|_| { number = number.wrapping_add(1); number }).collect();
                parts.write_all(&bytes).unwrap();
                expected.extend(bytes);
                let open = expected.len() % size;
                prop_assert_eq!(parts.open_bytes(), open);
                if number.is_multiple_of(2) {
                    found.extend(parts.take_full());
                }
            }
            let last = parts.take_all();
            found.extend(last);
            for (at, part) in found.iter().enumerate() {
                prop_assert_eq!(part.len(), size.min(expected.len() - at * size));
            }
            prop_assert_eq!(found.concat(), expected);
        }
    }
    #[test]
    fn large_parts_begin_at_a_large_page() {
        let mut parts = FileParts::of(5 << 20);
        parts.write_all(&vec![7; 18 << 20]).unwrap();
        let parts = parts.take_all();
        assert_eq!(
            parts.iter().map(Bytes::len).collect::<Vec<_>>(),
            [5 << 20, 5 << 20, 5 << 20, 3 << 20]
        );
        assert!(parts[1..].iter().all(|part| part.as_ptr().addr().is_multiple_of(ALIGNMENT)));
    }
}
