//! The log of a table, in a store of the session's.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use deltalake::kernel::engine::arrow_conversion::TryIntoKernel;
use deltalake::kernel::{EagerSnapshot, StructType};
use deltalake::logstore::{LogStoreRef, StorageConfig, default_logstore};
use deltalake::operations::create::CreateBuilder;
use deltalake::protocol::SaveMode;
use deltalake::{DeltaResult, DeltaTableError};
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::prefix::PrefixStore;

use super::entries::Entries;
use super::error::{DeltaError, broken, explained};
use super::inside::Inside;
use super::snapshot::Snapshot;

/// The log of the table in a folder, whether there is one or not.
#[derive(Clone)]
pub struct Log {
    store: LogStoreRef,
    /// As the user knows it.
    table: Arc<str>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("table", &self.table).finish_non_exhaustive()
    }
}

impl Log {
    /// The log in this folder; nothing is read.
    ///
    /// # Errors
    /// If the session has no such store.
    pub fn new(runtime: &RuntimeEnv, folder: &ListingTableUrl) -> Result<Self> {
        let inside = Inside::new(runtime.object_store(folder)?, folder.prefix().clone());
        let root: Arc<dyn ObjectStore> = Arc::new(inside);
        let inner: Arc<dyn ObjectStore> =
            Arc::new(PrefixStore::new(Arc::clone(&root), folder.prefix().clone()));
        let config = StorageConfig::default();
        let store = default_logstore(inner, root, folder.get_url(), &config);
        Ok(Self { store: Arc::new(Entries::new(store)), table: folder.as_str().into() })
    }

    /// Whether there is a table.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub async fn exists(&self) -> Result<bool> {
        let store = Arc::clone(&self.store);
        self.guarded(async move { store.is_delta_table_location().await }).await
    }

    /// What it says at a version, or else by now.
    ///
    /// # Errors
    /// If there is no table, its log is broken, or it uses what is not known here.
    pub async fn snapshot(&self, version: Option<u64>) -> Result<Snapshot> {
        if !self.exists().await? {
            return Err(DeltaError::NotATable { table: self.table.to_string() }.into());
        }
        let store = Arc::clone(&self.store);
        let read = async move {
            let snapshot = EagerSnapshot::try_new(store.as_ref(), version).await?;
            let schema = snapshot.arrow_schema();
            Ok((snapshot, schema))
        };
        let (inner, schema) = self.guarded(read).await?;
        Snapshot::try_new(inner, &schema, Arc::clone(&self.table))
    }

    /// Whether it has taken a transaction of this id.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn has_taken(&self, id: &str) -> Result<bool> {
        let latest = Arc::clone(self.snapshot(None).await?.inner());
        let (store, id) = (Arc::clone(&self.store), id.to_owned());
        let found = async move { latest.transaction_version(store.as_ref(), id).await };
        Ok(self.guarded(found).await?.is_some())
    }

    /// Begins a table with these columns. If somebody else has begun one meanwhile, that stays.
    ///
    /// # Errors
    /// If there are files already, the columns cannot be those of a table, or the folder cannot be written.
    pub async fn create(&self, schema: &Schema, partitioned_by: &[String]) -> Result<()> {
        self.check_is_empty().await?;
        let columns: StructType = schema
            .try_into_kernel()
            .map_err(|error| DataFusionError::ArrowError(Box::new(error), None))?;
        let columns: Vec<_> = columns.fields().cloned().collect();
        let create = CreateBuilder::new()
            .with_log_store(Arc::clone(&self.store))
            .with_columns(columns)
            .with_partition_columns(partitioned_by.to_vec())
            .with_save_mode(SaveMode::Ignore);
        self.guarded(async move { create.await.map(drop) }).await
    }

    /// Rows of files that nobody has noted would not be rows of the table.
    async fn check_is_empty(&self) -> Result<()> {
        let store = self.store.object_store(None);
        let is_data = |path: &object_store::path::Path| {
            !path.parts().any(|part| part.as_ref().starts_with(['_', '.']))
        };
        let mut found = store.list(None);
        while let Some(file) = found.try_next().await? {
            if is_data(&file.location) {
                let problem = format!(
                    "the folder has files that are no table's, such as '{}'; name another folder, or \
                     convert it with an engine that does",
                    file.location
                );
                return Err(DeltaError::Refused { table: self.table.to_string(), problem }.into());
            }
        }
        Ok(())
    }

    pub(super) fn store(&self) -> &LogStoreRef {
        &self.store
    }

    pub(super) fn table(&self) -> &str {
        &self.table
    }

    /// Waits for what works on the log. That takes much of what is in the log for granted, and panics where it
    /// is otherwise.
    pub(super) async fn guarded<T: Send + 'static>(
        &self,
        work: impl Future<Output = DeltaResult<T>> + Send + 'static,
    ) -> Result<T> {
        match SpawnedTask::spawn(work).join().await {
            Ok(done) => done.map_err(|error: DeltaTableError| explained(&self.table, error)),
            Err(error) if error.is_panic() => Err(broken(&self.table, error.into_panic().as_ref())),
            Err(error) => Err(DataFusionError::External(Box::new(error))),
        }
    }
}
