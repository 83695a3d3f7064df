//! A worker's process: takes tasks, runs them, serves what they wrote.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::executor_resource::Resource;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{
    ExecutorOperatingSystemSpecification, ExecutorRegistration, ExecutorResource,
    ExecutorSpecification, ExecutorStoppedParams,
};
use ballista_core::utils::{GrpcServerConfig, create_grpc_server};
use ballista_core::{BALLISTA_PROTOCOL_VERSION, ConfigProducer, JobId, RuntimeProducer};
use ballista_executor::executor::Executor;
use ballista_executor::executor_process::ExecutorProcessConfig;
use ballista_executor::executor_server::startup;
use ballista_executor::flight_service::BallistaFlightService;
use ballista_executor::metrics::LoggingMetricsCollector;
use ballista_executor::shutdown::ShutdownNotifier;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_engine::Devices;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint};

use super::client::root_cause;
use super::engine::TaskEngine;
use super::figures::{self, WorkerFigures};
use super::session;
use crate::block::BlockStore;
use crate::inventory;
use crate::metrics::Figures;
use crate::rpc::attendance::{Hear, Line, mouth};
use crate::rpc::blocks_server::BlocksServer;
use crate::rpc::messages::{self, to_worker};

/// How often a worker says that it lives; the broken line says sooner that it does not.
const HEARTBEAT_S: u64 = 1;

/// What a worker is and has.
#[derive(Debug)]
pub struct Worker {
    /// `host:port` of the scheduler.
    pub scheduler: String,
    /// Address to listen on.
    pub bind: IpAddr,
    /// Ports to listen on.
    pub ports: Ports,
    /// Name or address by which others reach this machine.
    pub host: String,
    /// The ports by which others reach it, where they are forwarded; 0 where they are not.
    pub advertised: Ports,
    /// Where tasks keep what they write; each process uses a folder of its own in it.
    pub work_dir: PathBuf,
    /// What tasks run models on.
    pub devices: Arc<Devices>,
    /// Bytes of blocks that may be kept at a time.
    pub work_limit: Option<u64>,
    /// Memory, disk and object stores of all tasks together.
    pub runtime: Arc<RuntimeEnv>,
    /// For people, and for models that ask for them.
    pub labels: BTreeMap<String, String>,
    /// Where to serve figures for Prometheus; port 0 takes a free one.
    pub metrics: Option<SocketAddr>,
    /// For how long a worker that was told to leave waits until its tasks have ended and what they
    /// wrote has been read.
    pub drain_limit: Duration,
}

/// The ports of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// For other workers and sessions, which read blocks; 0 takes a free one.
    pub blocks: u16,
    /// For the scheduler, which sends tasks; 0 takes a free one.
    pub tasks: u16,
}

impl Ports {
    /// These, and `other` where one is 0.
    fn or(self, other: Self) -> Self {
        let or = |port, other| if port == 0 { other } else { port };
        Self { blocks: or(self.blocks, other.blocks), tasks: or(self.tasks, other.tasks) }
    }
}

