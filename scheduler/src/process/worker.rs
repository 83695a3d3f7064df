//! A worker's process: takes tasks, runs them, serves what they wrote.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::executor_grpc_server::ExecutorGrpcServer;
use ballista_core::serde::protobuf::executor_resource::Resource;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    ExecutorOperatingSystemSpecification, ExecutorRegistration, ExecutorResource,
    ExecutorSpecification, ExecutorStoppedParams, RegisterExecutorParams,
};
use ballista_core::utils::{GrpcServerConfig, create_grpc_server};
use ballista_core::{BALLISTA_PROTOCOL_VERSION, ConfigProducer, JobId, RuntimeProducer};
use ballista_executor::executor::Executor;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::metrics::LoggingMetricsCollector;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_engine::Devices;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};
use tonic::transport::Channel;
use tonic::transport::server::Router;

use crate::ballista::calls;
use crate::ballista::session;
use crate::block::BlockStore;
use crate::functions::Functions;
use crate::inventory;
use crate::metrics::{MetricsServer, Page};
use crate::protocol::blocks_server::BlocksServer;
use crate::protocol::connection::{self, Peers, said};
use crate::protocol::control_stream::{ControlStream, Handler, ToScheduler, to_scheduler};
use crate::protocol::messages::{self, from_worker, to_worker};
use crate::protocol::tls::Tls;
use crate::worker::engine::TaskEngine;
use crate::worker::joins;
use crate::worker::metrics::{self, BusyMeter, WorkerFigures};
use crate::worker::tasks::{self, TaskService, TaskThreads};

/// How often a worker looks whether the scheduler's machine is there, and for how long it waits.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(2);
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(8);

/// How often a worker says that it is full.
const TELL_FULL_EVERY: Duration = Duration::from_millis(100);

/// How often a worker looks how busy its accelerators are.
const TELL_BUSY_EVERY: Duration = Duration::from_secs(1);

/// What a worker is and has.
#[derive(Debug)]
pub struct Worker {
    /// `host:port` of the scheduler.
    pub scheduler: String,
    /// Address to listen on.
    pub bind: IpAddr,
    /// Port to listen on; 0 takes a free one.
    pub port: u16,
    /// Name or address by which others reach this machine.
    pub host: String,
    /// The ports by which others reach it, where they are forwarded; 0 where they are not.
    pub advertised: Ports,
    /// Where tasks keep what they write; each process uses a folder of its own in it.
    pub work_dir: PathBuf,
    /// What tasks run models on.
    pub devices: Arc<Devices>,
    /// Bytes of blocks and hash shuffles that may be kept at a time.
    pub work_limit: Option<u64>,
    /// Memory, disk and object stores of all tasks together.
    pub runtime: Arc<RuntimeEnv>,
    /// Functions of this program that plans may name.
    pub functions: Functions,
    /// For people, and for models that ask for them.
    pub labels: BTreeMap<String, String>,
    /// Where to serve figures for Prometheus; port 0 takes a free one.
    pub metrics: Option<SocketAddr>,
    /// For how long a worker that was told to leave waits until its tasks have ended and what they
    /// wrote has been read.
    pub drain_limit: Duration,
    /// With it, this worker speaks only to those who have a certificate of its authority; without,
    /// with anyone.
    pub tls: Option<Tls>,
}

/// The ports by which others reach a worker. It listens on one; they can be told of two, for a
/// proxy that stands in front of one kind of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// For other workers and sessions, which read blocks; 0 for the one on which it listens.
    pub blocks: u16,
    /// For the scheduler, which sends tasks; 0 for the one on which it listens.
    pub tasks: u16,
}

impl Ports {
    /// These, and `port` where one is 0.
    fn or(self, port: u16) -> Self {
        let or = |own| if own == 0 { port } else { own };
        Self { blocks: or(self.blocks), tasks: or(self.tasks) }
    }
}

/// A worker of this process, which works until it is dropped.
#[derive(Debug)]
pub struct RunningWorker {
    _working: SpawnedTask<()>,
}

