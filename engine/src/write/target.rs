//! What a statement writes, and where.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::datasource::file_format::write::get_writer_schema;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileOutputMode, FileSinkConfig};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::LexOrdering;
use object_store::path::Path;
use url::Url;

use super::delta::{DeltaSink, DeltaWrite};
use super::format::Format;
use super::partitions::Partitions;
use super::views::without_views;

/// A folder or a file to be written.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) format: Format,
    /// As DataFusion planned it, without the files that are there already.
    pub(super) config: FileSinkConfig,
    /// In which rows come.
    pub(super) order: Option<LexOrdering>,
    /// A file with so many bytes of rows is full.
    pub(super) file_bytes: u64,
    /// Whether it is to be written anew; if not, files are added to what is there.
    pub(super) is_new: bool,
    /// What else there is to a write to a Delta table.
    pub(super) delta: Option<DeltaWrite>,
}

impl Target {
    /// What a sink writes, in files of about `file_bytes`. None of what are no files, and of files that
    /// are to take the place of others.
    pub fn of(sink: &DataSinkExec, file_bytes: u64) -> Option<Self> {
        let (format, config) = Format::of(sink.sink())?;
        if config.insert_op != InsertOp::Append || config.table_paths.is_empty() {
            return None;
        }
        let order = sink.sort_order().clone().map(LexOrdering::from);
        let delta = sink.sink().downcast_ref::<DeltaSink>().map(|sink| sink.write().clone());
        Some(Self { delta, ..Self::new(format, config, order, file_bytes) })
    }

    /// The same for what is known apart.
    fn new(
        format: Format,
        config: &FileSinkConfig,
        order: Option<LexOrdering>,
        file_bytes: u64,
    ) -> Self {
        // An INSERT has no text of its own that names the place.
        let is_new = !config.original_url.is_empty();
        let config = FileSinkConfig { file_group: Vec::new().into(), ..config.clone() };
        Self { format, config, order, file_bytes, is_new, delta: None }
    }

    /// The same, for files that are written [beside others](Format::beside_others).
    pub(super) fn beside_others(&self) -> Self {
        Self { format: self.format.beside_others(), ..self.clone() }
    }

    /// What the rows of parts are staged as, beside what is written: Arrow IPC files, which have all types.
    #[must_use]
    pub fn staged(&self, schema: SchemaRef) -> Self {
        let config = FileSinkConfig {
            original_url: String::new(),
            output_schema: schema,
            table_partition_cols: vec![],
            file_extension: Format::Arrow.name().to_lowercase(),
            file_output_mode: FileOutputMode::Directory,
            ..self.config.clone()
        };
        Self::new(Format::Arrow, &config, None, self.file_bytes)
    }

    /// Whether it is one file.
    pub fn is_file(&self) -> bool {
        let is_file = self.config.file_output_mode.single_file_output(self.url());
        is_file && self.config.table_partition_cols.is_empty()
    }

