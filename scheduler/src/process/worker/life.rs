//! What a worker goes through, each state a type that has what the worker has by then:
//!
//! ```text
//! Bound ──serve──▶ Serving ──attach──▶ Attached ──work──▶ Draining ──leave──▶
//! ```

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::serde::protobuf::executor_grpc_server::ExecutorGrpcServer;
use ballista_core::serde::protobuf::{ExecutorStoppedParams, TaskStatus};
use ballista_core::utils::{GrpcServerConfig, create_grpc_server};
use ballista_executor::executor::Executor;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err};
use forebay_engine::Inventory;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::server::Router;

use super::line::{FromScheduler, Way};
use super::work_dir::Folder;
use super::{Ports, Worker};
use crate::ballista::session;
use crate::block::BlockStore;
use crate::metrics::MetricsServer;
use crate::protocol::blocks_server::BlocksServer;
use crate::protocol::connection::{self, said};
use crate::protocol::control_stream::{ControlStream, ToScheduler, to_scheduler};
use crate::protocol::messages::{self, Welcome, from_worker};
use crate::protocol::schedulers::Schedulers;
use crate::worker::account::Account;
use crate::worker::engine::TaskEngine;
use crate::worker::joins;
use crate::worker::metrics::BusyMeter;
use crate::worker::tasks::{self, TaskService, TaskThreads};

/// How often a worker says that it is full.
const TELL_FULL_EVERY: Duration = Duration::from_millis(100);

/// How often a worker looks how busy its accelerators are.
const TELL_BUSY_EVERY: Duration = Duration::from_secs(1);

/// The page cache has this part of the machine's memory for blocks, about: it has other files, too, and what tasks read
/// meanwhile pushes out what is older.
const PART_CACHED: u64 = 4;

/// So much in debug builds, so that blocks of tests go both ways.
const CACHED_IN_TESTS: u64 = 64 << 10;

/// Of that the share of a worker with so many of the machine's cores: there may be others.
fn cached_max(cores: u32) -> u64 {
    if cfg!(debug_assertions) {
        return CACHED_IN_TESTS;
    }
    let machine = Inventory::detect();
    let of_machine = u64::from(cores.min(machine.cpus)) * machine.memory;
    of_machine / u64::from(machine.cpus.max(1)) / PART_CACHED
}

/// It has a name, a folder, a port and a connection to the scheduler, which does not know of it yet.
pub(super) struct Bound {
    id: String,
    schedulers: Arc<Schedulers>,
    port: TcpListener,
    advertised: Ports,
    folder: Folder,
}

impl Bound {
    /// # Errors
    /// If it cannot use its folder, reach the scheduler or listen.
    pub(super) async fn new(worker: &Worker) -> Result<Self> {
        let id = new_id();
        let folder = Folder::create(&worker.work_dir, &id)?;
        let schedulers = Arc::new(worker.connect().await?);
        let (port, number) = listen(SocketAddr::new(worker.bind, worker.port)).await?;
        tracing::info!(worker = %id, "listens on port {number}");
        let advertised = worker.advertised.or(number);
        Ok(Self { id, schedulers, port, advertised, folder })
    }

    /// Answers whoever asks on its port.
    ///
    /// # Errors
    /// If there are no threads for its tasks.
    pub(super) fn serve(self, worker: &Worker) -> Result<Serving> {
        let Self { id, schedulers, port, advertised, folder } = self;
        let bytes_max = worker.work_limit.unwrap_or(u64::MAX);
        let store = BlockStore::new(id.clone(), folder.path.clone(), bytes_max);
        let store = store.with_cost(worker.byte_cost());
        let store = Arc::new(store.with_cached_max(cached_max(worker.devices.inventory().cpus)));
        let account = Arc::new(Account::new(to_scheduler().0));
        let devices = Arc::clone(&worker.devices);
        let engine = TaskEngine::new(devices, Arc::clone(&store), Arc::clone(&account));
        let engine = Arc::new(engine);
        let tables = joins::tidy(Arc::clone(engine.tables()));
        let registration = worker.registration(&id, advertised);
        let (its_engine, its_store) = (Arc::clone(&engine), Arc::clone(&store));
        let asked = Arc::clone(&schedulers);
        let executor = worker.executor(registration, folder.text(), its_engine, its_store, asked);
        let executor = Arc::new(executor);
        let description = worker.describe(&id, advertised.blocks);
        let threads = TaskThreads::start(&description.inventory)?;
        let (stop, stopped) = mpsc::channel(1);
        let (its_executor, its_store) = (Arc::clone(&executor), Arc::clone(&store));
        let its_account = Arc::clone(&account);
        let (tasks, ends) =
            TaskService::new(its_executor, engine, its_store, its_account, &threads, stop);
        let reports = tasks.reports();
        let routes = routes(tasks, Arc::clone(&store));
        let port = SpawnedTask::spawn(connection::serve(routes, port, worker.tls.clone()));
        let tidying = SpawnedTask::spawn(tables);
        let site = Site {
            _port: port,
            _tidying: tidying,
            _threads: threads,
            executor,
            store,
            _folder: folder,
        };
        let may_leave = Arc::default();
        let registration = site.executor.metadata.clone();
        let handler = FromScheduler { account, store: Arc::clone(&site.store), may_leave };
        let way = Way { schedulers, description, registration, handler, reports };
        Ok(Serving { site, way, ends, stopped })
    }
}

