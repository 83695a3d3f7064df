//! A session: SQL and DataFrames with models.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use datafusion::error::Result;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use forebay_engine::{Devices, Inventory};
use forebay_planner::install;
use forebay_planner::sql::{self, ModelStatement, Statement, statement::CreateModel};
use forebay_scheduler::client::detached_jobs::DetachedJobs;
use forebay_scheduler::client::distribute::plans_for_cluster;
use forebay_scheduler::inventory::pooled;
use forebay_scheduler::{Cluster, Functions, Standalone, Tls};
use forebay_udf::model::Catalog;
use forebay_udf::runtime::torch::remember_kernels_in;

use crate::folders;
use crate::runs::{OnCluster, Runs, show};
use crate::stores::{Stores, UrlTables, open_with_options};

/// A DataFusion session with Forebay installed, whose queries run in this process or on a cluster.
#[derive(Clone)]
pub struct ForebayContext {
    session: SessionContext,
    catalog: Arc<Catalog>,
    devices: Arc<Devices>,
    functions: Functions,
    runs: Runs,
}

impl ForebayContext {
    /// With the user's catalog and all devices of this machine.
    ///
    /// # Errors
    /// If the catalog's folder is not one.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// On the cluster of the scheduler at `host:port`: tables, models and options are this
    /// session's, queries run there. If its connections are encrypted, use
    /// [`ForebayBuilder::with_tls`].
    ///
    /// # Errors
    /// If no scheduler answers, or the catalog's folder is not one.
    pub async fn remote(scheduler: &str) -> Result<Self> {
        Self::builder().connect(scheduler).await
    }

    /// On a cluster of its own, in this process: a scheduler and a worker with all devices of this
    /// machine. For trying and testing what will run on many machines.
    ///
    /// # Errors
    /// If they cannot start, or the catalog's folder is not one.
    pub async fn standalone() -> Result<Self> {
        Self::builder().standalone().await
    }

    /// A session with other devices, another catalog, other options or on a cluster.
    pub fn builder() -> ForebayBuilder {
        ForebayBuilder::default()
    }

    /// Runs one statement, on models or of DataFusion's. A query runs when its rows are read.
    ///
    /// # Errors
    /// Syntax and planning errors, and those of statements that act at once.
    pub async fn sql(&self, text: &str) -> Result<DataFrame> {
        self.execute(sql::execute::parse_one(&self.session, text)?).await
    }

    /// The statements of a text.
    ///
    /// # Errors
    /// Syntax errors.
    pub fn parse(&self, text: &str) -> Result<Vec<Statement>> {
        sql::execute::parse_in(&self.session, text)
    }

    /// Runs one parsed statement.
    ///
    /// # Errors
    /// As [`Self::sql`].
    pub async fn execute(&self, statement: Statement) -> Result<DataFrame> {
        self.look_around().await?;
        open_with_options(&self.session, &statement)?;
        sql::execute(&self.session, statement).await
    }

    /// Workers come and go: a statement is planned for those that are there.
    pub(crate) async fn look_around(&self) -> Result<()> {
        if let Runs::OnCluster(on) = &self.runs
            && on.follows_workers
        {
            let inventory = pooled(&on.cluster.workers().await?);
            let state = self.session.state_ref();
            let mut state = state.write();
            on.follow(inventory.cpus, state.config_mut().options_mut());
            state.config_mut().set_extension(Arc::new(Devices::new(inventory)));
        }
        Ok(())
    }

