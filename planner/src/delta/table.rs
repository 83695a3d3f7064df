//! A table of Delta Lake in a session.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::TableParquetOptions;
use datafusion::common::{Result, SchemaExt, Statistics, not_impl_err, plan_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{
    FileGroup, FileOutputMode, FileScanConfigBuilder, FileSinkConfig,
};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use forebay_engine::delta::{Log, Snapshot, TableFile};
use forebay_engine::write::{DeltaSink, DeltaWrite};
use parking_lot::Mutex;

use super::prune::{is_of_folders, pruned};

/// Statements that are remembered, of which only those being planned matter: one that writes is forgotten then, one that
/// only reads when so many others have come after it.
const STATEMENTS_MAX: usize = 16_384;

/// The versions that statements have read, of all tables: a folder may have several names, and
/// more than one session.
static READING: Mutex<BTreeMap<Reading, u64>> = Mutex::new(BTreeMap::new());

/// A statement that reads the table in a folder, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reading {
    /// When the statement began, in nanoseconds since 1970.
    began: i64,
    session: String,
    folder: Arc<str>,
}

/// A table: each statement reads the version that is the newest when it is planned.
#[derive(Debug)]
pub(super) struct DeltaTable {
    folder: ListingTableUrl,
    schema: SchemaRef,
    partitioned_by: Vec<String>,
    /// The folder's one name, whichever ways lead to it.
    identity: Arc<str>,
}

impl DeltaTable {
    /// The table in this folder, with the columns of a version.
    pub(super) fn new(folder: ListingTableUrl, snapshot: &Snapshot) -> Self {
        Self {
            schema: Arc::clone(snapshot.schema()),
            partitioned_by: snapshot.partitioned_by(),
            identity: identity(&folder),
            folder,
        }
    }

    fn reading(&self, session: &dyn Session) -> Option<Reading> {
        let began = session.execution_props().query_execution_start_time?.timestamp_nanos_opt()?;
        let session = session.session_id().to_owned();
        Some(Reading { began, session, folder: Arc::clone(&self.identity) })
    }

    /// The table at a version, or else as it is now.
    ///
    /// # Errors
    /// If it has other columns by now.
    async fn snapshot(&self, session: &dyn Session, version: Option<u64>) -> Result<Snapshot> {
        let log = Log::new(session.runtime_env(), &self.folder)?;
        let snapshot = log.snapshot(version).await?;
        let is_same =
            snapshot.schema() == &self.schema && snapshot.partitioned_by() == self.partitioned_by;
        if !is_same {
            return plan_err!(
                "the columns of the Delta table '{}' have been changed since CREATE EXTERNAL TABLE; DROP TABLE, \
                 which leaves its files alone, and create it again",
                self.folder
            );
        }
        Ok(snapshot)
    }

    /// What a write must not take away unread, if the same statement overwrites what it reads.
    fn note_read(&self, session: &dyn Session, version: u64) {
        let Some(reading) = self.reading(session) else { return };
        let mut all = READING.lock();
        // The first of several scans has seen the least.
        all.entry(reading).or_insert(version);
        if all.len() > STATEMENTS_MAX {
            all.pop_first();
        }
    }

    fn version_read(&self, session: &dyn Session) -> Option<u64> {
        READING.lock().remove(&self.reading(session)?)
    }

    async fn scan_of(
        &self,
        session: &dyn Session,
        snapshot: &Snapshot,
        projection: Option<&Vec<usize>>,
        files: Vec<TableFile>,
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (of_files, partitions) = snapshot.split_schema();
        let schema = TableSchema::builder(of_files).with_table_partition_cols(partitions).build();
        let all = Arc::clone(schema.table_schema());
        let projection = self.projected(projection, &all)?;
        if files.is_empty() {
            return Ok(Arc::new(EmptyExec::new(Arc::new(all.project(&projection)?))));
        }
        let files: Vec<_> = files.into_iter().map(TableFile::into_partitioned).collect();
        let known = files.iter().filter_map(|file| file.statistics.as_deref());
        let statistics = Statistics::try_merge_iter(known, &all)?;
        let groups = FileGroup::new(files).split_files(session.config().target_partitions());
        let format = ParquetFormat::new().with_options(options(session, true));
        let config =
            FileScanConfigBuilder::new(self.folder.object_store(), format.file_source(schema))
                .with_file_groups(groups)
                .with_statistics(statistics)
                .with_projection_indices(Some(projection))?
                .with_limit(limit)
                .build();
        format.create_physical_plan(session, config).await
    }

    /// The columns that are asked for, by their places in a scan: partition columns are the last there.
    fn projected(&self, projection: Option<&Vec<usize>>, scan: &Schema) -> Result<Vec<usize>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let places = projection.unwrap_or(&all).iter();
        places.map(|at| Ok(scan.index_of(self.schema.field(*at).name())?)).collect()
    }
}