/// What runs tasks and serves what they wrote, until the worker ends. Dropped in this order: the
/// folder goes last.
struct Site {
    _port: SpawnedTask<Result<(), tonic::transport::Error>>,
    /// Lets go of tables that joins no longer share.
    _tidying: SpawnedTask<()>,
    _threads: TaskThreads,
    executor: Arc<Executor>,
    store: Arc<BlockStore>,
    _folder: Folder,
}

/// It answers on its port, and nobody knows.
pub(super) struct Serving {
    site: Site,
    way: Way,
    /// How tasks ended.
    ends: mpsc::Receiver<TaskStatus>,
    /// The scheduler wants no more of this worker, and why.
    stopped: mpsc::Receiver<String>,
}

impl Serving {
    /// Tells the scheduler that it is there, and from then on what happens.
    ///
    /// # Errors
    /// If the scheduler refuses it, or nothing can be measured where somebody wants figures.
    pub(super) async fn attach(self, worker: &Worker) -> Result<Attached> {
        let Self { site, way, ends, stopped } = self;
        let refused = |status: Status| worker.refused(&said(&status));
        let control = way.attach_first().await.map_err(refused)?;
        let id = site.store.worker().to_owned();
        let busy = BusyMeter::new(Arc::clone(&worker.devices));
        let (executor, account) = (Arc::clone(&site.executor), || Arc::clone(&way.handler.account));
        let talking = [
            SpawnedTask::spawn(tasks::report(way.schedulers(), id, ends, account())),
            SpawnedTask::spawn(tasks::live(way.schedulers(), executor, account())),
            SpawnedTask::spawn(tell_when_full(Arc::clone(&site.store), control.to_scheduler())),
            SpawnedTask::spawn(tell_busy(busy, control.to_scheduler())),
        ];
        let metrics = worker.serve_metrics(&site.executor, &site.store).await?;
        Ok(Attached { _metrics: metrics, _talking: talking, control, way, stopped, site })
    }
}

/// The scheduler gives it tasks.
pub(super) struct Attached {
    _metrics: Option<MetricsServer>,
    _talking: [SpawnedTask<()>; 4],
    control: ControlStream,
    way: Way,
    stopped: mpsc::Receiver<String>,
    site: Site,
}

impl Attached {
    pub(super) fn id(&self) -> &str {
        self.site.store.worker()
    }

    /// Works until `stop` is ready, for one scheduler after the other.
    ///
    /// # Errors
    /// If the scheduler is gone and has no successor, or wants no more of it.
    pub(super) async fn work(
        mut self,
        worker: &Worker,
        stop: impl Future<Output = ()>,
    ) -> Result<Draining> {
        let mut stop = pin!(stop);
        loop {
            let why = tokio::select! {
                () = stop.as_mut() => return Ok(Draining(self)),
                why = self.control.closed() => why,
                why = self.stopped.recv() => {
                    let why = why.unwrap_or_default();
                    return Err(worker.refused(&format!("told this worker to stop: {why}")));
                }
            };
            let before = self.control.welcome().clone();
            let before = if worker.ends_with_scheduler { Welcome::default() } else { before };
            self.control = tokio::select! {
                () = stop.as_mut() => return Ok(Draining(self)),
                again = self.way.attach_again(&before, &why) => {
                    again.map_err(|problem| worker.refused(&problem))?
                }
            };
            tracing::info!(worker = self.id(), "works for the successor of its scheduler");
        }
    }
}

/// It takes nothing new, and will leave.
pub(super) struct Draining(Attached);

impl Draining {
    /// Finishes what runs and serves what is still to be read, as long as it may wait for that.
    pub(super) async fn leave(self, worker: &Worker) {
        let Self(mut attached) = self;
        // Its heartbeats go on as before: Ballista takes a worker that says it terminates for gone.
        attached.control.drain();
        tokio::select! {
            () = attached.way.handler.may_leave.notified() => {}
            why = attached.control.closed() => {
                tracing::warn!("the scheduler at {}: {why}", worker.scheduler);
            }
            () = tokio::time::sleep(worker.drain_limit) => tracing::warn!(
                "what this worker runs or holds was still needed after {:?}; it is made again \
                 elsewhere",
                worker.drain_limit
            ),
        }
        let executor_id = attached.id().to_owned();
        let params = ExecutorStoppedParams { executor_id, reason: "it drained".to_owned() };
        attached.way.scheduler().executor_stopped(params).await.ok();
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
fn routes(tasks: TaskService, store: Arc<BlockStore>) -> Router {
    let limit = session::MESSAGE_BYTES as usize;
    create_grpc_server(&GrpcServerConfig::default())
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
