//! Where the queries of a session run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use forebay_engine::arrow_files::CheckArrowFiles;
use forebay_scheduler::client::distribute::Distribute;
use forebay_scheduler::client::explain::ClusterQueryPlanner;
use forebay_scheduler::client::system_schema::SystemSchema;
use forebay_scheduler::tables;
use forebay_scheduler::{Cluster, Standalone};
use forebay_udf::model::Catalog;

/// Where the queries of a session run.
#[derive(Clone)]
pub(crate) enum Runs {
    InThisProcess,
    OnCluster(OnCluster),
}

/// A cluster, and what is known of it.
#[derive(Clone)]
pub(crate) struct OnCluster {
    pub(crate) cluster: Cluster,
    /// Whether statements are planned for its workers of the moment; otherwise for what was given.
    pub(crate) follows_workers: bool,
    /// The number of partitions that nobody chose: it follows the cluster's cores.
    pub(crate) partitions: Option<Arc<AtomicUsize>>,
    /// How many cores it had when a statement was planned last, in whichever session.
    pub(crate) cores: Arc<AtomicUsize>,
    /// Keeps a cluster running that is this session's alone.
    pub(crate) _own: Option<Arc<Standalone>>,
}

impl Runs {
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::InThisProcess => None,
            Self::OnCluster(on) => Some(&on.cluster),
        }
    }

    /// What there is to see of them.
    pub(crate) fn system_schema(&self, catalog: &Arc<Catalog>) -> SystemSchema {
        SystemSchema::new(Arc::clone(catalog)).with_cluster(self.cluster().cloned())
    }

    /// What sees to it that the plans of a session run there.
    pub(crate) fn plan_with(&self, builder: SessionStateBuilder) -> SessionStateBuilder {
        match self {
            // What workers see to for plans that come to them.
            Self::InThisProcess => builder.with_physical_optimizer_rule(Arc::new(CheckArrowFiles)),
            Self::OnCluster(on) => {
                let distribute = Distribute::new(on.cluster.clone(), Arc::clone(&on.cores));
                builder
                    .with_physical_optimizer_rule(Arc::new(distribute))
                    .with_query_planner(Arc::new(ClusterQueryPlanner))
            }
        }
    }

    /// The same for another session, which follows the cluster by itself.
    pub(crate) fn for_another(&self) -> Self {
        let mut runs = self.clone();
        if let Self::OnCluster(OnCluster { partitions: Some(partitions), .. }) = &mut runs {
            let cores = partitions.load(Ordering::Relaxed);
            *partitions = Arc::new(AtomicUsize::new(cores));
        }
        runs
    }
}

/// Puts our tables among those of a session.
pub(crate) fn show(state: &SessionState, tables: SystemSchema) -> Result<()> {
    let tables_of = &state.config().options().catalog.default_catalog;
    if let Some(tables_of) = state.catalog_list().catalog(tables_of) {
        tables_of.register_schema(tables::NAME, Arc::new(tables))?;
    }
    Ok(())
}

impl OnCluster {
    /// The cores of the next statement, and its partitions, if nobody has chosen how many.
    pub(crate) fn follow(&self, cpus: u32, options: &mut ConfigOptions) {
        let cores = cpus.max(1) as usize;
        self.cores.store(cores, Ordering::Relaxed);
        let Some(partitions) = &self.partitions else { return };
        let before = partitions.swap(cores, Ordering::Relaxed);
        if options.execution.target_partitions == before {
            options.execution.target_partitions = cores;
        }
    }
}
