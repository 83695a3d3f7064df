//! The scheduler's process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::JobId;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::BallistaError;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::ExecutorStoppedParams;
use ballista_core::serde::protobuf::scheduler_grpc_server::{SchedulerGrpc, SchedulerGrpcServer};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::create_scheduler;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::Request;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::ballista::calls;
use crate::ballista::cluster_state::ForebayClusterState;
use crate::ballista::job_ids::JobIds;
use crate::ballista::jobs::BallistaJobs;
use crate::ballista::session;
use crate::ballista::workers::WorkerReports;
use crate::ballista::{Ballista, wake};
use crate::coordinator::book::{Book, Found, fold};
use crate::coordinator::metrics;
use crate::coordinator::registry::Registry;
use crate::functions::Functions;
use crate::gate::Gate;
use crate::journal::{Hold, Journal, Records};
use crate::metrics::{MetricsServer, Page};
use crate::protocol::membership::{Listener, Membership, News};
use crate::protocol::schedulers::NOTICED_WITHIN;
use crate::protocol::server::{ClusterService, Tenure};
use crate::protocol::tls::Tls;
use crate::protocol::{ClusterServer, connection};

/// Losses of workers that wait to be told to Ballista.
const LOSSES_MAX: usize = 1024;

/// After which silence a worker is lost, unless a scheduler is told otherwise.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);

/// For how long workers and clients wait for a successor, unless a scheduler is told otherwise.
const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(60);

/// How often waits are looked at.
const WAKE_EVERY: Duration = Duration::from_millis(50);

/// How often jobs are looked at that no worker can run or that are over, and workers that are gone.
const GIVE_UP_EVERY: Duration = Duration::from_secs(1);

/// Jobs without a client that wait to be cancelled.
const ABANDONED_MAX: usize = 65_536;

/// What a scheduler is.
#[derive(Debug)]
pub struct Scheduler {
    /// Where to listen; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Name or address by which workers and sessions reach this machine.
    pub host: String,
    /// Object stores that plans may name.
    pub runtime: Arc<RuntimeEnv>,
    /// A worker is lost when nothing has been heard of it for so long; as long does a job wait if
    /// none is left that can run it.
    pub worker_timeout: Duration,
    /// Functions of this program that plans may name.
    pub functions: Functions,
    /// Where to serve figures for Prometheus; port 0 takes a free one.
    pub metrics: Option<SocketAddr>,
    /// Where it writes down what must not be lost with it: it goes on with the jobs of who had this before.
    /// Without, jobs are gone with the scheduler.
    pub state: Option<Hold>,
    /// With [`Self::state`]: for how long workers and clients are to wait for a successor, should this
    /// scheduler be gone.
    pub scheduler_timeout: Duration,
    /// With it, this scheduler speaks only to those who have a certificate of its authority;
    /// without, with anyone.
    pub tls: Option<Tls>,
}

/// A scheduler that listens, until it is dropped.
#[derive(Debug)]
pub struct RunningScheduler {
    address: SocketAddr,
    membership: Membership,
    /// What it runs for sessions.
    jobs: Gate,
    journal: Option<Journal>,
    registry: Registry,
    _metrics: Option<MetricsServer>,
    _tasks: Vec<SpawnedTask<()>>,
}

impl Scheduler {
    /// A scheduler on a free port of loopback, without functions, figures or encryption.
    pub fn new(runtime: Arc<RuntimeEnv>) -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            host: Ipv4Addr::LOCALHOST.to_string(),
            runtime,
            worker_timeout: WORKER_TIMEOUT,
            functions: Functions::default(),
            metrics: None,
            state: None,
            scheduler_timeout: SCHEDULER_TIMEOUT,
            tls: None,
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// If it cannot listen, its certificate is not one for its host, or its journal is of no use.
    pub async fn start(self) -> Result<RunningScheduler> {
        if let Some(tls) = &self.tls {
            tls.check_host(&self.host)?;
        }
        let journal = match &self.state {
            Some(hold) => Some(hold.open(fold).await?),
            None => None,
        };
        let bind = self.bind;
        let listener = TcpListener::bind(bind)
            .await
            .map_err(|error| exec_datafusion_err!("cannot listen on {bind}: {error}"))?;
        self.serve(listener, journal).await
    }