impl Worker {
    /// A worker on a free port of loopback, which keeps what tasks write in a folder for temporary
    /// files.
    pub fn new(scheduler: String, devices: Arc<Devices>, runtime: Arc<RuntimeEnv>) -> Self {
        Self {
            scheduler,
            bind: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            host: Ipv4Addr::LOCALHOST.to_string(),
            advertised: Ports::default(),
            work_dir: std::env::temp_dir().join("forebay"),
            devices,
            work_limit: None,
            runtime,
            functions: Functions::default(),
            labels: BTreeMap::new(),
            metrics: None,
            drain_limit: Duration::ZERO,
            tls: None,
        }
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn start(self) -> Result<RunningWorker> {
        let (ready, is_ready) = oneshot::channel();
        let (failed, failure) = oneshot::channel();
        let working = SpawnedTask::spawn(async move {
            let on_ready = |_: &str| {
                ready.send(()).ok();
            };
            if let Err(error) = Box::pin(self.run(on_ready, std::future::pending())).await {
                tracing::error!("the worker of this process: {error}");
                failed.send(error).ok();
            }
        });
        match is_ready.await {
            Ok(()) => Ok(RunningWorker { _working: working }),
            Err(_) => Err(failure.await.unwrap_or_else(|_| {
                exec_datafusion_err!("the worker of this process ended before it was ready")
            })),
        }
    }

    /// Works until `stop` is ready or the scheduler is gone; calls `on_ready` with its name. Then
    /// it takes nothing new, finishes what runs, serves what is still to be read, and leaves.
    ///
    /// # Errors
    /// If it cannot listen, reach the scheduler, use its folder, or is refused.
    pub async fn run(
        self,
        on_ready: impl FnOnce(&str),
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        if let Some(tls) = &self.tls {
            tls.check_host(&self.host)?;
        }
        let id = new_id();
        let folder = Folder::create(&self.work_dir, &id)?;
        let channel = self.connect().await?;
        let (port, number) = listen(SocketAddr::new(self.bind, self.port)).await?;
        tracing::info!(worker = %id, "listens on port {number}");
        let advertised = self.advertised.or(number);
        let registration = self.registration(&id, advertised);
        let blocks_max = self.work_limit.unwrap_or(u64::MAX);
        let store = BlockStore::new(id.clone(), folder.path.clone(), blocks_max);
        let store = Arc::new(store);
        let (to_scheduler, messages) = to_scheduler();
        let engine =
            TaskEngine::new(Arc::clone(&self.devices), Arc::clone(&store), to_scheduler.clone());
        let engine = Arc::new(engine);
        let tidy = joins::tidy(Arc::clone(engine.tables()));
        let executor = Arc::new(self.executor(
            registration.clone(),
            folder.text(),
            Arc::clone(&engine),
            Arc::clone(&store),
        ));
        let (stop_send, mut stopped) = mpsc::channel(1);
        let description = self.describe(&id, advertised.blocks);
        let threads = TaskThreads::start(&description.inventory)?;
        let (tasks, ends) = TaskService::new(
            Arc::clone(&executor),
            engine,
            Arc::clone(&store),
            &threads,
            stop_send,
        );
        let routes = routes(tasks, Arc::clone(&store), &folder);
        let _serving = SpawnedTask::spawn(connection::serve(routes, port, self.tls.clone()));
        let mut scheduler = SchedulerGrpcClient::new(channel.clone())
            .max_encoding_message_size(session::MESSAGE_BYTES as usize)
            .max_decoding_message_size(session::MESSAGE_BYTES as usize);
        let may_leave = Arc::new(Notify::new());
        let from_scheduler = FromScheduler {
            executor: Arc::clone(&executor),
            store: Arc::clone(&store),
            may_leave: Arc::clone(&may_leave),
        };
        let mut line =
            ControlStream::open(channel, description, (to_scheduler, messages), from_scheduler)
                .await
                .map_err(|status| self.refused(&said(&status)))?;
        scheduler
            .register_executor(RegisterExecutorParams { metadata: Some(registration) })
            .await
            .map_err(|status| self.refused(&said(&status)))?;
        let report = tasks::report(scheduler.clone(), id.clone(), ends);
        let live = tasks::live(scheduler.clone(), Arc::clone(&executor));
        let full = tell_when_full(Arc::clone(&store), line.to_scheduler());
        let busy = tell_busy(BusyMeter::new(Arc::clone(&self.devices)), line.to_scheduler());
        let _talking = [
            SpawnedTask::spawn(report),
            SpawnedTask::spawn(live),
            SpawnedTask::spawn(full),
            SpawnedTask::spawn(busy),
            SpawnedTask::spawn(tidy),
        ];
        let _metrics = self.serve_metrics(&executor, &store).await?;
        on_ready(&id);
        let lost = tokio::select! {
            () = stop => None,
            why = line.closed() => Some(why),
            why = stopped.recv() => {
                Some(format!("told this worker to stop: {}", why.unwrap_or_default()))
            }
        };
        if let Some(problem) = lost {
            return Err(self.refused(&problem));
        }
        // Its heartbeats go on as before: Ballista takes a worker that says it terminates for gone.
        line.drain();
        tokio::select! {
            () = may_leave.notified() => {}
            why = line.closed() => tracing::warn!("the scheduler at {}: {why}", self.scheduler),
            () = tokio::time::sleep(self.drain_limit) => tracing::warn!(
                "what this worker runs or holds was still needed after {:?}; it is made again \
                 elsewhere",
                self.drain_limit
            ),
        }
        let params = ExecutorStoppedParams { executor_id: id, reason: "it drained".to_owned() };
        scheduler.executor_stopped(params).await.ok();
        Ok(())
    }

    async fn serve_metrics(
        &self,
        executor: &Arc<Executor>,
        store: &Arc<BlockStore>,
    ) -> Result<Option<MetricsServer>> {
        let Some(address) = self.metrics else { return Ok(None) };
        let (executor, store) = (Arc::clone(executor), Arc::clone(store));
        let worker = WorkerFigures::new(executor, store, Arc::clone(&self.devices));
        let fill = move |page: &Page| metrics::of_worker(&worker, page);
        MetricsServer::serve(address, self.tls.clone(), fill).await.map(Some)
    }

    async fn connect(&self) -> Result<Channel> {
        let endpoint = connection::endpoint(&self.scheduler, self.tls.as_ref())?
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .keep_alive_timeout(KEEP_ALIVE_LIMIT)
            .keep_alive_while_idle(true);
        connection::reach_scheduler(endpoint, &self.scheduler, self.tls.as_ref()).await
    }

    fn refused(&self, problem: &str) -> DataFusionError {
        exec_datafusion_err!("the scheduler at {}: {problem}", self.scheduler)
    }

    fn describe(&self, id: &str, port: u16) -> messages::Worker {
        let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        messages::Worker {
            id: id.to_owned(),
            address: format!("{}:{port}", self.host),
            inventory: inventory::to_message(&self.devices, labels),
            draining: false,
            busy_milli: 0,
        }
    }

    fn registration(&self, id: &str, ports: Ports) -> ExecutorRegistration {
        let vcores = Resource::Vcores(self.devices.inventory().cpus);
        ExecutorRegistration {
            id: id.to_owned(),
            host: Some(self.host.clone()),
            port: u32::from(ports.blocks),
            grpc_port: u32::from(ports.tasks),
            specification: Some(ExecutorSpecification {
                resources: vec![ExecutorResource { resource: Some(vcores) }],
            }),
            os_info: Some(ExecutorOperatingSystemSpecification::default()),
            ballista_protocol_version: BALLISTA_PROTOCOL_VERSION,
        }
    }

    fn executor(
        &self,
        registration: ExecutorRegistration,
        folder: String,
        engine: Arc<TaskEngine>,
        store: Arc<BlockStore>,
    ) -> Executor {
        let state = session::state(
            Arc::clone(&self.devices),
            Arc::clone(&self.runtime),
            self.functions.clone(),
        );
        let peers = Arc::new(Peers::new(self.tls.clone()));
        let reads = calls::for_shuffles(self.tls.clone());
        let config = state
            .config()
            .clone()
            .with_extension(store)
            .with_extension(peers)
            .with_ballista_override_create_grpc_client_endpoint(reads);
        let produce_config: ConfigProducer = Arc::new(move || config.clone());
        let runtime = Arc::clone(&self.runtime);
        let produce_runtime: RuntimeProducer = Arc::new(move |_| Ok(Arc::clone(&runtime)));
        Executor::new(
            registration,
            &folder,
            produce_runtime,
            produce_config,
            session::functions(&state),
            Arc::new(LoggingMetricsCollector::default()),
            self.devices.inventory().cpus as usize,
            engine,
        )
    }
}

/// Does what the scheduler says.
struct FromScheduler {
    executor: Arc<Executor>,
    store: Arc<BlockStore>,
    may_leave: Arc<Notify>,
}

#[tonic::async_trait]
impl Handler for FromScheduler {
    async fn handle(&self, say: to_worker::Say) {
        match say {
            to_worker::Say::Cancel(task) => {
                let job = JobId::new(&task.job);
                let (stage, id) = (task.stage as usize, task.task as usize);
                if let Err(error) = self.executor.cancel_task(job, stage, id).await {
                    tracing::warn!(job = %task.job, stage, task = id, "cannot be stopped: {error}");
                }
            }
            to_worker::Say::Free(block) => self.store.remove(&block.job, block.id),
            to_worker::Say::Forget(job) => self.store.forget(&job),
            to_worker::Say::Leave(_) => self.may_leave.notify_one(),
            to_worker::Say::Welcome(_) => {}
        }
    }
}

/// Unique per process start: a worker that comes back is another worker.
fn new_id() -> String {
    format!("w-{}", uuid::Uuid::new_v4().simple())
}

/// Asks the scheduler to free what it keeps here for later, whenever a task waits for room.
async fn tell_when_full(store: Arc<BlockStore>, to_scheduler: ToScheduler) {
    loop {
        store.wanted().await;
        to_scheduler.say(from_worker::Say::Full(messages::Full {}));
        tokio::time::sleep(TELL_FULL_EVERY).await;
    }
}

/// Tells the scheduler how busy the accelerators are, when that has changed.
async fn tell_busy(mut meter: BusyMeter, to_scheduler: ToScheduler) {
    let mut told = 0;
    loop {
        tokio::time::sleep(TELL_BUSY_EVERY).await;
        let milli = meter.milli();
        if std::mem::replace(&mut told, milli) != milli {
            to_scheduler.say(from_worker::Say::Busy(messages::Busy { milli }));
        }
    }
}

/// All that others may ask of a worker: the scheduler, to run tasks; other workers and sessions,
/// what tasks wrote.
fn routes(tasks: TaskService, store: Arc<BlockStore>, folder: &Folder) -> Router {
    let limit = session::MESSAGE_BYTES as usize;
    let shuffles = FlightServiceServer::new(BallistaFlightService::new(folder.text()));
    create_grpc_server(&GrpcServerConfig::default())
        .add_service(shuffles.max_decoding_message_size(limit).max_encoding_message_size(limit))
        .add_service(BlocksServer::new(store))
        .add_service(
            ExecutorGrpcServer::new(tasks)
                .max_decoding_message_size(limit)
                .max_encoding_message_size(limit),
        )
}

/// A port, and its number.
async fn listen(address: SocketAddr) -> Result<(TcpListener, u16)> {
    let failed = |error| exec_datafusion_err!("cannot listen on {address}: {error}");
    let port = TcpListener::bind(address).await.map_err(failed)?;
    let number = port.local_addr().map_err(failed)?.port();
    Ok((port, number))
}

/// The folder of one process, gone with it. Those of processes that crashed go at the next start.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Locked as long as the process lives.
    _lock: File,
}

/// In each process's folder.
const LOCK_FILE: &str = "lock";

impl Folder {
    fn create(parent: &Path, id: &str) -> Result<Self> {
        let failed = |error| {
            exec_datafusion_err!("the work folder {} cannot be used: {error}", parent.display())
        };
        fs::create_dir_all(parent).map_err(failed)?;
        for entry in fs::read_dir(parent).map_err(failed)?.flatten() {
            remove_if_left(&entry.path());
        }
        let path = parent.join(id);
        fs::create_dir(&path).map_err(failed)?;
        let lock = File::create(path.join(LOCK_FILE)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Self { path, _lock: lock })
    }

    fn text(&self) -> String {
        self.path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

fn remove_if_left(folder: &Path) {
    let Ok(lock) = File::open(folder.join(LOCK_FILE)) else { return };
    if lock.try_lock().is_ok()
        && let Err(error) = fs::remove_dir_all(folder)
    {
        tracing::warn!("what a crashed worker left in {} stays: {error}", folder.display());
    }
}
