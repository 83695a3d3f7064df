//! The schema `forebay` of a session.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::{Result, plan_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use forebay_planner::sql::models;
use forebay_udf::model::Catalog;
use futures::stream;

use crate::client::cluster::Cluster;
use crate::client::detached_jobs::{DetachedJobs, merged};
use crate::owner::Owner;
use crate::tables::SystemTable;

/// The session's own table.
const MODELS: &str = "models";

/// `models`, in a session on a cluster what its scheduler knows, and in one of a server its jobs.
#[derive(Debug)]
pub struct SystemSchema {
    catalog: Arc<Catalog>,
    cluster: Option<Cluster>,
    detached: Option<Arc<dyn DetachedJobs>>,
}

impl SystemSchema {
    /// The tables of a session in one process.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog, cluster: None, detached: None }
    }

    /// The same with the tables of a cluster.
    #[must_use]
    pub fn with_cluster(mut self, cluster: Option<Cluster>) -> Self {
        self.cluster = cluster;
        self
    }

    /// The same with the jobs that a server runs detached.
    #[must_use]
    pub fn with_detached(mut self, jobs: Arc<dyn DetachedJobs>) -> Self {
        self.detached = Some(jobs);
        self
    }

    fn has(&self, table: SystemTable) -> bool {
        self.cluster.is_some() || (table == SystemTable::Jobs && self.detached.is_some())
    }
}

#[tonic::async_trait]
impl SchemaProvider for SystemSchema {
    fn table_names(&self) -> Vec<String> {
        let tables = SystemTable::ALL.into_iter().filter(|table| self.has(*table));
        let tables = tables.map(|table| table.name().to_owned());
        tables.chain([MODELS.to_owned()]).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if name == MODELS {
            let schema = models(&self.catalog)?.schema();
            return provider(schema, Source::Models(Arc::clone(&self.catalog))).map(Some);
        }
        let Some(table) = SystemTable::named(name) else { return Ok(None) };
        if let (SystemTable::Jobs, Some(detached)) = (table, &self.detached) {
            let jobs = Source::Jobs(self.cluster.clone(), Arc::clone(detached));
            return provider(table.schema()?, jobs).map(Some);
        }
        let Some(cluster) = &self.cluster else {
            return plan_err!(
                "{table}: this session runs its queries in its own process; the table is there in \
                 sessions on a cluster (forebay shell --connect HOST:PORT)"
            );
        };
        provider(table.schema()?, Source::Cluster(cluster.clone(), table)).map(Some)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.table_names().iter().any(|table| table == name)
    }
}

fn provider(schema: SchemaRef, source: Source) -> Result<Arc<dyn TableProvider>> {
    let rows = Arc::new(Rows { schema: Arc::clone(&schema), source });
    Ok(Arc::new(StreamingTable::try_new(schema, vec![rows])?))
}

#[derive(Clone, Debug)]
enum Source {
    Models(Arc<Catalog>),
    Cluster(Cluster, SystemTable),
    /// The cluster's, if there is one, and those that are detached.
    Jobs(Option<Cluster>, Arc<dyn DetachedJobs>),
}

/// Rows as they are when the query runs.
#[derive(Debug)]
struct Rows {
    schema: SchemaRef,
    source: Source,
}

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let owner = context.session_config().get_extension::<Owner>();
        let owner = owner.filter(|owner| !owner.sees_all);
        let rows = stream::once(fetch(self.source.clone(), owner));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

async fn fetch(source: Source, owner: Option<Arc<Owner>>) -> Result<RecordBatch> {
    let owner = owner.as_ref().map(|owner| owner.name.as_str());
    match source {
        Source::Models(catalog) => models(&catalog),
        Source::Cluster(cluster, table) => cluster.table(table, owner).await,
        Source::Jobs(cluster, detached) => {
            let of_cluster = match cluster {
                Some(cluster) => Some(cluster.table(SystemTable::Jobs, owner).await?),
                None => None,
            };
            merged(of_cluster, detached.rows(owner))
        }
    }
}