    /// In a few words.
    pub(super) fn kind(&self) -> &'static str {
        let delta = self.delta.as_ref().map(|write| write.overwrites);
        match (self.is_file(), self.is_new, delta) {
            (_, _, Some(true)) => "Delta table, overwritten",
            (_, _, Some(false)) => "Delta table",
            (true, _, None) => "file",
            (false, true, None) => "new folder",
            (false, false, None) => "folder",
        }
    }

    /// What is written, in words that differ if it does: to have parts of it written by one plan and parts by
    /// another, both must be the same here.
    pub fn identity(&self) -> String {
        let overwritten = self.delta.as_ref().filter(|write| write.overwrites);
        let version = overwritten.map(|write| format!(", version {}", write.version));
        let columns = self.schema().fields().iter();
        let columns: Vec<String> =
            columns.map(|field| format!("{} {}", field.name(), field.data_type())).collect();
        format!(
            "{} in '{}' as {}, partitioned by {:?}, of {}{}",
            self.kind(),
            self.url(),
            self.format.name(),
            self.config.table_partition_cols,
            columns.join(", "),
            version.unwrap_or_default()
        )
    }

    /// How its files are written: the options of its format, by their names.
    pub fn options(&self) -> BTreeMap<String, String> {
        self.format.options()
    }

    /// In which rows must come, if they must.
    pub fn order(&self) -> Option<&LexOrdering> {
        self.order.as_ref()
    }

    /// Whether a folder or a file is written that is not a table.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Bytes of rows in a file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The columns of the rows.
    pub(super) fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    /// The columns of the files: without those by which folders are named, as the format stores them.
    pub(super) fn file_schema(&self) -> SchemaRef {
        let columns = get_writer_schema(&self.config);
        match self.format {
            Format::Parquet(_) => without_views(&columns),
            Format::Csv(_) | Format::Json(_) | Format::Arrow => columns,
        }
    }

    /// The columns by which folders are named, of those of the rows.
    pub fn folder_columns(&self) -> Vec<usize> {
        let names = self.config.table_partition_cols.iter();
        names.filter_map(|(name, _)| self.schema().index_of(name).ok()).collect()
    }

    /// How rows are dealt out to folders.
    pub(super) fn partitions(&self) -> Result<Option<Partitions>> {
        let names = self.config.table_partition_cols.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names.collect();
        if names.is_empty() {
            return Ok(None);
        }
        let keeps = self.config.keep_partition_by_columns;
        let partitions = Partitions::try_new(&names, self.schema(), keeps)?;
        Ok(Some(partitions.with_nulls(self.delta.is_some())))
    }

    /// Its store.
    pub fn store(&self) -> &ObjectStoreUrl {
        &self.config.object_store_url
    }

    /// Whether it is in a file system, which has folders.
    pub(super) fn is_local(&self) -> bool {
        is_local(self.store())
    }

    pub(super) fn place(&self) -> &Path {
        self.url().prefix()
    }

    pub(super) fn extension(&self) -> &str {
        &self.config.file_extension
    }

    /// As whoever wrote the statement knows it.
    pub fn name(&self) -> &str {
        match self.config.original_url.as_str() {
            "" => self.url().as_str(),
            name => name,
        }
    }

    pub(super) fn url(&self) -> &ListingTableUrl {
        &self.config.table_paths[0]
    }

    /// A sink for one file.
    pub(super) fn sink_to(&self, path: &Path) -> Result<Arc<dyn DataSink>> {
        let config = FileSinkConfig {
            table_paths: vec![url_of(self.store(), path)?],
            output_schema: self.file_schema(),
            table_partition_cols: vec![],
            file_output_mode: FileOutputMode::SingleFile,
            ..self.config.clone()
        };
        Ok(self.format.file_sink(config, self.order.as_ref()))
    }
}

pub(super) fn is_local(store: &ObjectStoreUrl) -> bool {
    store.as_str().starts_with("file:")
}

/// The URL of which DataFusion will take this very path.
pub(super) fn url_of(store: &ObjectStoreUrl, path: &Path) -> Result<ListingTableUrl> {
    let mut url = Url::parse(store.as_str())
        .map_err(|error| exec_datafusion_err!("'{}' is no URL: {error}", store.as_str()))?;
    // Decoded once when it is read; what a path has of it is meant as it is.
    url.set_path(&path.as_ref().replace('%', "%25"));
    let found = ListingTableUrl::try_new(url, None)?;
    match found.prefix() == path {
        true => Ok(found),
        false => Err(exec_datafusion_err!("'{path}' cannot be written: no URL names it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_the_paths_that_they_are_made_of() {
        let store = ObjectStoreUrl::local_filesystem();
        for text in ["a/b", "a b/c", "50%25/x=a%2Fb", "ä/ö", "a+b/c=d", "x?y/z#w", "a\\b"] {
            let path = Path::from(text);
            assert_eq!(*url_of(&store, &path).unwrap().prefix(), path, "{text}");
        }
    }
}
