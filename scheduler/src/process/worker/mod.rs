//! A worker's process: takes tasks, runs them, serves what they wrote.
//!
//! - `life`: what it goes through, from its start to its end
//! - `line`: its way to the scheduler
//! - `work_dir`: its folder

mod life;
mod line;
mod work_dir;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::serde::protobuf::executor_resource::Resource;
use ballista_core::serde::protobuf::{
    ExecutorOperatingSystemSpecification, ExecutorRegistration, ExecutorResource,
    ExecutorSpecification,
};
use ballista_core::{BALLISTA_PROTOCOL_VERSION, ConfigProducer, RuntimeProducer};
use ballista_executor::executor::Executor;
use ballista_executor::metrics::LoggingMetricsCollector;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use forebay_engine::Devices;
use tokio::sync::oneshot;

use crate::ballista::session;
use crate::block::{BlockStore, ByteCost, Neighbours};
use crate::functions::Functions;
use crate::inventory;
use crate::metrics::{MetricsServer, Page};
use crate::protocol::connection::Peers;
use crate::protocol::messages;
use crate::protocol::schedulers::{Schedulers, Seeker};
use crate::protocol::tls::Tls;
use crate::worker::engine::TaskEngine;
use crate::worker::metrics::{self, WorkerFigures};
use life::Bound;

/// What a worker is and has.
#[derive(Debug)]
pub struct Worker {
    /// `host:port` of the scheduler; of several that may have its state in turn, all, with commas between them.
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
    /// Bytes of blocks that may be kept at a time.
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
    /// Whether it ends when its scheduler does, even if that may have a successor.
    pub ends_with_scheduler: bool,
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
            ends_with_scheduler: false,
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
        let attached = Bound::new(&self).await?.serve(&self)?.attach(&self).await?;
        on_ready(attached.id());
        attached.work(&self, stop).await?.leave(&self).await;
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

    async fn connect(&self) -> Result<Schedulers> {
        Schedulers::reach(&self.scheduler, self.tls.as_ref(), Seeker::Worker).await
    }

    /// What bytes of blocks cost here: those who read them from elsewhere share a network.
    fn byte_cost(&self) -> ByteCost {
        let is_loopback = |address: IpAddr| address.is_loopback();
        if self.host == "localhost" || self.host.parse().is_ok_and(is_loopback) {
            return ByteCost::default();
        }
        ByteCost::with_network(self.devices.inventory().cpus)
    }

    fn refused(&self, problem: &str) -> DataFusionError {
        exec_datafusion_err!("the scheduler at {}: {problem}", self.scheduler)
    }

    fn describe(&self, id: &str, port: u16) -> messages::Worker {
        let labels = self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        messages::Worker {
            id: id.to_owned(),
            address: format!("{}:{port}", self.host),
            inventory: inventory::to_message(&self.devices, labels, self.work_limit),
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
        schedulers: Arc<Schedulers>,
    ) -> Executor {
        let state = session::state(
            Arc::clone(&self.devices),
            Arc::clone(&self.runtime),
            self.functions.clone(),
        );
        let peers = Arc::new(Peers::new(self.tls.clone()));
        let config = state
            .config()
            .clone()
            .with_extension(store)
            .with_extension(schedulers)
            .with_extension(peers)
            .with_extension(Arc::new(Neighbours::at(self.host.clone())));
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
