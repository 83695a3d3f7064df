//! DataFusion's sinks for files, by what they write.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::TableParquetOptions;
use datafusion::common::file_options::csv_writer::CsvWriterOptions;
use datafusion::common::file_options::json_writer::JsonWriterOptions;
use datafusion::datasource::file_format::csv::CsvSink;
use datafusion::datasource::file_format::json::JsonSink;
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::DataSink;
use datafusion::parquet::file::metadata::SortingColumn;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr::expressions::Column;

use super::arrow::ArrowSink;
use super::delta::DeltaSink;

/// A format, and how it is written.
#[derive(Clone, Debug)]
pub enum Format {
    /// Parquet.
    Parquet(Box<TableParquetOptions>),
    /// Lines of values.
    Csv(Box<CsvWriterOptions>),
    /// Lines of objects.
    Json(Box<JsonWriterOptions>),
    /// Arrow IPC.
    Arrow,
}

impl Format {
    /// The format of a sink, and what else it knows. Nothing of sinks that write no files, or files of
    /// which DataFusion tells nobody how it writes them.
    pub(super) fn of(sink: &dyn DataSink) -> Option<(Self, &FileSinkConfig)> {
        if let Some(sink) = sink.downcast_ref::<ParquetSink>() {
            let options = Box::new(sink.parquet_options().clone());
            return Some((Self::Parquet(options), sink.config()));
        }
        if let Some(sink) = sink.downcast_ref::<CsvSink>() {
            return Some((Self::Csv(Box::new(sink.writer_options().clone())), sink.config()));
        }
        if let Some(sink) = sink.downcast_ref::<DeltaSink>() {
            return Some((Self::Parquet(Box::new(sink.options().clone())), sink.config()));
        }
        if let Some(sink) = sink.downcast_ref::<ArrowSink>() {
            return Some((Self::Arrow, sink.config()));
        }
        let sink = sink.downcast_ref::<JsonSink>()?;
        Some((Self::Json(Box::new(sink.writer_options().clone())), sink.config()))
    }

    /// A sink for what `config` says; `order` is noted in formats that have room for it.
    pub(super) fn sink(
        &self,
        config: FileSinkConfig,
        order: Option<&LexOrdering>,
    ) -> Arc<dyn DataSink> {
        match self {
            Self::Parquet(options) => {
                let sorted_by =
                    order.and_then(|order| sorting_columns(order, &config.output_schema));
                let sink = ParquetSink::new(config, options.as_ref().clone());
                Arc::new(sink.with_sorting_columns(sorted_by))
            }
            Self::Csv(options) => Arc::new(CsvSink::new(config, options.as_ref().clone())),
            Self::Json(options) => Arc::new(JsonSink::new(config, options.as_ref().clone())),
            Self::Arrow => Arc::new(ArrowSink::new(config)),
        }
    }

    /// As people call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Parquet(_) => "Parquet",
            Self::Csv(_) => "CSV",
            Self::Json(_) => "JSON",
            Self::Arrow => "Arrow",
        }
    }
}

/// The keys of an order that are columns of the file, as DataFusion notes them. None if it is by more
/// than columns.
fn sorting_columns(order: &LexOrdering, schema: &Schema) -> Option<Vec<SortingColumn>> {
    let mut found = vec![];
    for key in order {
        let column = key.expr.downcast_ref::<Column>()?;
        // A partition column is in no file.
        let Some((at, _)) = schema.column_with_name(column.name()) else { continue };
        found.push(SortingColumn {
            column_idx: i32::try_from(at).ok()?,
            descending: key.options.descending,
            nulls_first: key.options.nulls_first,
        });
    }
    (!found.is_empty()).then_some(found)
}
