//! A table of Delta Lake in a session.

use std::collections::VecDeque;
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

/// Statements that are remembered between their scan of a table and their write to it.
const STATEMENTS_MAX: usize = 256;

/// A table: each statement reads the version that is the newest when it is planned.
#[derive(Debug)]
pub(super) struct DeltaTable {
    folder: ListingTableUrl,
    schema: SchemaRef,
    partitioned_by: Vec<String>,
    reading: Mutex<VecDeque<(Statement, u64)>>,
}

/// A session, and when its statement began, in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Statement(String, i64);

impl Statement {
    fn of(session: &dyn Session) -> Option<Self> {
        let began = session.execution_props().query_execution_start_time?;
        Some(Self(session.session_id().to_owned(), began.timestamp_nanos_opt()?))
    }
}

impl DeltaTable {
    /// The table in this folder, with the columns of a version.
    pub(super) fn new(folder: ListingTableUrl, snapshot: &Snapshot) -> Self {
        Self {
            folder,
            schema: Arc::clone(snapshot.schema()),
            partitioned_by: snapshot.partitioned_by(),
            reading: Mutex::default(),
        }
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
        let Some(statement) = Statement::of(session) else { return };
        let mut reading = self.reading.lock();
        // The first of several scans has seen the least.
        if reading.iter().any(|(reads, _)| *reads == statement) {
            return;
        }
        reading.push_back((statement, version));
        if reading.len() > STATEMENTS_MAX {
            reading.pop_front();
        }
    }

    fn version_read(&self, session: &dyn Session) -> Option<u64> {
        let statement = Statement::of(session)?;
        let mut reading = self.reading.lock();
        let at = reading.iter().position(|(reads, _)| *reads == statement)?;
        reading.remove(at).map(|(_, version)| version)
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
        let files = snapshot.files(self.folder.prefix())?;
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