impl Worker {
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
        let id = new_id();
        let folder = Folder::create(&self.work_dir, &id)?;
        let channel = self.connect().await?;
        let (flight, blocks) = listen(SocketAddr::new(self.bind, self.ports.blocks))?;
        let tasks = free_port(SocketAddr::new(self.bind, self.ports.tasks))?;
        let ports = Ports { blocks, tasks };
        let advertised = self.advertised.or(ports);
        log::info!("worker {id} listens on ports {blocks} for blocks and {tasks} for tasks");
        let registration = self.registration(&id, advertised);
        let config = Arc::new(self.config(&id, ports, folder.text()));
        let blocks_max = self.work_limit.unwrap_or(u64::MAX);
        let store = BlockStore::new(id.clone(), folder.path.clone(), blocks_max);
        let store = Arc::new(store);
        let (mouth, messages) = mouth();
        let engine = TaskEngine::new(Arc::clone(&self.devices), Arc::clone(&store), mouth.clone());
        let executor = self.executor(registration, folder.text(), engine, Arc::clone(&store));
        let executor = Arc::new(executor);
        let shutdown = ShutdownNotifier::new();
        let mut serving = shutdown.subscribe_for_shutdown();
        let shuffles = FlightServiceServer::new(BallistaFlightService::new(folder.text()))
            .max_decoding_message_size(session::MESSAGE_BYTES as usize)
            .max_encoding_message_size(session::MESSAGE_BYTES as usize);
        let server = create_grpc_server(&GrpcServerConfig::default())
            .add_service(shuffles)
            .add_service(BlocksServer::new(Arc::clone(&store)))
            .serve_with_incoming_shutdown(flight, async move { serving.recv().await });
        let _serving = SpawnedTask::spawn(server);
        let (stop_send, mut stopped) = tokio::sync::mpsc::channel(1);
        let scheduler = SchedulerGrpcClient::new(channel.clone())
            .max_encoding_message_size(session::MESSAGE_BYTES as usize)
            .max_decoding_message_size(session::MESSAGE_BYTES as usize);
        let may_leave = Arc::new(Notify::new());
        let ears = Ears {
            executor: Arc::clone(&executor),
            store: Arc::clone(&store),
            may_leave: Arc::clone(&may_leave),
        };
        let mut line =
            Line::open(channel, self.describe(&id, advertised.blocks), (mouth, messages), ears)
                .await
                .map_err(|status| self.refused(status.message()))?;
        startup(
            scheduler.clone(),
            config,
            Arc::clone(&executor),
            session::codec(),
            stop_send,
            &shutdown,
            Default::default(),
        )
        .await
        .map_err(|error| self.refused(&error.to_string()))?;
        let _figures = self.serve_metrics(&executor, &store).await?;
        on_ready(&id);
        let lost = tokio::select! {
            () = stop => None,
            why = line.closed() => Some(why),
            _ = stopped.recv() => Some("told this worker to stop".to_owned()),
        };
        if let Some(problem) = lost {
            return Err(self.refused(&problem));
        }
        // Its heartbeats go on as before: Ballista takes a worker that says it terminates for gone.
        line.drain();
        tokio::select! {
            () = may_leave.notified() => {}
            why = line.closed() => log::warn!("the scheduler at {}: {why}", self.scheduler),
            () = tokio::time::sleep(self.drain_limit) => log::warn!(
                "what this worker runs or holds was still needed after {:?}; it is made again \
                 elsewhere",
                self.drain_limit
            ),
        }
        let params = ExecutorStoppedParams { executor_id: id, reason: "it drained".to_owned() };
        let mut scheduler = scheduler;
        scheduler.executor_stopped(params).await.ok();
        shutdown.notify_shutdown.send(()).ok();
        Ok(())
    }

    async fn serve_metrics(
        &self,
        executor: &Arc<Executor>,
        store: &Arc<BlockStore>,
    ) -> Result<Option<Figures>> {
        let Some(address) = self.metrics else { return Ok(None) };
        let cuda = self.devices.cuda().unwrap_or_default().into_iter();
        let emulated = self.devices.inventory().emulated().iter().cloned();
        let worker = WorkerFigures {
            executor: Arc::clone(executor),
            store: Arc::clone(store),
            devices: Arc::clone(&self.devices),
            accelerators: cuda.chain(emulated).collect(),
        };
        let figures = Figures::serve(address, move |page| figures::of_worker(&worker, page));
        figures.await.map(Some)
    }

    async fn connect(&self) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.scheduler))
            .map_err(|e| exec_datafusion_err!("'{}' is no HOST:PORT: {e}", self.scheduler))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(8))
            .keep_alive_while_idle(true);
        endpoint.connect().await.map_err(|error| {
            exec_datafusion_err!(
                "no scheduler answers at {}: {}; start one with `forebay serve`",
                self.scheduler,
                root_cause(&error)
            )
        })
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

    fn config(&self, id: &str, ports: Ports, folder: String) -> ExecutorProcessConfig {
        ExecutorProcessConfig {
            executor_id: id.to_owned(),
            bind_host: self.bind.to_string(),
            external_host: Some(self.host.clone()),
            port: ports.blocks,
            grpc_port: ports.tasks,
            vcores: self.devices.inventory().cpus as usize,
            work_dir: Some(folder),
            executor_heartbeat_interval_seconds: HEARTBEAT_S,
            grpc_max_decoding_message_size: session::MESSAGE_BYTES,
            grpc_max_encoding_message_size: session::MESSAGE_BYTES,
            ..ExecutorProcessConfig::default()
        }
    }

    fn executor(
        &self,
        registration: ExecutorRegistration,
        folder: String,
        engine: TaskEngine,
        store: Arc<BlockStore>,
    ) -> Executor {
        let state = session::state(Arc::clone(&self.devices), Arc::clone(&self.runtime));
        let config = state
            .config()
            .clone()
            .with_extension(store)
            .with_ballista_override_create_grpc_client_endpoint(Arc::new(|endpoint| {
                Ok(session::shuffle_endpoint(endpoint))
            }));
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
            Arc::new(engine),
        )
    }
}

/// Does what the scheduler says.
struct Ears {
    executor: Arc<Executor>,
    store: Arc<BlockStore>,
    may_leave: Arc<Notify>,
}

#[tonic::async_trait]
impl Hear for Ears {
    async fn hear(&self, say: to_worker::Say) {
        match say {
            to_worker::Say::Cancel(task) => {
                let job = JobId::new(&task.job);
                let (stage, id) = (task.stage as usize, task.task as usize);
                if let Err(error) = self.executor.cancel_task(job, stage, id).await {
                    log::warn!("task {stage}/{id} of job {}: {error}", task.job);
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

fn listen(address: SocketAddr) -> Result<(TcpListenerStream, u16)> {
    let listener = bind(address)?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?), port))
}

/// Ballista binds this port itself, a moment later.
fn free_port(address: SocketAddr) -> Result<u16> {
    Ok(bind(address)?.local_addr()?.port())
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .map_err(|error| exec_datafusion_err!("cannot listen on {address}: {error}"))
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
        log::warn!("what a crashed worker left in {} stays: {error}", folder.display());
    }
}