    async fn serve(
        self,
        listener: TcpListener,
        journal: Option<(Journal, Records)>,
    ) -> Result<RunningScheduler> {
        let Self { host, worker_timeout, metrics, tls, .. } = self;
        let address = listener.local_addr()?;
        let state = session::decoding_state(self.runtime, self.functions);
        let config = config(address, host, state.clone(), worker_timeout);
        let config = Arc::new(SchedulerConfig {
            override_create_grpc_client_endpoint: tls.clone().map(calls::to_workers),
            ..config
        });
        let hold = journal.as_ref().map(|(journal, _)| journal.hold().clone());
        let grace = grace(hold.as_ref());
        let patience = worker_timeout + grace;
        let membership = Membership::of(hold.clone());
        let registry = Registry::new(membership.clone());
        let (registry, journal, found) = with_journal(registry, journal)?;
        let (scheduler, cluster) = ballista(&registry, config).await?;
        let (lost, losses) = mpsc::channel(LOSSES_MAX);
        membership.listen(takes_news(registry.clone(), lost));
        let (abandoned, orphans) = mpsc::channel(ABANDONED_MAX);
        let gate = Gate::default();
        let jobs = Arc::new(BallistaJobs {
            scheduler: scheduler.clone(),
            registry: registry.clone(),
            state,
            abandoned,
            patience,
            gate: gate.clone(),
            tenure: tenure(journal.as_ref(), self.scheduler_timeout),
            unclaimed: Arc::default(),
        });
        jobs.restore(&cluster, found.jobs).await?;
        let its_jobs = Arc::clone(&jobs);
        let service = ClusterService::new(membership.clone(), its_jobs).with_tenure(jobs.tenure);
        let reports = WorkerReports { scheduler: scheduler.clone(), registry: registry.clone() };
        let tasks = vec![
            SpawnedTask::spawn(tell_losses(scheduler.clone(), losses)),
            SpawnedTask::spawn(cancel(scheduler.clone(), orphans, hold)),
            SpawnedTask::spawn(wake::forward(scheduler.clone(), registry.clone())),
            SpawnedTask::spawn(wake_due(registry.clone())),
            SpawnedTask::spawn(give_up(registry.clone(), worker_timeout, grace)),
            SpawnedTask::spawn(miss(jobs, patience)),
            SpawnedTask::spawn(answer(routes(reports, service), listener, tls.clone())),
        ];
        let figures = match metrics {
            Some(address) => Some(serve_metrics(address, registry.clone(), tls).await?),
            None => None,
        };
        let (jobs, _metrics, _tasks) = (gate, figures, tasks);
        Ok(RunningScheduler { address, membership, jobs, journal, registry, _metrics, _tasks })
    }
}

/// The registry, with what was written down of workers, and what was of jobs.
fn with_journal(
    registry: Registry,
    journal: Option<(Journal, Records)>,
) -> Result<(Registry, Option<Journal>, Found)> {
    let Some((journal, records)) = journal else { return Ok((registry, None, Found::default())) };
    let found = Found::read(records)?;
    let registry = registry.with_book(Book::new(journal.clone(), &found), &found);
    Ok((registry, Some(journal), found))
}

/// How much longer workers and clients may take to come back.
fn grace(hold: Option<&Hold>) -> Duration {
    if hold.is_some_and(Hold::was_silent) { NOTICED_WITHIN } else { Duration::ZERO }
}

fn tenure(journal: Option<&Journal>, patience: Duration) -> Tenure {
    let Some(journal) = journal else { return Tenure::default() };
    let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    let hold = journal.hold();
    Tenure { state: Some(hold.id()), term: hold.term(), patience_ms }
}

