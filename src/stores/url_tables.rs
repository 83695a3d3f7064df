//! Tables that queries name by URL or path: `FROM 's3://bucket/folder/*.parquet'`.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use datafusion::catalog::{DynamicFileCatalog, TableProvider, UrlTableFactory};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err, plan_datafusion_err};
use datafusion::datasource::listing::{ListingTable, ListingTableConfig, ListingTableConfigExt};
use datafusion::execution::session_state::SessionState;
use datafusion::prelude::SessionContext;
use forebay_planner::location;
use parking_lot::RwLock;

/// Makes tables of files that queries name. Like DataFusion's own, with patterns in URLs, and reasons.
#[derive(Debug, Default)]
pub(crate) struct UrlTables {
    session: OnceLock<Weak<RwLock<SessionState>>>,
}

impl UrlTables {
    /// A session whose queries may name files.
    pub(crate) fn enable(session: SessionContext) -> SessionContext {
        let tables = Arc::new(Self::default());
        let names = Arc::clone(session.state().catalog_list());
        let catalogs = DynamicFileCatalog::new(names, Arc::clone(&tables) as _);
        session.register_catalog_list(Arc::new(catalogs));
        tables.session.set(session.state_weak_ref()).ok();
        session
    }

    fn state(&self) -> Result<SessionState> {
        let session = self.session.get().and_then(Weak::upgrade);
        let session = session.ok_or_else(|| internal_datafusion_err!("the session has ended"))?;
        let state = session.read();
        Ok(state.clone())
    }
}

#[async_trait]
impl UrlTableFactory for UrlTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let state = self.state()?;
        let found = match location::parse(name) {
            Ok(files) => ListingTableConfig::new(files).infer_options(&state).await,
            Err(error) => Err(error),
        };
        let config = match found {
            Ok(config) => config,
            // A name that is none of a table may be a file's, and most are not.
            Err(_) if !name.contains("://") => return Ok(None),
            Err(error) => return Err(explained(name, error)),
        };
        let config = config.infer_partitions_from_path(&state).await?;
        Ok(Some(Arc::new(ListingTable::try_new(config.infer_schema(&state).await?)?)))
    }
}

/// What DataFusion says of no files, and of files of another kind, sounds like a fault of its own.
fn explained(name: &str, error: DataFusionError) -> DataFusionError {
    match &error {
        DataFusionError::Internal(why) if why.starts_with("No files for table") => {
            plan_datafusion_err!("no file matches '{name}'")
        }
        DataFusionError::Configuration(why) if why.starts_with("No file_format") => {
            plan_datafusion_err!(
                "'{name}': the extension of a file tells what is in it, and this one does not; CREATE \
                 EXTERNAL TABLE … STORED AS tells it too, and read_files reads any file"
            )
        }
        _ => error,
    }
}
