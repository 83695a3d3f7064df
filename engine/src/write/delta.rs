//! What a write to a Delta table is: files that lie among others of the table's, and count when its log names
//! them.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::{Result, internal_err};
use datafusion::datasource::physical_plan::FileSinkConfig;
use datafusion::datasource::sink::DataSink;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType};
use prost::Message;

/// What a write to a Delta table is beside its files.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeltaWrite {
    /// The version of the table for which it was planned.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Whether the files of that version no longer count then.
    #[prost(bool, tag = "2")]
    pub overwrites: bool,
}

/// The id of what a session writes, as an extension of its configuration. What is run again under the same id
/// has been committed to a table by the first of both that comes to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteId(pub String);

/// What `INSERT` into a Delta table is planned as; a rule puts operators in its place that know how it is done.
#[derive(Debug)]
pub struct DeltaSink {
    config: FileSinkConfig,
    options: TableParquetOptions,
    write: DeltaWrite,
}

impl DeltaSink {
    /// Writes what `config` says, in files with these options.
    pub fn new(config: FileSinkConfig, options: TableParquetOptions, write: DeltaWrite) -> Self {
        Self { config, options, write }
    }

    pub(super) fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    pub(super) fn options(&self) -> &TableParquetOptions {
        &self.options
    }

    pub(super) fn write(&self) -> &DeltaWrite {
        &self.write
    }
}

impl DisplayAs for DeltaSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeltaSink")
    }
}

#[async_trait]
impl DataSink for DeltaSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(&self, _: SendableRecordBatchStream, _: &Arc<TaskContext>) -> Result<u64> {
        internal_err!(
            "a write to a Delta table has been planned by a session without Forebay's rules"
        )
    }
}