impl Drop for RunningScheduler {
    fn drop(&mut self) {
        // Before what answers clients ends.
        self.registry.ends();
    }
}

impl RunningScheduler {
    /// Where it listens: the port that it was given, if it took a free one.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it must end, as what happens cannot be written down any more, or another one has taken over.
    /// Not without a journal.
    pub async fn failed(&self) -> DataFusionError {
        match &self.journal {
            Some(journal) => journal.failed().await.into(),
            None => std::future::pending().await,
        }
    }

    /// Takes no more jobs, and waits until those that run have ended and their rows were read.
    pub async fn drain(&self) {
        self.jobs.drain().await;
    }

    /// Ends, with all that was to be written down on the disk.
    pub async fn end(self) {
        let journal = self.journal.clone();
        drop(self);
        if let Some(journal) = journal
            && let Err(error) = journal.flushed().await
        {
            tracing::warn!("the end is not written down: {error}");
        }
    }

    /// The workers that attend.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }
}

/// Ballista's services and ours, on one port.
fn routes(reports: WorkerReports, service: ClusterService) -> Router {
    let limit = session::MESSAGE_BYTES as usize;
    let (reports, cluster) = (SchedulerGrpcServer::new(reports), ClusterServer::new(service));
    Server::builder()
        .tcp_nodelay(true)
        .add_service(reports.max_decoding_message_size(limit).max_encoding_message_size(limit))
        .add_service(cluster.max_decoding_message_size(limit).max_encoding_message_size(limit))
}

async fn answer(routes: Router, port: TcpListener, tls: Option<Tls>) {
    if let Err(error) = connection::serve(routes, port, tls).await {
        tracing::error!("the scheduler's port closed: {error}");
    }
}

async fn serve_metrics(
    address: SocketAddr,
    registry: Registry,
    tls: Option<Tls>,
) -> Result<MetricsServer> {
    let fill = move |page: &Page| metrics::of_scheduler(&registry, page);
    MetricsServer::serve(address, tls, fill).await
}

/// Ballista's scheduler, with workers and tasks as we bind them.
async fn ballista(
    registry: &Registry,
    config: Arc<SchedulerConfig>,
) -> Result<(Ballista, Arc<ForebayClusterState>)> {
    let plain = BallistaCluster::new_from_config(&config).await;
    let plain = plain.map_err(BallistaError::into_datafusion)?;
    let state = Arc::new(ForebayClusterState::new(registry.clone()));
    let its_state = Arc::clone(&state);
    let cluster = BallistaCluster::new(its_state, plain.job_state());
    let scheduler = create_scheduler(cluster, config).await;
    Ok((scheduler.map_err(BallistaError::into_datafusion)?, state))
}

fn takes_news(registry: Registry, lost: mpsc::Sender<String>) -> Listener {
    Arc::new(move |news| match news {
        News::Lost(id) => {
            tracing::info!(worker = %id, "is gone");
            if let Err(error) = lost.try_send(id) {
                tracing::warn!("a loss is noticed by its heartbeats only: {error}");
            }
        }
        News::Sealed(id, sealed) => registry.sealed(&id, &sealed),
        News::Full(id) => registry.worker_full(&id),
        News::Absent(id, task) => registry.absent(&id, &task),
        News::Came(id, holds) => {
            tracing::info!(worker = %id, "came");
            if let Some(holds) = holds {
                registry.reconcile(&id, &holds);
            }
        }
        News::Drains(id) => tracing::info!(worker = %id, "drains"),
    })
}

async fn wake_due(registry: Registry) {
    let mut ticks = tokio::time::interval(WAKE_EVERY);
    loop {
        ticks.tick().await;
        registry.wake_due();
        registry.release_drained();
    }
}