    /// Another session with the same tables, models, devices and cluster, and with options,
    /// temporary models and a memory of its own; as this one was when it was made.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn new_session(&self) -> Result<Self> {
        let catalog = self.catalog.for_session();
        let state = self.session.state();
        // The tables are there already.
        let config = state.config().clone().with_create_default_catalog_and_schema(false);
        let builder = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::clone(state.runtime_env()))
            .with_catalog_list(Arc::clone(state.catalog_list()))
            .with_default_features();
        let builder = self.functions.clone().register(builder);
        let builder = install(builder, Arc::clone(&catalog), Arc::clone(&self.devices));
        let builder = self.runs.plan_with(builder);
        let session = SessionContext::new_with_state(builder.build());
        Ok(Self { session, catalog, runs: self.runs.for_another(), ..self.clone() })
    }

    /// Lets `forebay.jobs` show these, too, in all sessions with the same tables.
    pub(crate) fn show_detached(&self, jobs: Arc<dyn DetachedJobs>) -> Result<()> {
        let tables = self.runs.system_schema(&self.catalog).with_detached(jobs);
        show(&self.session.state(), tables)
    }

    /// `CREATE OR REPLACE TEMPORARY MODEL name LOCATION location`: a model for this session.
    ///
    /// # Errors
    /// A package that is missing or malformed.
    pub async fn register_model(&self, name: &str, location: &str) -> Result<()> {
        let create = CreateModel {
            name: name.to_owned(),
            location: Some(location.to_owned()),
            or_replace: true,
            temporary: true,
            ..CreateModel::default()
        };
        self.execute(Statement::Model(ModelStatement::Create(Box::new(create)))).await?;
        Ok(())
    }

    /// The DataFusion session: tables, options, everything that is not about models.
    pub fn session(&self) -> &SessionContext {
        &self.session
    }

    /// The models that SQL can name.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The devices, who holds them, and the models loaded on them.
    pub fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }
}

impl ForebayContext {
    fn with_state(
        state: SessionState,
        catalog: Arc<Catalog>,
        devices: Arc<Devices>,
        functions: Functions,
        runs: Runs,
        reads_urls: bool,
    ) -> Result<Self> {
        show(&state, runs.system_schema(&catalog))?;
        let session = SessionContext::new_with_state(state);
        let session = if reads_urls { UrlTables::enable(session) } else { session };
        Ok(Self { session, catalog, devices, functions, runs })
    }
}

impl fmt::Debug for ForebayContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForebayContext").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

/// Choices for a [`ForebayContext`].
#[derive(Debug, Default)]
pub struct ForebayBuilder {
    has_no_urls: bool,
    catalog: Option<Arc<Catalog>>,
    inventory: Option<Inventory>,
    config: Option<SessionConfig>,
    runtime: Option<Arc<RuntimeEnv>>,
    memory_limit: Option<usize>,
    functions: Functions,
    tls: Option<Tls>,
    is_in_schedulers_process: bool,
}

impl ForebayBuilder {
    /// Keeps the models in `folder` instead of the user's data folder.
    ///
    /// # Errors
    /// If there is a file of that name.
    pub fn with_catalog_folder(self, folder: impl Into<PathBuf>) -> Result<Self> {
        Ok(self.with_catalog(Catalog::open(folder)?))
    }

    /// Takes the models from `catalog`.
    #[must_use]
    pub fn with_catalog(mut self, catalog: Arc<Catalog>) -> Self {
        self.catalog = Some(catalog);
        self
    }

    /// Uses these devices instead of all that this machine has; on a cluster, plans for these
    /// instead of all that its workers have.
    #[must_use]
    pub fn with_inventory(mut self, inventory: Inventory) -> Self {
        self.inventory = Some(inventory);
        self
    }

