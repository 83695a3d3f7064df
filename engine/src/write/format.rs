//! DataFusion's sinks for files, by what they write.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::{MaxRowGroupBytes, TableParquetOptions};
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
use super::parquet::ParquetFileSink;

/// Options of Parquet that are for reading, or say how fast it is written: files are the same with others.
const NOT_OF_FILES: [&str; 17] = [
    "allow_single_file_parallelism",
    "binary_as_string",
    "bloom_filter_on_read",
    "coerce_int96",
    "coerce_int96_tz",
    "enable_page_index",
    "force_filter_selections",
    "max_in_list_size",
    "max_predicate_cache_size",
    "maximum_buffered_record_batches_per_stream",
    "maximum_parallel_row_group_writers",
    "metadata_size_hint",
    "pruning",
    "pushdown_filters",
    "reorder_filters",
    "schema_force_view_types",
    "skip_metadata",
];

/// Of rows as they are encoded; a first batch that is larger is one row group.
const ROW_GROUP_BYTES: usize = 32 << 20;

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

    /// The same for files that are written while others are, which have all cores busy: without tasks for each column,
    /// and if nothing else was asked for with row groups of [so many bytes](ROW_GROUP_BYTES) at most, as a row group is
    /// in memory while it is written.
    pub(super) fn beside_others(&self) -> Self {
        let mut format = self.clone();
        if let Self::Parquet(options) = &mut format {
            let options = &mut options.global;
            options.allow_single_file_parallelism = false;
            if options.max_row_group_bytes.is_none() {
                options.max_row_group_bytes = MaxRowGroupBytes::try_new(ROW_GROUP_BYTES).ok();
            }
        }
        format
    }

    /// A sink for one file, which `config` names; `order` is noted in formats that have room for it.
    pub(super) fn file_sink(
        &self,
        config: FileSinkConfig,
        order: Option<&LexOrdering>,
    ) -> Arc<dyn DataSink> {
        if let Self::Parquet(options) = self {
            let options = of_row_groups(options);
            if ParquetFileSink::writes(&options) {
                let sorted_by =
                    order.and_then(|order| sorting_columns(order, &config.output_schema));
                return Arc::new(ParquetFileSink::new(config, options, sorted_by));
            }
        }
        self.sink(config, order)
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
                let sink = ParquetSink::new(config, of_row_groups(options));
                Arc::new(sink.with_sorting_columns(sorted_by))
            }
            Self::Csv(options) => Arc::new(CsvSink::new(config, options.as_ref().clone())),
            Self::Json(options) => Arc::new(JsonSink::new(config, options.as_ref().clone())),
            Self::Arrow => Arc::new(ArrowSink::new(config)),
        }
    }

    /// What differs if files of the same rows do. Keys of encryption are nobody's to know, and left out.
    pub(super) fn options(&self) -> BTreeMap<String, String> {
        let compression = |name: &dyn std::fmt::Debug, level: Option<u32>| {
            [("compression", format!("{name:?}")), ("compression_level", format!("{level:?}"))]
        };
        let named = |all: &[(&str, String)]| {
            all.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
        };
        match self {
            Self::Parquet(options) => {
                let of_files =
                    |key: &str| !NOT_OF_FILES.contains(&key) && !key.starts_with("crypto");
                let entries = options.entries().into_iter();
                let entries = entries.map(|entry| (entry.key, entry.value.unwrap_or_default()));
                let metadata = options.key_value_metadata.iter();
                let metadata = metadata.map(|(key, value)| {
                    (format!("metadata::{key}"), value.clone().unwrap_or_default())
                });
                entries.filter(|(key, _)| of_files(key)).chain(metadata).collect()
            }
            Self::Csv(options) => {
                let [name, level] = compression(&options.compression, options.compression_level);
                named(&[("writer", format!("{:?}", options.writer_options)), name, level])
            }
            Self::Json(options) => {
                named(&compression(&options.compression, options.compression_level))
            }
            Self::Arrow => BTreeMap::new(),
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

/// With row groups of as many bytes as is asked for: with tasks for each column DataFusion counts rows only.
fn of_row_groups(options: &TableParquetOptions) -> TableParquetOptions {
    let mut options = options.clone();
    let global = &mut options.global;
    global.allow_single_file_parallelism &= global.max_row_group_bytes.is_none();
    options
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

#[cfg(test)]
mod tests {
    use datafusion::common::config::CsvOptions;

    use super::*;

    #[test]
    fn options_differ_if_files_do_and_have_one_order() {
        let parquet = |change: fn(&mut TableParquetOptions)| {
            let mut options = TableParquetOptions::default();
            let names = ["a", "b", "c", "d"];
            options.key_value_metadata =
                names.map(|name| (name.to_owned(), Some("x".to_owned()))).into();
            change(&mut options);
            format!("{:?}", Format::Parquet(Box::new(options)).options())
        };
        let same = parquet(|_| ());
        for _ in 0..20 {
            assert_eq!(parquet(|_| ()), same);
        }
        assert_eq!(parquet(|options| options.global.pushdown_filters = true), same);
        assert_ne!(parquet(|options| options.global.compression = Some("snappy".to_owned())), same);
        assert_ne!(parquet(|options| options.key_value_metadata.clear()), same);
        let csv_with = |delimiter| {
            let options = CsvOptions { delimiter, ..CsvOptions::default() };
            let options = CsvWriterOptions::try_from(&options).unwrap();
            Format::Csv(Box::new(options)).options()
        };
        assert_eq!(csv_with(b';'), csv_with(b';'));
        assert_ne!(csv_with(b';'), csv_with(b','));
    }
}
