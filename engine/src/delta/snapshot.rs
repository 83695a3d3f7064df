//! A table at one version.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use deltalake::kernel::EagerSnapshot;
use deltalake::kernel::transaction::PROTOCOL;
use object_store::path::Path;

use super::error::{DeltaError, broken, explained};
use super::files::{self, TableFile};

/// What readers of a table must know, and what scans of its Parquet files alone see to.
const READ: [&str; 5] =
    ["timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors", "columnMapping"];

/// Notes at a column by which its values are checked or computed when rows are written.
const CHECKED: [&str; 3] =
    ["delta.invariants", "delta.generationExpression", "delta.identity.start"];

/// A table at one version.
#[derive(Clone, Debug)]
pub struct Snapshot {
    inner: Arc<EagerSnapshot>,
    table: Arc<str>,
    schema: SchemaRef,
}

impl Snapshot {
    /// # Errors
    /// If it cannot be read here.
    pub(super) fn try_new(inner: EagerSnapshot, schema: &Schema, table: Arc<str>) -> Result<Self> {
        let snapshot = Self { inner: Arc::new(inner), table, schema: plain(schema) };
        snapshot.check_readable()?;
        Ok(snapshot)
    }

    /// Goes up by one with every commit.
    pub fn version(&self) -> u64 {
        self.inner.version()
    }

    /// The columns, in the table's order.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The columns that name folders.
    pub fn partitioned_by(&self) -> Vec<String> {
        self.inner.metadata().partition_columns().to_vec()
    }

    /// The columns of the files, and those that name folders.
    pub fn split_schema(&self) -> (SchemaRef, Vec<FieldRef>) {
        let names: HashSet<String> = self.partitioned_by().into_iter().collect();
        let fields = self.schema.fields().iter();
        let of_files = fields.filter(|field| !names.contains(field.name())).cloned();
        let of_files = Arc::new(Schema::new(of_files.collect::<Vec<_>>()));
        let partitions = self.partitioned_by().into_iter();
        let field = |name: String| self.schema.field_with_name(&name).ok().cloned().map(Arc::new);
        (of_files, partitions.filter_map(field).collect())
    }

    /// The files that count, oldest first; `folder` is the table's. There may be very many of them, and they are
    /// looked at on a thread of their own.
    ///
    /// # Errors
    /// If the log is broken, or rows of a file are hidden in a way that is not known here.
    pub async fn files(&self, folder: &Path) -> Result<Vec<TableFile>> {
        let (columns, partitions) = self.split_schema();
        let (this, folder) = (self.clone(), folder.clone());
        let read = move || files::read(&this.inner, &this.table, &folder, &columns, &partitions);
        match SpawnedTask::spawn_blocking(read).join().await {
            Ok(files) => files,
            Err(error) if error.is_panic() => Err(broken(&self.table, error.into_panic().as_ref())),
            Err(error) => Err(DataFusionError::External(Box::new(error))),
        }
    }

    fn check_readable(&self) -> Result<()> {
        let protocol = self.inner.protocol();
        let features = protocol.reader_features().unwrap_or_default().iter();
        let features: Vec<String> = features.map(ToString::to_string).collect();
        let mut unknown = features.iter().map(String::as_str).collect::<Vec<_>>();
        unknown.retain(|feature| !READ.contains(feature));
        if !unknown.is_empty() {
            let problem = format!(
                "it uses {}, which this version of forebay does not know; read it with an engine that does, \
                 or drop the table feature",
                unknown.join(", ")
            );
            return Err(self.unsupported("read", problem));
        }
        let mode = self.property("delta.columnMapping.mode").unwrap_or("none");
        if mode != "none" {
            let problem = format!(
                "its columns have other names in its files (delta.columnMapping.mode = {mode}), which this \
                 version of forebay does not follow; write its rows to a table without"
            );
            return Err(self.unsupported("read", problem));
        }
        Ok(())
    }

    /// # Errors
    /// If it uses what writers must know, and this one does not.
    pub fn check_writable(&self) -> Result<()> {
        let known = PROTOCOL.can_write_to(self.inner.as_ref());
        known.map_err(|error| explained(&self.table, error.into()))?;
        let original = self.inner.arrow_schema();
        for field in original.fields() {
            let Some(note) = CHECKED.into_iter().find(|note| has_note(field, note)) else {
                continue;
            };
            let problem = format!(
                "its column '{}' has {note}, which this version of forebay neither checks nor computes; \
                 write it with an engine that does",
                field.name()
            );
            return Err(self.unsupported("written", problem));
        }
        Ok(())
    }

    fn property(&self, name: &str) -> Option<&str> {
        self.inner.metadata().configuration().get(name).map(String::as_str)
    }

    fn unsupported(&self, access: &'static str, problem: String) -> DataFusionError {
        DeltaError::Unsupported { table: self.table.to_string(), access, problem }.into()
    }

    pub(super) fn inner(&self) -> &Arc<EagerSnapshot> {
        &self.inner
    }
}

/// Without what `deltalake` notes at columns, by which schemas that are the same would differ.
fn plain(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        Arc::new(Field::new(field.name(), field.data_type().clone(), field.is_nullable()))
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn has_note(field: &Field, note: &str) -> bool {
    field.metadata().contains_key(note)
        || match field.data_type() {
            DataType::Struct(fields) => fields.iter().any(|field| has_note(field, note)),
            DataType::List(item) => has_note(item, note),
            _ => false,
        }
}