/// A name of this folder that all tables in it have.
fn identity(folder: &ListingTableUrl) -> Arc<str> {
    let path = folder.get_url().to_file_path().ok().filter(|_| folder.get_url().scheme() == "file");
    let real = path.and_then(|path| std::fs::canonicalize(path).ok());
    real.map_or_else(|| folder.as_str().into(), |real| real.to_string_lossy().into())
}

/// How files are read and written: as the session says.
fn options(session: &dyn Session, reads: bool) -> TableParquetOptions {
    let mut global = session.config_options().execution.parquet.clone();
    if reads && global.coerce_int96.is_none() {
        // Nanoseconds, as which they are read otherwise, end in the year 2262.
        global.coerce_int96 = Some("us".to_owned());
    }
    TableParquetOptions { global, ..TableParquetOptions::default() }
}

#[async_trait]
impl TableProvider for DeltaTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let pushdown = |filter: &&Expr| match is_of_folders(filter, &self.partitioned_by) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(pushdown).collect())
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let snapshot = self.snapshot(session, None).await?;
        self.note_read(session, snapshot.version());
        let (of_files, partitions) = snapshot.split_schema();
        let all = of_files.fields().iter().chain(&partitions).cloned().collect::<Vec<_>>();
        let files = snapshot.files(self.folder.prefix()).await?;
        let files = pruned(files, filters, &Arc::new(Schema::new(all)), &partitions, session)?;
        self.scan_of(session, &snapshot, projection, files, limit).await
    }

    async fn insert_into(
        &self,
        session: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        operation: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.schema.logically_equivalent_names_and_types(&input.schema())?;
        let overwrites = match operation {
            InsertOp::Append => false,
            InsertOp::Overwrite => true,
            InsertOp::Replace => {
                return not_impl_err!("REPLACE INTO a Delta table; use INSERT OVERWRITE");
            }
        };
        let snapshot = self.snapshot(session, self.version_read(session)).await?;
        snapshot.check_writable()?;
        let partition = |name: &String| -> Result<(String, DataType)> {
            Ok((name.clone(), self.schema.field_with_name(name)?.data_type().clone()))
        };
        let config = FileSinkConfig {
            original_url: String::new(),
            object_store_url: self.folder.object_store(),
            table_paths: vec![self.folder.clone()],
            file_group: FileGroup::default(),
            output_schema: Arc::clone(&self.schema),
            table_partition_cols: self
                .partitioned_by
                .iter()
                .map(partition)
                .collect::<Result<_>>()?,
            // What is no longer to count is the commit's.
            insert_op: InsertOp::Append,
            keep_partition_by_columns: false,
            file_extension: "parquet".to_owned(),
            file_output_mode: FileOutputMode::Directory,
        };
        let write = DeltaWrite { version: snapshot.version(), overwrites };
        let sink = DeltaSink::new(config, options(session, false), write);
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;
    use datafusion::execution::SessionState;
    use datafusion::execution::runtime_env::RuntimeEnv;
    use datafusion::prelude::SessionContext;
    use tempfile::TempDir;

    use super::*;

    /// A statement that is being planned.
    fn statement() -> SessionState {
        let mut state = SessionContext::new().state();
        let options = Arc::clone(state.config_options());
        state.execution_props_mut().mark_start_execution(options);
        state
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_statement_reads_is_known_under_all_names_of_the_folder() {
        let home = TempDir::new().unwrap();
        let (folder, link) = (home.path().join("table"), home.path().join("link"));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let url = |path: &std::path::Path| ListingTableUrl::parse(format!("{}/", path.display()));
        let log = Log::new(&RuntimeEnv::default(), &url(&folder).unwrap()).unwrap();
        log.create(&Schema::new(vec![Field::new("n", DataType::Int64, true)]), &[]).await.unwrap();
        let snapshot = log.snapshot(None).await.unwrap();
        let table = |path| DeltaTable::new(url(path).unwrap(), &snapshot);
        let (a, b, linked) = (table(&folder), table(&folder), table(&link));
        let (one, other) = (statement(), statement());
        linked.note_read(&one, 7);
        b.note_read(&one, 8);
        // Others, of which there may be many at a time.
        let mut more = other.clone();
        for _ in 0..500 {
            let options = Arc::clone(more.config_options());
            more.execution_props_mut().mark_start_execution(options);
            b.note_read(&more, 9);
        }
        assert_eq!(a.version_read(&other), None);
        assert_eq!(a.version_read(&one), Some(7));
        assert_eq!(b.version_read(&one), None);
    }
}