    /// Starts from this configuration.
    #[must_use]
    pub fn with_config(mut self, config: SessionConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// Adds functions of yours to those that queries can call. On a cluster its scheduler and all
    /// workers must have them; [`Self::standalone`] sees to that.
    #[must_use]
    pub fn with_functions(mut self, functions: Functions) -> Self {
        self.functions = functions;
        self
    }

    /// Uses this memory pool, disk manager and object stores: those that it has, or with
    /// [`Stores::runtime`] whatever URLs name.
    #[must_use]
    pub fn with_runtime(mut self, runtime: Arc<RuntimeEnv>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Keeps queries from reading files that they name in `FROM`: they read tables only.
    #[must_use]
    pub fn without_url_tables(mut self) -> Self {
        self.has_no_urls = true;
        self
    }

    /// Limits what queries may hold in memory, in bytes; shared fairly. Ignored if a runtime is
    /// given.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: usize) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Encrypts connections to a cluster, whose processes and this one prove to each other who
    /// they are; for [`Self::connect`].
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The scheduler to which [`Self::connect`] connects runs in this process. A successor of it hears nothing of the
    /// session's queries: nobody could come back for their rows.
    #[must_use]
    pub fn in_schedulers_process(mut self) -> Self {
        self.is_in_schedulers_process = true;
        self
    }

    /// The session.
    ///
    /// # Errors
    /// If the catalog's folder is not one.
    pub fn build(mut self) -> Result<ForebayContext> {
        let catalog = self.open_catalog()?;
        let devices = Devices::new(self.inventory.take().unwrap_or_else(Inventory::detect));
        let devices = Arc::new(devices.with_learned(Arc::clone(catalog.learned())));
        if let Some(folder) = catalog.learned().folder() {
            remember_kernels_in(folder);
        }
        let (functions, reads_urls) = (self.functions.clone(), !self.has_no_urls);
        let runs = Runs::InThisProcess;
        let state = runs.plan_with(self.state(&catalog, &devices)?).build();
        ForebayContext::with_state(state, catalog, devices, functions, runs, reads_urls)
    }

    /// The session, with its queries running on the cluster of the scheduler at `host:port`.
    ///
    /// # Errors
    /// If no scheduler answers, or one of both does not believe the other, or the catalog's folder
    /// is not one.
    pub async fn connect(mut self, scheduler: &str) -> Result<ForebayContext> {
        let mut cluster = Cluster::connect(scheduler, self.tls.take()).await?;
        if self.is_in_schedulers_process {
            cluster = cluster.in_schedulers_process();
        }
        self.on(cluster, None).await
    }

    /// The session, with its queries running on a cluster of its own in this process.
    ///
    /// # Errors
    /// If it cannot start, or the catalog's folder is not one.
    pub async fn standalone(mut self) -> Result<ForebayContext> {
        let devices = Devices::new(self.inventory.take().unwrap_or_else(Inventory::detect));
        let devices = Arc::new(devices);
        let runtime = self.open_runtime()?;
        self.runtime = Some(Arc::clone(&runtime));
        let own = Standalone::start(devices, runtime, self.functions.clone()).await?;
        // Nothing of it leaves this process.
        let cluster = Cluster::connect(&own.address(), None).await?;
        self.on(cluster, Some(Arc::new(own))).await
    }

    async fn on(
        mut self,
        cluster: Cluster,
        own: Option<Arc<Standalone>>,
    ) -> Result<ForebayContext> {
        let given = self.inventory.take();
        let follows_workers = given.is_none();
        let inventory = match given {
            Some(inventory) => inventory,
            None => pooled(&cluster.workers().await?),
        };
        let catalog = self.open_catalog()?;
        let mut config = self.config.take().unwrap_or_default();
        let cores = inventory.cpus.max(1) as usize;
        let mut partitions = None;
        if config.target_partitions() == SessionConfig::new().target_partitions() {
            // Not chosen: as many as the cluster has cores, not this machine.
            config = config.with_target_partitions(cores);
            partitions = Some(Arc::new(AtomicUsize::new(cores)));
        }
        self.config = Some(plans_for_cluster(config));
        let devices = Arc::new(Devices::new(inventory));
        let (functions, reads_urls) = (self.functions.clone(), !self.has_no_urls);
        let cores = Arc::new(AtomicUsize::new(cores));
        let on = OnCluster { cluster, follows_workers, partitions, cores, _own: own };
        let runs = Runs::OnCluster(on);
        let state = runs.plan_with(self.state(&catalog, &devices)?).build();
        ForebayContext::with_state(state, catalog, devices, functions, runs, reads_urls)
    }

    fn open_runtime(&self) -> Result<Arc<RuntimeEnv>> {
        match (&self.runtime, self.memory_limit) {
            (Some(runtime), _) => Ok(Arc::clone(runtime)),
            (None, Some(bytes)) => {
                Stores::default().runtime().with_memory_limit(bytes, 1.0).build_arc()
            }
            (None, None) => Stores::default().runtime().build_arc(),
        }
    }

    fn open_catalog(&mut self) -> Result<Arc<Catalog>> {
        match self.catalog.take() {
            Some(catalog) => Ok(catalog),
            None => Ok(Catalog::open(folders::catalog())?),
        }
    }

    fn state(self, catalog: &Arc<Catalog>, devices: &Arc<Devices>) -> Result<SessionStateBuilder> {
        let runtime = self.open_runtime()?;
        let config = self.config.unwrap_or_default().with_information_schema(true);
        let builder = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_default_features();
        let builder = self.functions.register(builder);
        Ok(install(builder, Arc::clone(catalog), Arc::clone(devices)))
    }
}