async fn give_up(registry: Registry, patience: Duration, grace: Duration) {
    let (since, mut grace) = (Instant::now(), grace);
    let mut ticks = tokio::time::interval(GIVE_UP_EVERY);
    loop {
        ticks.tick().await;
        // All have noticed that the server before is silent who could be waited for.
        if since.elapsed() < grace && registry.misses_workers() {
            continue;
        }
        grace = Duration::ZERO;
        registry.give_up(patience);
        registry.stop_again();
        registry.forget_gone();
        registry.retire();
    }
}

/// Workers and clients of an earlier scheduler that have not come back in this time are gone.
async fn miss(jobs: Arc<BallistaJobs>, patience: Duration) {
    tokio::time::sleep(patience).await;
    jobs.registry.lose_absent();
    jobs.drop_unclaimed();
}

/// Ballista hears of a worker's end from its line, long before heartbeats are missed.
async fn tell_losses(scheduler: Ballista, mut losses: mpsc::Receiver<String>) {
    while let Some(executor_id) = losses.recv().await {
        let reason = "its line to the scheduler broke".to_owned();
        let params = ExecutorStoppedParams { executor_id, reason };
        if let Err(error) = scheduler.executor_stopped(Request::new(params)).await {
            tracing::warn!("a worker's loss: {error}");
        }
    }
}

async fn cancel(scheduler: Ballista, mut orphans: mpsc::Receiver<JobId>, hold: Option<Hold>) {
    while let Some(job) = orphans.recv().await {
        // Its client may have gone to a successor, which goes on with it under the same names.
        if let Some(hold) = &hold
            && hold.confirm().await.is_err()
        {
            return;
        }
        if let Err(error) = scheduler.cancel_job(job).await {
            tracing::warn!("a job without a client: {error}");
        }
    }
}

