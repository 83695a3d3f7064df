//! Files as rows of a table.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, BinaryArray, BinaryBuilder, Int64Array, StringArray, TimestampMicrosecondArray,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use datafusion::common::{Result, exec_datafusion_err};
use futures::stream::{BoxStream, StreamExt};

use super::reader::Row;

/// Bytes of files in one batch, unless one file has more: a batch of a few photos stays in the caches of a
/// core, and 8 MiB took twice the memory and as much time.
const BATCH_BYTES: usize = 1024 * 1024;

pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let modified = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("url", DataType::Utf8, false),
        Field::new("size", DataType::Int64, false),
        Field::new("modified", modified, false),
        Field::new("bytes", DataType::Binary, true),
    ]))
});
/// Where the bytes are in the schema: the only column that is read and not known.
pub(super) const BYTES_COLUMN: usize = 3;

/// Rows → batches.
pub(super) struct Batches {
    pub(super) rows: BoxStream<'static, Result<Row>>,
    /// A row that did not fit into the batch before.
    pub(super) held: Option<Row>,
    pub(super) rows_max: usize,
    pub(super) projection: Vec<usize>,
    pub(super) schema: SchemaRef,
}

impl Batches {
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut rows: Vec<Row> = vec![];
        let mut size = 0;
        while rows.len() < self.rows_max && size < BATCH_BYTES {
            let row = match self.held.take() {
                Some(row) => row,
                None => {
                    // The next file may wait for what these hold: less than a batch.
                    rows.iter_mut().for_each(|row| row.permit = None);
                    match self.rows.next().await {
                        Some(row) => row?,
                        None => break,
                    }
                }
            };
            let bytes = row.bytes.as_ref().map_or(0, Bytes::len);
            if size > 0 && size + bytes > BATCH_BYTES {
                self.held = Some(row);
                break;
            }
            size += bytes;
            rows.push(row);
        }
        if rows.is_empty() { Ok(None) } else { self.batch(&rows).map(Some) }
    }

    fn batch(&self, rows: &[Row]) -> Result<RecordBatch> {
        batch(rows, &self.projection, &self.schema)
    }
}

pub(super) fn batch(rows: &[Row], projection: &[usize], schema: &SchemaRef) -> Result<RecordBatch> {
    let column = |at: &usize| -> Result<ArrayRef> {
        let files = rows.iter().map(|row| &row.file);
        Ok(match *at {
            0 => Arc::new(files.map(|file| Some(file.url())).collect::<StringArray>()),
            1 => Arc::new(
                files
                    .map(|file| i64::try_from(file.size))
                    .collect::<std::result::Result<Int64Array, _>>()
                    .map_err(|e| exec_datafusion_err!("the size of a file: {e}"))?,
            ),
            2 => Arc::new(
                TimestampMicrosecondArray::from_iter_values(files.map(|f| f.modified_us))
                    .with_timezone("UTC"),
            ),
            _ => {
                if let [Row { bytes: Some(bytes), .. }] = rows {
                    // Large, perhaps: not copied.
                    let offsets = OffsetBuffer::from_lengths([bytes.len()]);
                    let bytes = Buffer::from(bytes.clone());
                    return Ok(Arc::new(BinaryArray::try_new(offsets, bytes, None)?));
                }
                let size = rows.iter().filter_map(|row| row.bytes.as_ref()).map(Bytes::len).sum();
                // Growing would copy megabytes again and again.
                let mut bytes = BinaryBuilder::with_capacity(rows.len(), size);
                for row in rows {
                    bytes.append_option(row.bytes.as_ref());
                }
                Arc::new(bytes.finish())
            }
        })
    };
    let columns = projection.iter().map(column).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
