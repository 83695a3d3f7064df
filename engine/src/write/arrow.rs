//! Arrow IPC files. DataFusion has a sink for them that nobody else can name, ask or send.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::datasource::file_format::write::get_writer_schema;
use datafusion::datasource::physical_plan::FileSinkConfig;
use datafusion::datasource::sink::DataSink;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use futures::StreamExt;

use super::one_file;

/// Writes all rows to one Arrow IPC file, the buffers compressed with LZ4, as DataFusion's own does.
///
/// - memory: a batch as it is in the file, and what the store's writer holds
/// - cancel, errors: no file
#[derive(Debug)]
pub struct ArrowSink {
    config: FileSinkConfig,
}

impl ArrowSink {
    /// What `config` says, but for columns that name folders: those are for whoever calls this.
    pub fn new(config: FileSinkConfig) -> Self {
        Self { config }
    }

    pub(super) fn config(&self) -> &FileSinkConfig {
        &self.config
    }
}

impl DisplayAs for ArrowSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArrowSink")
    }
}

#[async_trait]
impl DataSink for ArrowSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(
        &self,
        mut rows: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> Result<u64> {
        let mut file = one_file::begin(&self.config, context)?;
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME))?;
        let schema = get_writer_schema(&self.config);
        let mut written = FileWriter::try_new_with_options(Vec::new(), &schema, options)?;
        let mut count = 0;
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            count += batch.num_rows() as u64;
            written.write(&batch)?;
            file.put(std::mem::take(written.get_mut()).into()).await?;
        }
        written.finish()?;
        file.put(std::mem::take(written.get_mut()).into()).await?;
        one_file::end(file).await?;
        Ok(count)
    }
}