fn config(
    address: SocketAddr,
    host: String,
    state: SessionState,
    worker_timeout: Duration,
) -> SchedulerConfig {
    SchedulerConfig {
        external_host: host,
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        executor_timeout_seconds: worker_timeout.as_secs(),
        expire_dead_executor_interval_seconds: 1,
        // More than workers, jobs and launches put there at once: were it full, the loop would wait for itself.
        event_loop_buffer_size: 1 << 20,
        // We give jobs up ourselves, also those that began without workers, and say it in our words.
        no_executors_grace_period_seconds: u64::MAX,
        job_id_generator: Some(Arc::new(JobIds)),
        override_physical_codec: Some(session::physical_codec()),
        override_config_producer: Some(Arc::new(|| {
            session::config().with_ballista_adaptive_query_planner(false)
        })),
        override_session_builder: Some(Arc::new(move |config| {
            let builder = SessionStateBuilder::new_from_existing(state.clone());
            Ok(builder.with_config(config).build())
        })),
        grpc_server_max_decoding_message_size: session::MESSAGE_BYTES,
        grpc_server_max_encoding_message_size: session::MESSAGE_BYTES,
        grpc_client_max_message_size: session::MESSAGE_BYTES,
        ..SchedulerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use arrow::datatypes::Schema;
    use ballista_core::serde::protobuf::UpdateTaskStatusParams;
    use datafusion::physical_plan::empty::EmptyExec;
    use tempfile::TempDir;
    use tokio::time::timeout;
    use tonic::Code;
    use tonic::transport::Channel;

    use super::*;
    use crate::ballista::plan_parts;
    use crate::journal::State;
    use crate::protocol::ClusterClient;
    use crate::protocol::messages::run_update::News as Update;
    use crate::protocol::messages::{PROTOCOL, RunRequest, RunUpdate};

    const JOB: &str = "038FYY9SHE000";

    /// A scheduler without workers, at which jobs wait.
    async fn scheduler(state: Option<&Path>) -> (RunningScheduler, ClusterClient<Channel>) {
        let state = match state {
            Some(folder) => Some(State::in_folder(folder).take().await.unwrap()),
            None => None,
        };
        let scheduler = Scheduler { state, ..Scheduler::new(Arc::default()) };
        let scheduler = scheduler.start().await.unwrap();
        let channel = Channel::from_shared(format!("http://{}", scheduler.address())).unwrap();
        (scheduler, ClusterClient::new(channel.connect().await.unwrap()))
    }

    fn request(owner: &str) -> RunRequest {
        let plan = EmptyExec::new(Arc::new(Schema::empty()));
        RunRequest {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            plan: plan_parts::encode(Arc::new(plan)).unwrap(),
            job: JOB.to_owned(),
            owner: owner.to_owned(),
            ..RunRequest::default()
        }
    }

    /// A client that comes back from a scheduler with this state.
    fn known(owner: &str, state: &str) -> RunRequest {
        RunRequest { plan: vec![], is_known: true, state: state.to_owned(), ..request(owner) }
    }

    async fn accepted(client: &mut ClusterClient<Channel>, request: RunRequest) -> bool {
        let mut updates = client.run(request).await.unwrap().into_inner();
        let first = updates.message().await.unwrap();
        matches!(first, Some(RunUpdate { news: Some(Update::Accepted(accepted)) }) if accepted.job == JOB)
    }

    #[tokio::test]
    async fn of_two_jobs_of_one_id_that_come_at_once_one_is_run() {
        let folder = TempDir::new().unwrap();
        for state in [None, Some(folder.path())] {
            let (_scheduler, client) = scheduler(state).await;
            let run = || {
                let mut client = client.clone();
                async move { client.run(request("")).await }
            };
            let answers = <[_; 4]>::from(tokio::join!(run(), run(), run(), run()));
            let refused: Vec<_> =
                answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
            assert_eq!(refused.len(), 3, "{refused:?}");
            assert!(
                refused.iter().all(|status| status.code() == Code::AlreadyExists),
                "{refused:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_job_is_found_again_by_its_owner_alone() {
        let (folder, again) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let (_first, mut client) = scheduler(Some(folder.path())).await;
        let _updates = client.run(request("ada")).await.unwrap();
        // What another process would find: in this one, the first scheduler keeps its state.
        for file in fs::read_dir(folder.path()).unwrap().flatten() {
            fs::copy(file.path(), again.path().join(file.file_name())).unwrap();
        }
        let (_second, mut client) = scheduler(Some(again.path())).await;
        let state = fs::read_to_string(again.path().join("state.id")).unwrap();
        let state = state.trim_end();
        for other in ["", "bob"] {
            let refused = client.run(known(other, state)).await.unwrap_err();
            assert_eq!(refused.code(), Code::NotFound, "{refused}");
        }
        // Another scheduler may have had a job of this id.
        let other = "0123456789abcdef0123456789abcdef";
        let refused = client.run(known("ada", other)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused}");
        assert!([state, other].iter().all(|id| refused.message().contains(id)), "{refused}");
        // It is still there, and its id with it.
        let refused = client.run(request("bob")).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        assert!(accepted(&mut client, known("ada", state)).await);
    }

    /// What it puts into its queue itself must always find room there.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn however_many_report_at_once_the_event_loop_goes_on() {
        let registry = Registry::new(Membership::new());
        let state = session::decoding_state(Arc::default(), Functions::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = config(address, String::new(), state, Duration::from_secs(60));
        let config = SchedulerConfig { event_loop_buffer_size: 4, ..config };
        let (scheduler, _) = ballista(&registry, Arc::new(config)).await.unwrap();
        let looks = wake::forward(scheduler.clone(), registry.clone());
        let _looks = SpawnedTask::spawn(looks);
        let reports = WorkerReports { scheduler, registry: registry.clone() };
        let report = || reports.update_task_status(Request::new(UpdateTaskStatusParams::default()));
        let reported = async {
            for _ in 0..1000 {
                futures::future::try_join_all((0..10).map(|_| report())).await.unwrap();
                // The next look is asked for while this one is in the queue.
                while !registry.looks().is_empty() {
                    tokio::task::yield_now().await;
                }
            }
        };
        timeout(Duration::from_secs(60), reported).await.expect("it waits for itself");
    }
}
