//! `STORED AS ARROW`: DataFusion's format, but files are written by a sink that others can ask what it writes.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, Statistics, not_impl_err};

use datafusion::datasource::file_format::arrow::{ArrowFormat, ArrowFormatFactory};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSinkConfig, FileSource};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::ExecutionPlan;
use forebay_engine::write::ArrowSink;
use object_store::{ObjectMeta, ObjectStore};

/// Puts it in the place of DataFusion's, whichever of the two comes first.
pub(crate) fn add_to(formats: &mut Vec<Arc<dyn FileFormatFactory>>) {
    let own: Arc<dyn FileFormatFactory> = Arc::new(ArrowFiles);
    formats.retain(|format| format.get_ext() != own.get_ext());
    formats.insert(0, own);
}

/// The format, and what makes it.
#[derive(Debug)]
struct ArrowFiles;

impl GetExt for ArrowFiles {
    fn get_ext(&self) -> String {
        ArrowFormatFactory::new().get_ext()
    }
}

impl FileFormatFactory for ArrowFiles {
    fn create(&self, _: &dyn Session, _: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        Ok(Arc::new(Self))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(Self)
    }
}

#[async_trait]
impl FileFormat for ArrowFiles {
    fn get_ext(&self) -> String {
        FileFormat::get_ext(&ArrowFormat)
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        ArrowFormat.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        ArrowFormat.compression_type()
    }

    async fn infer_schema(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        ArrowFormat.infer_schema(session, store, objects).await
    }

    async fn infer_stats(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        ArrowFormat.infer_stats(session, store, schema, object).await
    }

    async fn create_physical_plan(
        &self,
        session: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        ArrowFormat.create_physical_plan(session, config).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _: &dyn Session,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if config.insert_op != InsertOp::Append {
            return not_impl_err!(
                "Arrow files of a table cannot be overwritten; write a new folder"
            );
        }
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(ArrowSink::new(config)), order)))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        ArrowFormat.file_source(schema)
    }
}
